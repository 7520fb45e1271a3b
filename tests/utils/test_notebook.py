"""Objects are shown in notebooks: short, escaped, without colours of their own."""

from pathlib import Path

import numpy as np
import pytest

import bidr
from bidr.search.types import SearchHit, SearchResult, Timings
from bidr.utils.notebook import render_table, truncate_text

EVIL = "<script>alert('x')</script>"


def test_texts_are_short_escaped_and_on_one_line() -> None:
    table = render_table(EVIL, [EVIL], [[EVIL * 50 + "\n\x07\ud800"]])
    assert "<script>" not in table
    assert "&lt;script&gt;" in table
    assert len(truncate_text("word " * 100)) <= 120
    assert truncate_text("a\n\tb\x00c") == "a b c"
    assert "color:#" not in table
    assert "background:none" in table


def test_a_dataset_shows_its_first_documents(tmp_path: Path) -> None:
    dataset = bidr.load([{"id": f"d{row}", "text": EVIL, "year": row} for row in range(5)])
    assert repr(dataset) == "Dataset('data', 5 documents)"
    assert len(dataset) == 5
    html = dataset._repr_html_()
    assert html.count("<tr>") == 4
    assert "<script>" not in html
    assert "year: 2" in html
    (tmp_path / "t.csv").write_text("text\na\n", encoding="utf-8")
    from_file = bidr.load(tmp_path / "t.csv")
    assert "not counted yet" in repr(from_file)
    assert len(from_file) == 1
    assert "1 documents" in repr(from_file)
    (tmp_path / "t.csv").write_text("text\na,b\n", encoding="utf-8")
    assert "expected 1 as in the header" in bidr.load(tmp_path / "t.csv")._repr_html_()


def test_a_result_shows_its_hits() -> None:
    document = bidr.Document("d1", "Title", EVIL, {"lang": "en"})
    hits = [SearchHit(rank, "d1", 0.5, 1, 0.5, document if rank == 1 else None) for rank in range(1, 31)]
    result = SearchResult(hits, Timings(1.0, 0.5))
    assert repr(result).startswith("30 hits in 1.5 ms\n   1     0.5000  d1  Title: <script>")
    assert repr(result).endswith("and 10 more")
    html = result._repr_html_()
    assert "the first 20" in html
    assert "<script>" not in html
    assert "lang: en" in html
    assert repr(SearchResult([], Timings())) == "0 hits in 0.0 ms"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    vectors = np.random.default_rng(0).normal(size=(32, 8)).astype(np.float32)
    return bidr.build_vectors(vectors, out=tmp_path_factory.mktemp("index") / "index")


def test_an_index_and_a_writer_show_what_they_hold(index: Path) -> None:
    with bidr.open_index(index) as searcher:
        assert len(searcher) == 32
        assert repr(searcher) == f"OpenIndex({str(index)!r}, 32 documents, 8 dimensions, cosine)"
        assert "ranked by cosine" in searcher._repr_html_()
    with bidr.open_writer(index) as writer:
        assert len(writer) == 32
        assert repr(writer) == f"LiveWriter({str(index)!r}, 32 documents)"
        writer.delete(["3"])
        assert len(writer) == 31
    assert "31 documents" in repr(writer)
