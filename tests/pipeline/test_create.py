"""An index that starts empty: exact until there are enough documents, then with codes; readers see no gap."""

import numpy as np
import pytest
from sample_index import clustered

import bidr
from bidr.data.types import Document
from bidr.errors import ConfigError, DataError, IndexFolderError
from bidr.index.live.live_reader import LiveIndex

DIM = 32
VECTORS = clustered(400, DIM, 3)


def make_documents(start: int, end: int) -> tuple[list[Document], np.ndarray]:
    documents = [Document(f"d{row}", f"Title {row}", f"words {row}", {"n": row}) for row in range(start, end)]
    return documents, VECTORS[start:end]


def check_exact(folder, count: int, depth: int) -> float:
    """Return the recall of the exact top 10; `depth`: candidates."""
    queries = clustered(8, DIM, 9)
    exact = queries @ make_documents(0, count)[1].astype(np.float16).astype(np.float32).T
    with bidr.open_index(folder) as searcher:
        results = searcher.load_results(searcher.search_vectors(queries, 10, depth))
        assert searcher.count() == count
    best = [{f"d{row}" for row in np.argsort(-row)[:10]} for row in exact]
    return float(np.mean([len({hit.id for hit in hits} & ids) / 10 for hits, ids in zip(results, best, strict=True)]))


@pytest.mark.parametrize("metric", ["cosine", "ip"])
def test_an_index_starts_empty_and_gets_codes(tmp_path, metric):
    index = bidr.create_index(tmp_path / "i", DIM, metric=metric, bytes_per_doc=4, fit_documents=300)
    with bidr.open_index(index) as searcher:
        assert searcher.count() == 0
        assert searcher.load_results(searcher.search_vectors(clustered(2, DIM, 9), 5)) == [[], []]
        assert searcher.schema() == []
        assert list(searcher.scroll()) == []
    reader = LiveIndex.open(index)
    with bidr.open_writer(index, log_documents=64) as writer:
        for start in range(0, 240, 60):
            writer.add(*make_documents(start, start + 60))
            assert not writer.view.has_codes
            assert check_exact(index, start + 60, 10) == 1.0
        writer.delete(["d7"])
        writer.add(*make_documents(7, 8))
        writer.compact()
        assert check_exact(index, 240, 10) == 1.0
        view = reader.refresh_now()
        writer.set_attributes({"d5": {"n": 1000}})
        writer.add(*make_documents(240, 320))
        assert writer.view.has_codes
        assert view.count == 240, "a reader keeps its state"
        assert reader.refresh_now().manifest.books == 8
        writer.add(*make_documents(320, 330))
        writer.compact()
    assert check_exact(index, 330, 10) > 0.2
    assert check_exact(index, 330, 330) == 1.0
    LiveIndex.open(index).verify()
    with bidr.open_index(index) as searcher:
        assert searcher.get(["d5"])["d5"] == Document("d5", "Title 5", "words 5", {"n": 1000})
        assert searcher.count({"n": {"exists": True}}) == 330


def test_settings_travel_with_a_snapshot_and_invalid_ones_are_refused(tmp_path):
    index = bidr.create_index(tmp_path / "i", DIM, bytes_per_doc=4, codewords=256, fit_documents=256, lexical="prepend")
    bidr.snapshot(index, tmp_path / "copy")
    with bidr.open_writer(tmp_path / "copy") as writer:
        with pytest.raises(DataError, match="256 or more"):
            writer.fit_codes()
        writer.add(*make_documents(0, 256))
        assert writer.view.manifest.books == 4
    (index / "codes.json").write_text("{")
    with bidr.open_writer(index) as writer, pytest.raises(IndexFolderError, match=r"codes\.json"):
        writer.add(*make_documents(0, 3))
    for options in ({"dim": 0}, {"dim": 2.5}, {"dim": DIM, "bytes_per_doc": 0}, {"dim": DIM, "fit_documents": 3},
                    {"dim": DIM, "metric": "l7"}):  # fmt: skip
        with pytest.raises(ConfigError, match="given"):
            bidr.create_index(tmp_path / "new", **options)
        assert not (tmp_path / "new").exists()
    with pytest.raises(ConfigError, match="exists already"):
        bidr.create_index(index, DIM)
