"""Selection of the k-th largest key equals sorting and leaves the keys unchanged."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bidr.index.engines.topk import MAX_SELECTED, find_kth_largest, make_key

SCORES = st.sampled_from([0.0, -0.0, 1.0, 1e30, -1e30, 1e-40, 0.5, 0.5000001]) | st.floats(width=32, allow_nan=False)


@given(scores=st.lists(SCORES, min_size=1, max_size=40), times=st.sampled_from([1, 7, 60]), data=st.data())
@settings(max_examples=200, deadline=None)
def test_the_kth_largest_equals_that_of_sorting(scores: list[float], times: int, data: st.DataObject) -> None:
    bits = np.array(scores * times, dtype=np.float32).view(np.uint32)
    keys = np.array([make_key(score, row) for row, score in enumerate(bits)], dtype=np.uint64)
    original, k = keys.copy(), data.draw(st.integers(1, len(keys)))
    assert find_kth_largest(keys, len(keys), k) == np.sort(keys)[-k]
    assert (keys == original).all()


def test_consecutive_keys() -> None:
    keys = np.arange(10 * MAX_SELECTED, dtype=np.uint64)
    assert [find_kth_largest(keys, len(keys), k) for k in (1, 2, len(keys))] == [len(keys) - 1, len(keys) - 2, 0]
