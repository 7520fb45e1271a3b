"""A live index whose documents stand by cluster: places are not rows, and nobody may notice."""

from pathlib import Path

import numpy as np
import pytest

import bidr
from bidr.data.types import Document
from bidr.index.builder import coarse_clustering as clusters

COUNT, DIM = 600, 16


@pytest.mark.parametrize("engine", ["lists", "scan", "hnsw"])
@pytest.mark.parametrize("stored", ["fp16", "int8"])
def test_added_deleted_filtered_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, stored: str):
    monkeypatch.setattr(clusters, "MIN_ORDERED_DOCUMENTS", 100)
    random = np.random.default_rng(3)
    vectors = random.normal(size=(COUNT, DIM)).astype(np.float32)
    came = random.normal(size=(40, DIM)).astype(np.float32)
    bidr.build_vectors(vectors, None, tmp_path / "i", engine=engine, stored=stored, plain=bidr.PlainCodes(4, 16))
    assert (tmp_path / "i" / "000001" / "order.npy").exists()
    alive = {str(row): vectors[row] for row in range(50, COUNT)} | {f"new{row}": came[row] for row in range(40)}
    queries = random.normal(size=(5, DIM)).astype(np.float32)

    def check(where: dict | None = None) -> None:
        names = [name for name in alive if where is None or (name.startswith("new") and int(name[3:]) < 10)]
        unit = np.stack([alive[name] / np.linalg.norm(alive[name]) for name in names])
        with bidr.open_index(tmp_path / "i") as searcher:
            ranking = searcher.search_vectors(queries, 10, candidates=COUNT, filter=where)
            for query, answers, rows in zip(queries, searcher.load_results(ranking), ranking.scores, strict=True):
                scores = dict(zip(names, unit @ query / np.linalg.norm(query), strict=True))
                assert {answer.id for answer in answers} <= set(names)
                exact = sorted(scores.values(), reverse=True)[:10]
                assert [scores[answer.id] for answer in answers] == pytest.approx(exact, abs=0.02)
                assert rows[: len(answers)].tolist() == pytest.approx(exact, abs=0.02)

    with bidr.open_index(tmp_path / "i") as searcher:
        found = searcher.search_vectors(vectors[:7], 1, candidates=COUNT).rows[:, 0]
        assert found.tolist() == list(range(7)), "rows are those of the array that was given"
        view = searcher.reader.latest()
        assert sorted(view.rows_of(view.places()).tolist()) == list(range(COUNT))
    with bidr.open_writer(tmp_path / "i") as writer:
        writer.add([Document(f"new{row}", "", "", {"year": row}) for row in range(40)], 3 * came)
        writer.delete([str(row) for row in range(50)])
        check()
        check({"year": {"lt": 10}})
        writer.compact()
    check()
    check({"year": {"lt": 10}})
