"""Vectors of any size that 32 bits hold are brought to length 1."""

import numpy as np
import pytest

from bidr.data.vector_source import normalize_l2, open_vectors
from bidr.errors import DataError
from bidr.quantization.opq_config import PlainCodes

ROWS = np.random.default_rng(0).standard_normal((5, 384)).astype(np.float32)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e-35, 1e-25, 1e-15, 1e15, 1e18, 1e30, 5e37])
def test_vectors_of_any_magnitude_are_normalized(scale):
    wanted = normalize_l2(ROWS)
    mixed = np.concatenate([ROWS, ROWS * np.float32(scale), np.zeros((1, 384), np.float32)])
    found = normalize_l2(mixed)
    np.testing.assert_array_equal(found[:5], wanted)
    np.testing.assert_allclose(found[5:10], wanted, atol=1e-6)
    assert not found[10].any()


def test_normalizing_no_rows():
    assert normalize_l2(ROWS[:0]).shape == (0, 384)


def test_too_large_numbers_are_refused():
    rows = open_vectors(np.tile(ROWS, (20, 1)) * np.float32(1e30), "docs.npy", "ip")
    with pytest.raises(DataError, match=r"docs\.npy: a row holds a number of .*e\+30 in size, expected .* scale"):
        PlainCodes(8).fit(rows)
