"""What the OpenAPI document says of attributes' numbers is what the server takes."""

import pytest

from bidr.server.document_endpoint import LARGEST_NUMBER, _document
from bidr.server.errors import InvalidRequest


@pytest.mark.parametrize("value", [1e308, -1e19, LARGEST_NUMBER + 1])
def test_numbers_beyond_the_documented_limit_are_refused(value):
    with pytest.raises(InvalidRequest, match='attribute "n"'):
        _document(0, {"id": "a", "attributes": {"n": value}})


@pytest.mark.parametrize("value", [LARGEST_NUMBER, -LARGEST_NUMBER, 0.5, True, "1e308"])
def test_others_are_taken(value):
    assert _document(0, {"id": "a", "attributes": {"n": value}})[-1] == {"n": value}
