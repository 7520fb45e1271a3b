import datetime
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_index import clustered, fitted
from sample_live_index import BOOKS, DIM, built, some, writer

from bidr.data.readers.beir import read_documents
from bidr.data.types import Document
from bidr.errors import ConfigError, IndexFolderError
from bidr.index.builder.build import build_index
from bidr.index.filters.filter_expression import match_filter, parse_filter, parse_filter_json
from bidr.index.live.live_reader import LiveIndex
from bidr.index.reader import IndexReader
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors

TIMES = ["2024-02-29", "2024-02-29T00:00:00Z", "2024-02-29 01:00+01:00", "2024-02-28T23:59:59.5-0030", "2023-02-29"]
WORDS = st.sampled_from(["", "a", "b", "ab", "ö", "z", "\\", '"', *TIMES])
NUMBERS = st.one_of(st.integers(-3, 3), st.sampled_from([0.5, -1.5, 2.0, 2**62, 1e300]))
SCALARS = st.one_of(WORDS, NUMBERS, st.booleans())
NAMES = st.sampled_from(["x", "y", "z"])
ATTRIBUTES = st.dictionaries(NAMES, st.one_of(SCALARS, st.lists(WORDS, max_size=3)), max_size=3)
RANGES = st.one_of(
    st.dictionaries(st.sampled_from(["gt", "gte", "lt", "lte"]), WORDS, min_size=1, max_size=2),
    st.dictionaries(st.sampled_from(["gt", "gte", "lt", "lte"]), NUMBERS, min_size=1, max_size=2),
)
OPTIONAL = {
    "any": st.lists(st.one_of(SCALARS, st.none()), min_size=1, max_size=3),
    "all": st.lists(SCALARS, min_size=1, max_size=2),
    "prefix": WORDS,
    "exists": st.booleans(),
}
OPERATORS = st.fixed_dictionaries({}, optional=OPTIONAL).filter(bool)
PLAIN = st.one_of(SCALARS, st.none(), RANGES, OPERATORS)
CONDITIONS = st.one_of(PLAIN, st.fixed_dictionaries({"not": PLAIN}, optional=OPTIONAL))
FILTERS = st.recursive(
    st.dictionaries(NAMES, CONDITIONS, min_size=1, max_size=2),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"or": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"and": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"not": inner}),
    ),
    max_leaves=4,
)


@given(st.lists(ATTRIBUTES, min_size=1, max_size=8), st.lists(FILTERS, min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_columns_match_as_documents_do(tmp_path_factory, attributes, filters):
    folder = tmp_path_factory.mktemp("columns") / "i"
    documents = [Document(str(row), "", "", given) for row, given in enumerate(attributes)]
    vectors = some(range(len(documents)))[1]
    build_index(folder, codebooks=BOOKS, codes=BOOKS.encode(vectors), vectors=vectors, documents=documents)
    with IndexReader.open(folder) as reader:
        for given_filter in filters:
            expression = parse_filter(json.loads(json.dumps(given_filter)))
            expected = [match_filter(expression, each) for each in attributes]
            assert reader.documents.columns.build_mask(expression).tolist() == expected, given_filter
        assert [(reader.documents.document(row).attributes or {}) for row in range(len(documents))] == attributes


def test_a_search_returns_the_best_matching_documents(tmp_path):
    index = built(tmp_path / "i", 40)
    queries = some([500, 501])[1]
    with writer(index) as live:
        live.add(*some(range(40, 50)))
        live.delete(["doc-8", "doc-44"])
        expression = {"even": True, "n": {"gte": 4, "lt": 48}}
        for step in (lambda: None, live.flush, live.compact):
            step()
            view = LiveIndex.open(index).latest()
            found = Searcher(view).search_vectors(QueryVectors(queries, queries), 100, filter=expression)
            passed = [number for number in range(4, 48, 2) if number not in (8, 44)]
            exact = queries @ some(passed)[1].astype(np.float16).astype(np.float32).T
            for rows, scores in zip(found.rows, exact, strict=True):
                expected = [f"doc-{passed[place]}" for place in np.argsort(-scores)]
                assert view.documents.ids(rows) == expected
            assert Searcher(view).search_vectors(QueryVectors(queries, queries), filter={"n": 1000}).rows.shape == (
                2,
                0,
            )
    with IndexReader.open(built(tmp_path / "plain", 10)) as reader:
        ranking = Searcher(reader).search_vectors(QueryVectors(queries, queries), 10, filter={"even": False})
        assert {
            answer.document.attributes["n"] % 2 for one in Searcher(reader).load_results(ranking) for answer in one
        } == {1}


@pytest.mark.parametrize(
    "given_filter",
    [{}, [], "x", {"a": [1]}, {"a": {}}, {"a": {"any": []}}, {"a": {"all": []}},
     {"a": {"prefix": 1}}, {"a": {"exists": 1}}, {"a": {"exists": None}}, {"a": {"not": {}}}, {"a": {"gte": None}},
     {"a": {"gte": 1, "lt": "x"}},
     {"a": {"gte": True}}, {"or": {}}, {"or": []}, {"not": 3}, {"a": {"near": 1}}, {"a": float("nan")}, {1: 2}],
)  # fmt: skip
def test_invalid_filters_are_refused(given_filter):
    with pytest.raises(ConfigError, match="filter"):
        parse_filter(given_filter)


VALUES = {
    "lang": ["en", "de", None, 3, ["en", "de"], []],
    "time": ["2024-02-29", "2024-03-01T00:30:00+01:00", "2024-03-01T00:00:00.000001Z", "soon", None],
}


@pytest.mark.parametrize(
    ("condition", "matching"),
    [
        ({"lang": None}, [2, 5]),
        ({"lang": {"exists": True}}, [0, 1, 3, 4]),
        ({"lang": {"exists": False}}, [2, 5]),
        ({"lang": {"not": "en"}}, [1, 2, 3, 5]),
        ({"lang": {"not": None}}, [0, 1, 3, 4]),
        ({"lang": {"not": {"any": ["en", 3]}}}, [1, 2, 5]),
        ({"lang": {"any": ["en", None]}}, [0, 2, 4, 5]),
        ({"lang": {"all": ["en", "de"]}}, [4]),
        ({"lang": {"prefix": "e"}}, [0, 4]),
        ({"lang": {"prefix": "", "not": "de"}}, [0]),
        ({"time": {"gte": "2024-02-29"}}, [0, 1, 2]),
        ({"time": {"gt": "2024-02-29", "lt": "2024-03-01"}}, [1]),
        ({"time": {"gt": "2024-03-01"}}, [2]),
        ({"time": {"lte": "2024-03-01T01:00:00+01:00"}}, [0, 1]),
        ({"time": {"gte": datetime.date(2024, 3, 1)}}, [2]),
        ({"time": {"gte": "2024", "lt": "t"}}, [0, 1, 2, 3]),
    ],
)
def test_operators(tmp_path, condition, matching):
    """As the documentation says; on documents and on columns."""
    (name,) = condition
    attributes = [{} if value is None else {name: value} for value in VALUES[name]]
    expression = parse_filter(condition)
    assert [row for row, given in enumerate(attributes) if match_filter(expression, given)] == matching
    index = built(tmp_path / "i", len(attributes), [Document(str(row), "", "", a) for row, a in enumerate(attributes)])
    with IndexReader.open(index) as reader:
        assert np.flatnonzero(reader.documents.columns.build_mask(expression)).tolist() == matching


@pytest.mark.parametrize(("share", "condition"), [
    (0.5, {"kind": {"not": "even"}}),
    (0.1, {"time": {"gte": "2024-01-01", "lt": "2024-01-01T02:24:00+00:00"}}),
    (0.01, {"path": {"prefix": "/07/"}}),
    (0.001, {"rare": {"exists": True}}),
])  # fmt: skip
def test_recall_under_new_operators_is_that_of_exact_search(tmp_path, share, condition):
    """Within .01 of the exact top 10 of what matches, at every selectivity."""
    count, queries = 5_000, clustered(20, DIM, 5)
    vectors = clustered(count, DIM, 6)

    def describe(row: int) -> dict:
        minute = datetime.datetime(2024, 1, 1) + datetime.timedelta(minutes=row * 7 % count * 1440 / count)
        attributes = {
            "kind": "even" if row % 2 == 0 else "odd",
            "time": minute.isoformat(),
            "path": f"/{row % 100:02}/x",
        }
        return attributes | ({"rare": row} if row % 1000 == 7 else {})

    documents = [Document(str(row), "", "", describe(row)) for row in range(count)]
    books = fitted(vectors, 4, 16)
    options = {"codebooks": books, "codes": books.encode(vectors), "vectors": vectors, "engine": "lists"}
    build_index(tmp_path / "i", documents=documents, **options)
    with LiveIndex.open(tmp_path / "i") as reader:
        expression = parse_filter(condition)
        allowed = np.array([match_filter(expression, document.attributes) for document in documents])
        assert allowed.mean() == pytest.approx(share, rel=0.05)
        ranking = Searcher(reader).search_vectors(QueryVectors(queries, queries), 10, 400, filter=condition)
        exact = np.where(allowed, queries @ vectors.T, -np.inf)
        k = min(10, int(allowed.sum()))
        hits = [len({*rows.tolist()} & {*np.argsort(-row)[:k].tolist()}) / k
                for rows, row in zip(ranking.rows, exact, strict=True)]  # fmt: skip
        assert np.mean(hits) >= 0.99


def test_depth_is_bounded_and_json_is_checked():
    deep = {"a": 1}
    for _ in range(100):
        deep = {"not": deep}
    operand = 1
    for _ in range(100):
        operand = {"not": operand}
    with pytest.raises(ConfigError, match="flatter"):
        parse_filter(deep)
    with pytest.raises(ConfigError, match="flatter"):
        parse_filter({"a": operand})
    with pytest.raises(ConfigError, match="not JSON"):
        parse_filter_json("{")


def test_a_damaged_column_is_found_by_the_filter_that_reads_it(tmp_path):
    index = built(tmp_path / "i", 10)
    for path in (index / "000001").glob("column.*"):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with IndexReader.open(index) as reader, pytest.raises(IndexFolderError, match=path.name):
            reader.select({"n": 1, "even": True}).count  # noqa: B018
        path.write_bytes(content)


def test_metadata_of_a_corpus_becomes_attributes(tmp_path):
    metadata = {"url": "u", "year": 3, "nested": {}, "none": None, "tags": ["a"], "empty": [], "mixed": ["a", 1]}
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"_id": "1", "text": "x", "metadata": metadata}))
    assert next(read_documents(tmp_path / "corpus.jsonl"))[1].attributes == {"url": "u", "year": 3, "tags": ["a"]}


def test_one_and_true_are_different_filters(tmp_path):
    """Python takes them for the same key, and kept answers go by the filter."""
    documents = [Document("one", "", "", {"x": 1}), Document("true", "", "", {"x": True})]
    vectors = some([0, 1])[1]
    build_index(tmp_path / "i", codebooks=BOOKS, codes=BOOKS.encode(vectors), vectors=vectors, documents=documents)
    with IndexReader.open(tmp_path / "i") as reader:
        for value, expected in ((1, [0]), (True, [1]), (1, [0])):
            found = Searcher(reader).search_vectors(QueryVectors(vectors[:1], vectors[:1]), filter={"x": value})
            assert found.rows[0].tolist() == expected


def test_deleted_rows_take_two_bits_each(tmp_path):
    with writer(built(tmp_path / "i", 40)) as live:
        live.delete(["doc-8", "doc-31"])
        view = LiveIndex.open(tmp_path / "i").latest()
        assert view.count == 38
        assert view.candidates.ram_bytes["deleted"] == 10
