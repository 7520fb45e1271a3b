"""The cross-encoder orders the best hits; what it does not reach in time keeps its order behind them."""

import numpy as np
import pytest
from sample_cross_encoder import write_cross_encoder

from bidr.data.types import Document
from bidr.errors import ConfigError, ModelError
from bidr.search import cross_encoder as module
from bidr.search.cross_encoder import CrossEncoder, rerank_result
from bidr.search.types import SearchHit, SearchResult, Timings


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return CrossEncoder(write_cross_encoder(tmp_path_factory.mktemp("cross") / "model"), threads=1)


def make_result(numbers: list[int]) -> SearchResult:
    hits = [
        SearchHit(rank, f"d{number}", 1 / rank, rank, 0.0, Document(f"d{number}", f"w{number}", "w1 w1"))
        for rank, number in enumerate(numbers, 1)
    ]
    return SearchResult(hits, Timings())


def test_hits_are_ordered_by_the_score_of_title_and_text(encoder):
    result = rerank_result(encoder, "w39 w39", make_result([3, 9, 1, 30, 7]), 4)
    assert [hit.id for hit in result] == ["d30", "d9", "d3", "d1", "d7"]
    assert [hit.rerank_score for hit in result] == [32, 11, 5, 3, None]
    assert [hit.rank for hit in result] == [1, 2, 3, 4, 5]
    assert result[0].candidate_rank == 4


def test_batches_give_the_scores_of_single_pairs(encoder, monkeypatch):
    texts = [" ".join(f"w{number % 40}" for number in range(row)) for row in range(1, 30)]
    whole = encoder.score("w5", texts)
    monkeypatch.setattr(module, "BATCH_PAIRS", 1)
    np.testing.assert_array_equal(encoder.score("w5", texts), whole)
    assert encoder.score("w5", []).size == 0


def test_what_is_not_reached_in_time_keeps_its_order(encoder, monkeypatch):
    monkeypatch.setattr(module, "BATCH_PAIRS", 2)
    now = iter([0.0, 1.0, 2.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(now))
    result = rerank_result(encoder, "w0", make_result([1, 2, 30, 20, 9]), 5, deadline=1.0)
    assert [hit.id for hit in result] == ["d2", "d1", "d30", "d20", "d9"]
    assert [hit.rerank_score for hit in result][2:] == [None] * 3


def test_long_texts_are_cut(encoder):
    assert np.isfinite(encoder.score("w1", ["w39 " * 10_000])).all()


def test_folders_that_are_none_are_refused(tmp_path, encoder):
    with pytest.raises(ModelError, match=r"model\.onnx"):
        CrossEncoder(tmp_path)
    two = CrossEncoder(write_cross_encoder(tmp_path / "two", outputs=2))
    with pytest.raises(ModelError, match="one finite number"):
        two.score("w1", ["w2"])
    (tmp_path / "two" / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="tokenizer"):
        CrossEncoder(tmp_path / "two")
    (tmp_path / "two" / "model.onnx").write_bytes(b"x")
    with pytest.raises(ModelError, match="cannot be opened"):
        CrossEncoder(tmp_path / "two")
    bare = SearchResult([SearchHit(1, "a", 1.0, 1, 1.0, None)], Timings())
    with pytest.raises(ConfigError, match="no texts"):
        rerank_result(encoder, "w1", bare, 5)
