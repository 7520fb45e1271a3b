"""Lexical index: scores equal BM25 in memory, and its candidates unite with those of the codes in every engine."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from bm25_formula import score_texts
from sample_live_index import BOOKS, DIM, clustered, writer

from bidr.data.types import Document
from bidr.errors import ConfigError, IndexFolderError
from bidr.index.builder.build import build_index
from bidr.index.filters.filter_expression import parse_filter
from bidr.index.lexical import bm25, postings_files
from bidr.index.lexical.postings import Postings, TermCounts
from bidr.index.live.lexical_search import LiveLexicalSearcher
from bidr.index.live.live_reader import LiveIndex
from bidr.index.live.snapshot import write_snapshot
from bidr.index.reader import IndexReader
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors

COUNT = 300
TERMS = [a + b + c for a in "bdfgk" for b in "aeiou" for c in ("lmo", "rto", "nzi", "xu")]


def make_documents(numbers: range | list[int], version: int = 0) -> list[Document]:
    """Documents of random terms with a skewed frequency, and their number as an attribute."""
    texts = []
    for number in numbers:
        random = np.random.default_rng([number, version])
        drawn = (random.random(int(random.integers(0, 30))) ** 3 * len(TERMS)).astype(int)
        texts.append(" ".join(TERMS[row] for row in drawn))
    titles = [f"Title {number % 7}" if number % 3 else "" for number in numbers]
    return [Document(f"d{n}", title, text, {"n": n}) for n, title, text in zip(numbers, titles, texts, strict=True)]


def make_vectors(numbers: range | list[int]) -> np.ndarray:
    return np.array([clustered(1, DIM, seed=number)[0] for number in numbers], dtype=np.float32)


QUERIES = ["balmo berto", "binzi and the title 3", "guxu guxu dalmo", "nothing of that", ""]
QUERY_VECTORS = QueryVectors(clustered(5, DIM, seed=77), clustered(5, DIM, seed=78))


def build(folder: Path, count: int = COUNT, lexical: str | None = "prepend", engine: str = "scan") -> Path:
    vectors = make_vectors(range(count))
    how = {"documents": make_documents(range(count)), "lexical": lexical, "engine": engine}
    build_index(folder, codebooks=BOOKS, codes=BOOKS.encode(vectors), vectors=vectors, **how)
    return folder


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> Path:
    return build(tmp_path_factory.mktemp("lexical") / "index")


def search_terms(folder: Path, k: int, filter: object = None) -> tuple[np.ndarray, list[list[str]]]:
    view = LiveIndex.open(folder).latest()
    found = LiveLexicalSearcher(view, None if filter is None else parse_filter(filter)).search(QUERIES, k)
    ids = [view.documents.ids(view.rows_of(row[row >= 0])) for row in found.places]
    return found.scores, ids


def rank_hits(folder: Path, k: int = 10, candidates: int = 20, **options: object) -> list[list[tuple]]:
    searcher = Searcher(LiveIndex.open(folder), candidates=candidates, **options)
    answers = searcher.load_results(searcher.search_vectors(QUERY_VECTORS, k, words=QUERIES))
    return [[(one.id, one.score, one.candidate_rank, one.word_rank) for one in each] for each in answers]


@pytest.mark.parametrize(("titles", "engine"), [("prepend", "scan"), ("ignore", "lists")])
def test_scores_equal_bm25_in_memory(tmp_path, titles, engine):
    folder = build(tmp_path / "index", lexical=titles, engine=engine)
    documents = make_documents(range(COUNT))
    texts = [f"{each.title} {each.text}" if titles == "prepend" else each.text for each in documents]
    scores, ids = search_terms(folder, 40)
    assert np.isneginf(scores[3:]).all()
    assert ids[3:] == [[], []]
    rows = {document.id: row for row, document in enumerate(documents)}
    for query, values, names in zip(QUERIES, scores, ids, strict=True):
        expected = score_texts(texts, query)
        np.testing.assert_allclose(values[: len(names)], np.sort(expected)[::-1][: len(names)], rtol=1e-5)
        np.testing.assert_allclose(values[: len(names)], expected[[rows[name] for name in names]], rtol=1e-5)


def test_blocks_and_spilling_do_not_change_files_or_scores(index, tmp_path, monkeypatch):
    monkeypatch.setattr(postings_files, "RECORDS_IN_MEMORY", 100)
    monkeypatch.setattr(postings_files, "DOCUMENTS_PER_BATCH", 16)
    spilled = build(tmp_path / "spilled")
    for name in (
        postings_files.METADATA,
        postings_files.HASHES,
        postings_files.OFFSETS,
        postings_files.POSITIONS,
        postings_files.COUNTS,
        postings_files.LENGTHS,
    ):
        assert (spilled / "000001" / name).read_bytes() == (index / "000001" / name).read_bytes()
    assert not [path for path in (spilled / "000001").iterdir() if path.name.startswith("tmp")]
    whole = search_terms(index, 15)
    for name, value in (("POSITIONS_PER_BLOCK", 7), ("SPARE_HITS", 0)):
        monkeypatch.setattr(bm25, name, value)
    keep = bm25._keep_best.py_func
    monkeypatch.setattr(bm25, "_keep_best", keep)
    monkeypatch.setattr(bm25, "_search", bm25._search.py_func)
    pieces = search_terms(index, 15)
    assert pieces[1] == whole[1]
    np.testing.assert_allclose(pieces[0], whole[0], rtol=1e-6)


def test_equal_scores_are_ordered_by_position(tmp_path):
    documents = [Document(f"d{row}", "", "berto" if row < 10 else "balmo") for row in range(20)]
    arrays = {"codebooks": BOOKS, "codes": BOOKS.encode(make_vectors(range(20))), "vectors": make_vectors(range(20))}
    build_index(tmp_path / "index", **arrays, documents=documents, lexical="prepend")
    assert search_terms(tmp_path / "index", 5)[1][0] == [f"d{row}" for row in range(5)]


@pytest.mark.parametrize("engine", ["scan", "lists", "hnsw"])
def test_union_contains_candidates_of_both_once(tmp_path, engine):
    folder = build(tmp_path / "index", engine=engine)
    with IndexReader.open(folder) as reader:
        searcher = Searcher(reader, candidates=20)
        codes = searcher.search_vectors(QUERY_VECTORS, 10)
        joined = searcher.search_vectors(QUERY_VECTORS, 10, words=QUERIES, lexical=15)
        rows = joined.candidate_rows
        for number, by_words in enumerate(search_terms(folder, 15)[1]):
            there = [row for row in rows[number].tolist() if row >= 0]
            assert len(set(there)) == len(there)
            assert set(reader.documents.ids(there)) == {
                *reader.documents.ids(codes.candidate_rows[number]),
                *by_words,
            }


def test_hits_have_the_ranks_of_codes_and_terms(index):
    _, by_words = search_terms(index, 15)
    codes = rank_hits(index, k=20)
    for number, answers in enumerate(rank_hits(index, k=20, lexical=15)):
        of_codes = {name: rank for name, _, rank, _ in codes[number]}
        for name, _, code_rank, word_rank in answers:
            assert code_rank == of_codes.get(name, 0)
            assert word_rank == (by_words[number].index(name) + 1 if name in by_words[number] else 0)
            assert code_rank or word_rank
        scores = [score for _, score, _, _ in answers]
        assert scores == sorted(scores, reverse=True)


def test_without_words_nothing_changes(index, tmp_path):
    plain = build(tmp_path / "plain", lexical=None)
    assert rank_hits(index, lexical=0) == rank_hits(plain)
    assert rank_hits(index, lexical=0, lexical_weight=1.0) == rank_hits(plain)


def test_full_depth_is_exact_search(index):
    exact = np.argsort(-(QUERY_VECTORS.vectors @ make_vectors(range(COUNT)).T), axis=1)[:, :10]
    for answers, rows in zip(rank_hits(index, candidates=COUNT, lexical=COUNT), exact, strict=True):
        assert [name for name, *_ in answers] == [f"d{row}" for row in rows]


def test_a_weight_ranks_by_words(index):
    weighed = rank_hits(index, lexical=15, lexical_weight=1e4)
    for answers, by_words in zip(weighed[:3], search_terms(index, 10)[1], strict=False):
        assert {name for name, *_ in answers[:3]} <= set(by_words)
    # What the codes found has its BM25 score too, though it is not among the best by words.
    narrow, wide = rank_hits(index, lexical=1, lexical_weight=0.3), rank_hits(index, lexical=15, lexical_weight=0.3)
    for few, many in zip(narrow, wide, strict=True):
        scores = {name: value for name, value, rank, _ in many if rank}
        for name, value, rank, _ in few:
            if rank and name in scores:
                assert value == pytest.approx(scores[name], abs=1e-5)


@pytest.fixture
def changed(tmp_path) -> Path:
    """Segments of 100 and 60 documents and a log of 40, some replaced, some deleted in each."""
    folder = build(tmp_path / "index", 100)
    with writer(folder) as live:
        live.add(make_documents(range(100, 160)), make_vectors(range(100, 160)))
        live.delete(["d1", "d2", "d150"])
        live.flush()
        live.add(make_documents(range(160, 200)), make_vectors(range(160, 200)))
        live.add(make_documents([5, 120, 170], version=1), make_vectors([5, 120, 170]))
        live.delete(["d3", "d121", "d180"])
    return folder


def alive() -> dict[str, Document]:
    documents = {each.id: each for each in [*make_documents(range(200)), *make_documents([5, 120, 170], version=1)]}
    return {name: each for name, each in documents.items() if name not in ("d1", "d2", "d150", "d3", "d121", "d180")}


def test_added_documents_are_found_and_deleted_ones_never(changed):
    texts = {name: f"{each.title} {each.text}".lower().split() for name, each in alive().items()}
    _, ids = search_terms(changed, 300)
    for question, names in zip([["balmo", "berto"], ["binzi", "title", "3"], ["guxu", "dalmo"]], ids, strict=False):
        assert set(names) == {name for name, own in texts.items() if set(own) & set(question)}
    everywhere = {name for answers in rank_hits(changed, k=200, candidates=200, lexical=200) for name, *_ in answers}
    assert everywhere == set(alive())


def test_compacted_scores_are_those_of_all_documents(changed):
    documents = list(alive().values())
    with writer(changed) as live:
        live.compact()
    texts = [f"{each.title} {each.text}" for each in documents]
    for query, scores in zip(QUERIES, search_terms(changed, 30)[0], strict=True):
        expected = np.sort(score_texts(texts, query))[::-1][:30]
        np.testing.assert_allclose(scores[np.isfinite(scores)], expected[expected > 0], rtol=1e-5)


def test_frequencies_are_those_of_all_parts(tmp_path):
    """Segments and a log without deletions score as one index of the same documents does."""
    whole, parts = build(tmp_path / "whole", 160), build(tmp_path / "parts", 100)
    with writer(parts) as live:
        live.add(make_documents(range(100, 140)), make_vectors(range(100, 140)))
        live.flush()
        live.add(make_documents(range(140, 160)), make_vectors(range(140, 160)))
    one, other = search_terms(whole, 50), search_terms(parts, 50)
    np.testing.assert_array_equal(one[0], other[0])
    assert one[1] == other[1]


def test_filters_hold_for_words_too(changed):
    asked = {"n": {"gte": 90, "lt": 175}}
    passing = {name for name, each in alive().items() if 90 <= each.attributes["n"] < 175}
    _, every = search_terms(changed, 300)
    _, some = search_terms(changed, 300, asked)
    assert [[name for name in names if name in passing] for names in every] == some
    searcher = Searcher(LiveIndex.open(changed), candidates=20, lexical=30)
    found = searcher.load_results(searcher.search_vectors(QUERY_VECTORS, 30, words=QUERIES, filter=asked))
    assert {one.id for each in found for one in each} <= passing


def test_a_snapshot_has_the_words(changed, tmp_path):
    before = search_terms(changed, 20)
    copied = write_snapshot(changed, tmp_path / "copy")
    LiveIndex.open(copied).verify()
    assert search_terms(copied, 20)[1] == before[1]


def test_asking_an_index_without_words_is_refused(tmp_path):
    plain = build(tmp_path / "plain", 20, lexical=None)
    with pytest.raises(ConfigError, match="built without lexical index"):
        rank_hits(plain, lexical=5)
    with pytest.raises(ConfigError, match="words too"):
        Searcher(LiveIndex.open(build(tmp_path / "index", 20)), lexical=5).search_vectors(QUERY_VECTORS)
    with pytest.raises(ConfigError, match="lexical: given -1"):
        Searcher(LiveIndex.open(plain), lexical=-1)


def test_texts_are_needed_to_index_words(tmp_path):
    vectors = make_vectors(range(20))
    arrays = {"codebooks": BOOKS, "codes": BOOKS.encode(vectors), "vectors": vectors}
    for names in ({}, {"ids": [f"d{row}" for row in range(20)]}):
        with pytest.raises(ConfigError, match="lexical"):
            build_index(tmp_path / "index", **arrays, **names, lexical="prepend")


def test_documents_without_terms_can_be_indexed(tmp_path):
    vectors = make_vectors(range(5))
    documents = [Document(f"d{row}", "", "") for row in range(5)]
    arrays = {"codebooks": BOOKS, "codes": BOOKS.encode(vectors), "vectors": vectors, "documents": documents}
    build_index(tmp_path / "index", **arrays, lexical="prepend")
    assert search_terms(tmp_path / "index", 5)[1] == [[]] * 5


def test_unsorted_positions_are_refused_as_damage(monkeypatch):
    monkeypatch.setattr(bm25, "POSITIONS_PER_BLOCK", 4)
    monkeypatch.setattr(bm25, "_search", bm25._search.py_func)
    postings = Postings.from_counts(TermCounts(*(np.array(values) for values in ([7, 7], [3, 8], [1, 1], [1] * 12))))
    query = bm25.WeightedTerms(np.array([0]), np.array([2]), np.ones(1, np.float32))
    none = np.empty(0, dtype=np.int64)
    assert bm25.search_postings(postings, query, 1.0, 5, None, none)[1].tolist() == [3, 8]
    assert (
        bm25.search_postings(postings._replace(positions=postings.positions[::-1]), query, 1.0, 5, None, none) is None
    )


def test_damaged_postings_never_read_out_of_bounds(index, tmp_path):
    """With any byte changed, a search succeeds or reports damage, and `verify` reports it."""
    broken = write_snapshot(index, tmp_path / "broken")
    for name in (
        postings_files.METADATA,
        postings_files.HASHES,
        postings_files.OFFSETS,
        postings_files.POSITIONS,
        postings_files.COUNTS,
        postings_files.LENGTHS,
    ):
        path = broken / "000001" / name
        content = path.read_bytes()
        path.unlink()  # a snapshot's files are links
        for offset in range(0, len(content), max(1, len(content) // 25)):
            changed = bytearray(content)
            changed[offset] ^= 0x80
            path.write_bytes(changed)
            with suppress(IndexFolderError):
                search_terms(broken, 20)
            with pytest.raises(IndexFolderError):
                LiveIndex.open(broken).verify()
        path.write_bytes(content)
    LiveIndex.open(broken).verify()
