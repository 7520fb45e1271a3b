"""Codes that nobody asked a size for fit the dimensions; sizes that do not are refused with some that do."""

import numpy as np
import pytest

from bidr.data.vector_source import VectorSource
from bidr.errors import ConfigError
from bidr.quantization.opq_config import PlainCodes


@pytest.mark.parametrize(
    ("dim", "codewords", "books"),
    [(384, 16, 64), (384, 256, 32), (300, 16, 60), (48, 16, 48), (48, 256, 24), (101, 256, 1)],
)
def test_default_size_is_the_largest_valid_up_to_32_bytes(dim, codewords, books):
    assert PlainCodes(codewords=codewords).count_books(dim) == books


@pytest.mark.parametrize(
    ("asked", "dim", "said"),
    [(32, 48, "choose 8 or 12 or 24"), (0, 384, "expected 1 or more"), (8, 101, "take 256 codewords")],
)
def test_refused_sizes_name_valid_ones(asked, dim, said):
    with pytest.raises(ConfigError, match="bytes_per_doc: given") as refused:
        PlainCodes(asked).count_books(dim)
    assert said in str(refused.value)


def test_without_a_size_errors_name_no_size():
    with pytest.raises(ConfigError, match="101 dimensions of the vectors; take 256 codewords") as refused:
        PlainCodes().count_books(101)
    assert "given" not in str(refused.value)


def test_fitting_shows_progress(capsys):
    vectors = np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32)
    PlainCodes(2).fit(VectorSource(vectors, "vectors", "ip"))
    assert "fit codebooks: 40/40 iterations" in capsys.readouterr().err
