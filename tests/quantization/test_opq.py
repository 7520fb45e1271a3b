"""Codes that nobody asked a size for fit the dimensions; sizes that do not are refused with some that do."""

import pytest

from bidr.errors import ConfigError
from bidr.quantization.opq import PlainCodes


@pytest.mark.parametrize(
    ("dim", "codewords", "books"),
    [(384, 16, 64), (384, 256, 32), (300, 16, 60), (48, 16, 48), (48, 256, 24), (101, 256, 1)],
)
def test_by_default_the_most_bytes_up_to_32_that_fit(dim, codewords, books):
    assert PlainCodes(codewords=codewords).count_books(dim) == books


@pytest.mark.parametrize(
    ("asked", "dim", "said"),
    [(32, 48, "choose 8 or 12 or 24"), (0, 384, "choose 1 or 2 or 3"), (8, 101, "take 256 codewords")],
)
def test_sizes_that_do_not_fit_are_refused_with_some_that_do(asked, dim, said):
    with pytest.raises(ConfigError, match="bytes_per_doc: given") as refused:
        PlainCodes(asked).count_books(dim)
    assert said in str(refused.value)


def test_who_asked_for_no_size_is_told_of_none():
    with pytest.raises(ConfigError, match="101 dimensions of the vectors; take 256 codewords") as refused:
        PlainCodes().count_books(101)
    assert "given" not in str(refused.value)
