from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_live_index import BOOKS, built, contents, expected, some, writer

from bidr.errors import DataError, IndexFolderError
from bidr.index.engines import engine_choice as choose
from bidr.index.filters.filter_expression import match_filter, parse_filter
from bidr.index.live.document_list import list_documents
from bidr.index.live.live_reader import LiveIndex
from bidr.index.live.view import LiveView
from bidr.index.storage import commit as generation
from bidr.index.storage.manifest import hash_bytes, parse_manifest, render_manifest
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors


def test_add_replace_and_delete_are_seen_and_last(tmp_path):
    index = built(tmp_path / "i")
    reader = LiveIndex.open(index)
    assert contents(reader.refresh_now()) == expected(range(6))
    with writer(index) as live:
        live.add(*some([6, 7]))
        assert contents(reader.refresh_now()) == expected(range(8))
        live.add(*some([1, 7], version=1))
        assert live.delete(["doc-0", "doc-6"]) == 2
        wanted = {**expected(range(2, 6)), **expected([1, 7], 1)}
        assert contents(reader.refresh_now()) == contents(index) == wanted
        for step in (live.flush, live.flush, live.compact, live.compact):
            step()
            assert contents(reader.refresh_now()) == contents(index) == wanted
            LiveIndex.open(index).verify()
    assert len(reader.refresh_now().segments) == 1
    with writer(index) as live:
        live.add(*some([0]))
    assert contents(index) == {**wanted, **expected([0])}


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True)),
        st.tuples(st.just("delete"), st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True)),
        st.tuples(
            st.sampled_from(["price", "drop"]), st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True)
        ),
        st.tuples(st.sampled_from(["flush", "compact", "reopen", "price even", "delete priced"]), st.none()),
    ),
    max_size=12,
)


@given(OPERATIONS, st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_any_sequence_of_operations_equals_a_dictionary(tmp_path_factory, operations, log_documents):
    index = built(tmp_path_factory.mktemp("law") / "i", 3)
    wanted = expected(range(3))
    live = writer(index, log_documents=log_documents, segments=2)
    for version, (name, numbers) in enumerate(operations, start=1):
        if name == "add":
            live.add(*some(numbers, version))
            wanted.update(expected(numbers, version))
        elif name == "delete":
            ids = [f"doc-{number}" for number in numbers]
            assert live.delete(ids, missing_ok=True) == sum(wanted.pop(each, None) is not None for each in ids)
        elif name in ("price", "drop"):
            price = version if name == "price" else None
            changes = {f"doc-{number}": {"price": price} for number in numbers}
            assert live.set_attributes(changes, missing_ok=True) == len(wanted.keys() & changes)
            wanted |= {each: set_price(wanted[each], price) for each in wanted.keys() & changes}
        elif name == "price even":
            even = [each for each, fields in wanted.items() if fields[2]["even"]]
            assert live.set_attributes_where({"even": True}, {"price": version}) == len(even)
            wanted |= {each: set_price(wanted[each], version) for each in even}
        elif name == "delete priced":
            priced = [each for each, fields in wanted.items() if "price" in fields[2]]
            assert live.delete_where({"price": {"exists": True}}) == len(priced)
            wanted = {each: fields for each, fields in wanted.items() if each not in priced}
        elif name == "reopen":
            live.close()
            live = writer(index, log_documents=log_documents, segments=2)
        else:
            getattr(live, name)()
        assert contents(live.view) == wanted
        check_filters(live.view, wanted)
    live.close()
    reader = LiveIndex.open(index)
    reader.verify()
    assert contents(reader.latest()) == wanted
    check_search(reader.latest(), wanted)


def set_price(fields: tuple, price: int | None) -> tuple:
    attributes = {name: value for name, value in fields[2].items() if name != "price"}
    return (*fields[:2], attributes if price is None else attributes | {"price": price}, fields[3])


def check_filters(view: LiveView, wanted: dict) -> None:
    """Filters select, count and list by the current attributes."""
    for condition in ({"price": {"exists": True}}, {"price": None, "even": True}, {"price": {"gte": 3}}):
        expression = parse_filter(condition)
        matching = {name for name, fields in wanted.items() if match_filter(expression, fields[2])}
        assert view.count_matching(expression) == view.select(condition).count == len(matching)
        listed, cursor = [], None
        while True:
            page = list_documents(view, expression, 2, cursor)
            listed += page.documents
            if (cursor := page.cursor) is None:
                break
        assert len(listed) == len(matching)
        assert {document.id: document.attributes for document in listed} == {name: wanted[name][2] for name in matching}


def check_search(view: LiveView, wanted: dict) -> None:
    """With all documents as candidates every one of them comes up, in the order of exact search."""
    queries = some([3, 99])[1]
    ranking = Searcher(view).search_vectors(QueryVectors(queries, queries), 10**6)
    assert ranking.rows.shape == (2, len(wanted))
    for query, rows in zip(queries, ranking.rows, strict=True):
        ids = view.documents.ids(rows)
        exact = {
            name: float(np.frombuffer(value[3], np.float16).astype(np.float32) @ query)
            for name, value in wanted.items()
        }
        assert set(ids) == set(exact)
        scores = [exact[name] for name in ids]
        assert all(first >= second - 1e-5 for first, second in pairwise(scores))


def test_code_scores_of_the_log_are_those_of_a_segment(tmp_path):
    index = built(tmp_path / "i", 40)
    queries = some([500, 501])[1]
    with writer(index) as live:
        live.add(*some(range(20, 30)))
        before = live.view.candidates.search(queries, 40)
        live.compact()
        after = live.view.candidates.search(queries, 40)
        np.testing.assert_allclose(before[0], after[0], atol=1e-5)
        assert [set(live.view.documents.ids(rows)) for rows in after[1]] == [{f"doc-{n}" for n in range(40)}] * 2
    direct = BOOKS.compute_scores(queries, BOOKS.encode(some(range(40))[1]))
    np.testing.assert_allclose(after[0], -np.sort(-direct, axis=1), atol=1e-4)


def test_short_results_are_padded(tmp_path):
    index = built(tmp_path / "i", 3)
    with writer(index) as live:
        live.delete(["doc-0", "doc-1", "doc-2"])
        queries = some([1])[1]
        assert Searcher(live.view).search_vectors(QueryVectors(queries, queries), 5).rows.shape == (1, 0)
        live.compact()
        assert contents(index) == {}
        live.add(*some([9]))
        scores, rows = live.view.candidates.search(queries, 3)
        assert (rows[0] >= 0).tolist() == [True, False, False]
        assert np.isneginf(scores[0, 1:]).all()


def test_what_cannot_be_added_or_deleted_changes_nothing(tmp_path):
    index = built(tmp_path / "i")
    documents, vectors = some([8, 9])
    with writer(index) as live:
        for given_documents, given_vectors, message in (
            ([documents[0], documents[0]], vectors, "given twice"),
            ([documents[0]._replace(id=""), documents[1]], vectors, "expected a string that is not empty"),
            (documents, vectors[:, :8], "given shape"),
            (documents, vectors * np.nan, "finite"),
            (documents, vectors * 1e6, "above 65,504"),
            ([documents[0]._replace(attributes={"a": {}}), documents[1]], vectors, 'attribute "a": given {}'),
            ([documents[0]._replace(attributes={"not": 1}), documents[1]], vectors, 'attribute\'s name: given "not"'),
        ):
            with pytest.raises(DataError, match=message):
                live.add(given_documents, given_vectors)
        with pytest.raises(DataError, match="no document 'ghost'"):
            live.delete(["doc-1", "ghost"])
        assert live.delete(["ghost"], missing_ok=True) == 0
        with pytest.raises(IndexFolderError, match="another writer has this index"):
            writer(index)
        assert contents(index) == expected(range(6))


def test_a_single_id_or_document_is_refused(tmp_path):
    """Letters of an id are ids too: deleting "12" must not delete "1" and "2"."""
    index = built(tmp_path / "i")
    documents, vectors = some([8, 9])
    with writer(index) as live:
        live.add([one._replace(id=str(row)) for row, one in enumerate(documents, start=1)], vectors)
        before = contents(index)
        with pytest.raises(DataError, match=r"ids: given the string '12', expected a list of ids; .* \['12'\]"):
            live.delete("12")
        with pytest.raises(DataError, match="given the string '12'"):
            live.find_existing("12")
        with pytest.raises(DataError, match=r"ids: number 1: id is 2.5 \(float\), expected a string or a whole"):
            live.delete(["1", 2.5])
        with pytest.raises(DataError, match=r"given a single Document, expected a list .* \[document\]"):
            live.add(documents[0], vectors[:1])
        with pytest.raises(DataError, match="number 0 is a str, expected a Document"):
            live.add(["words"], vectors[:1])
    assert contents(index) == before


def test_an_index_without_ids_takes_row_numbers_for_ids(tmp_path):
    from bidr.index.builder.build import build_index

    _, vectors = some(range(4))
    build_index(tmp_path / "i", codebooks=BOOKS, codes=BOOKS.encode(vectors), vectors=vectors)
    with writer(tmp_path / "i") as live:
        live.delete(["2"])
        live.add(*some([7]))
        assert set(contents(tmp_path / "i")) == {"0", "1", "3", "doc-7"}
        live.compact()
        assert set(contents(tmp_path / "i")) == {"0", "1", "3", "doc-7"}
        with pytest.raises(DataError, match="'02'"):
            live.delete(["02"])


def test_a_view_is_immutable(tmp_path):
    index = built(tmp_path / "i")
    with writer(index) as live:
        live.add(*some([6]))
        view = LiveIndex.open(index).latest()
        live.add(*some([2], version=1))
        live.delete(["doc-6"])
        live.compact()
        assert sorted(path.name for path in index.iterdir()) == [".lock", ".next", "000005", "000006", "CURRENT"]
        assert contents(view) == expected(range(7))


def test_building_again_replaces_a_live_index_and_readers_follow(tmp_path, monkeypatch):
    monkeypatch.setattr(generation, "WRITER_WAIT_SECONDS", 0.1)
    index = built(tmp_path / "i")
    with writer(index) as live:
        live.add(*some([6]))
        live.flush()
        live.add(*some([7]))
        with pytest.raises(IndexFolderError, match="another writer has this index"):
            built(index)
    reader = LiveIndex.open(index)
    built(index, 4)
    assert contents(reader.refresh_now()) == expected(range(4))
    assert len([path for path in index.iterdir() if path.name.startswith("0")]) == 1


def test_an_index_from_before_ids_could_be_looked_up(tmp_path):
    index = built(tmp_path / "i")
    path = index / "000001" / "manifest.json"
    manifest = parse_manifest(path.read_bytes(), path)
    old = [name for name in manifest.files if not name.startswith(("ids.hashes", "ids.rows", "column", "attributes"))]
    content = render_manifest(replace(manifest, files={name: manifest.files[name] for name in old}))
    path.write_bytes(content)
    (index / "CURRENT").write_text(f"000001 {hash_bytes(content)}\n")
    with writer(index) as live:
        assert live.delete(["doc-4", "doc-0"]) == 2
        live.add(*some([1], 1))
    assert {name: value[1] for name, value in contents(index).items()} == {
        "doc-1": "Version 1", "doc-2": "Version 0", "doc-3": "Version 0", "doc-5": "Version 0"
    }  # fmt: skip


@pytest.mark.parametrize(("given", "then"), [("auto", "lists"), ("scan", "scan")])
def test_compaction_chooses_the_engine_again_where_it_was_chosen(tmp_path, monkeypatch, capsys, given, then):
    monkeypatch.setattr(choose, "AUTO_SCAN_DOCUMENTS", {4: 30, 8: 30})
    index = built(tmp_path / "i", 20, engine=given)
    with writer(index) as live:
        assert live.view.manifest.engine == "scan"
        live.add(*some(range(20, 60)))
        live.flush()
        assert [part.reader.manifest.engine for part in live.view.segments] == ["scan", "scan"]
        live.compact()
        assert live.view.manifest.engine == then
        assert ("the engine is lists now" in capsys.readouterr().err) == (then == "lists")
        live.add(*some([60]))
        live.delete([f"doc-{row}" for row in range(40)])
        live.compact()
        assert live.view.manifest.engine == "scan"
        assert live.view.manifest.auto == (given == "auto")
    assert contents(index) == expected(range(40, 61))
