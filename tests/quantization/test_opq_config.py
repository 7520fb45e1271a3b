"""Codes that nobody asked a size for fit the dimensions."""

import numpy as np
import pytest

from bidr.data.vector_source import VectorSource
from bidr.quantization.opq_config import PlainCodes


@pytest.mark.parametrize(
    ("dim", "codewords", "books"),
    [(384, 16, 64), (384, 256, 32), (300, 16, 60), (48, 16, 48), (48, 256, 24), (101, 256, 32)],
)
def test_default_size_is_the_largest_valid_up_to_32_bytes_or_is_padded(dim, codewords, books):
    assert PlainCodes(codewords=codewords).count_books(dim) == books


def test_fitting_shows_progress(capsys):
    vectors = np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32)
    PlainCodes(2).fit(VectorSource(vectors, "vectors", "ip"))
    assert "fit codebooks: 40/40 iterations" in capsys.readouterr().err
