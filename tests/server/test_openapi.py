"""What the OpenAPI document says of attributes' numbers is what the server takes."""

import pytest

from bidr.server.document_endpoint import MAX_NUMBER, _parse_document
from bidr.server.errors import InvalidRequest


@pytest.mark.parametrize("value", [1e308, -1e19, MAX_NUMBER + 1])
def test_numbers_beyond_the_documented_limit_are_refused(value):
    with pytest.raises(InvalidRequest, match='attribute "n"'):
        _parse_document(0, {"id": "a", "attributes": {"n": value}})


@pytest.mark.parametrize("value", [MAX_NUMBER, -MAX_NUMBER, 0.5, True, "1e308"])
def test_valid_bodies_are_accepted(value):
    assert _parse_document(0, {"id": "a", "attributes": {"n": value}})[-1] == {"n": value}
