"""Attributes change without codes, vectors or texts; listing survives what is written meanwhile."""

import pytest
from sample_live_index import BOOKS, built, contents, described, expected, some, writer

from bidr.data.types import Document
from bidr.errors import AttributesError, DataError, FilterError, IndexFolderError
from bidr.index.builder.build import build_index
from bidr.index.filters.filter_expression import parse_filter
from bidr.index.live import writer as writer_module
from bidr.index.live.document_list import list_documents
from bidr.index.live.live_reader import LiveIndex
from bidr.index.vectors import VectorFile
from bidr.pipeline.open import open_index


def get_prices(index) -> dict:
    return {name: fields[2].get("price") for name, fields in contents(index).items()}


@pytest.mark.parametrize("at_once", [3, 50_000])
def test_a_change_by_filter_is_seen_and_kept(tmp_path, monkeypatch, at_once):
    """In one commit or in several, from the log, from a state, and after compaction."""
    monkeypatch.setattr(writer_module, "MAX_CHANGED_DOCUMENTS", at_once)
    index = built(tmp_path / "i", 9)
    reader = LiveIndex.open(index)
    with writer(index, log_documents=4) as live:
        live.add(*some([9, 10]))
        live.delete(["doc-2"])
        assert live.set_attributes_where({"even": True}, {"price": 1.5, "n": None}) == 5
        priced = {f"doc-{number}": 1.5 if number % 2 == 0 else None for number in range(11) if number != 2}
        for step in (lambda: None, live.flush, lambda: live.add(*some([11])), live.compact):
            step()
            assert get_prices(reader.refresh_now()) | {"doc-11": None} == priced | {"doc-11": None}
        attributes = {name: fields[2] for name, fields in contents(index).items()}
        assert attributes["doc-4"] == {"even": True, "price": 1.5}
        assert attributes["doc-3"] == {"even": False, "n": 3}
    LiveIndex.open(index).verify()


def test_no_vector_is_read(tmp_path, monkeypatch):
    index = built(tmp_path / "i", 9)
    with writer(index) as live:
        for name in ("fetch", "read", "score"):
            monkeypatch.setattr(VectorFile, name, lambda *args: pytest.fail("a vector was read"))
        live.set_attributes_where({"even": True}, {"price": 1})
        live.set_attributes({"doc-1": {"price": 2}})
        assert live.delete_where({"price": {"gte": 2}}) == 1
        live.flush()


def test_invalid_changes_change_nothing(tmp_path):
    index = built(tmp_path / "i", 3)
    with writer(index) as live:
        for error, change in [
            (DataError, lambda: live.set_attributes({"doc-0": {"a": 1}, "nobody": {"a": 1}})),
            (AttributesError, lambda: live.set_attributes({"doc-0": {"a": 1}, "doc-1": {"a": [1]}})),
            (AttributesError, lambda: live.set_attributes({"doc-0": {"a": float("nan")}})),
            (AttributesError, lambda: live.set_attributes({"doc-0": {"or": None}})),
            (AttributesError, lambda: live.set_attributes({"doc-0": {}})),
            (AttributesError, lambda: live.set_attributes_where({"n": 1}, {})),
            (FilterError, lambda: live.set_attributes_where({}, {"a": 1})),
            (FilterError, lambda: live.delete_where({"n": [1]})),
            (DataError, lambda: live.set_attributes(["doc-0"])),
        ]:
            with pytest.raises(error):
                change()
        assert live.set_attributes({"nobody": {"a": 1}}, missing_ok=True) == 0
        assert live.set_attributes_where({"n": 99}, {"a": 1}) == 0
    assert contents(index) == expected(range(3))


def test_changed_attributes_are_shown_and_described(tmp_path):
    """In the schema, and in hits, which read documents by other ways."""
    index = built(tmp_path / "i", 12, described(12))
    with writer(index) as live:
        live.set_attributes({"doc-1": {"color": "red", "name": None}})
        live.flush()
        live.set_attributes({"doc-2": {"color": "blue"}, "doc-1": {"whole": 99}})
        for step in (lambda: None, live.flush, live.compact):
            step()
            with open_index(index) as searcher:
                fields = {field["name"]: field for field in searcher.schema()}
                assert fields["color"] == {"name": "color", "type": "string", "documents": 2, "lists": False,
                                           "examples": ["blue", "red"]}  # fmt: skip
                assert fields["whole"]["max"] == 99
                assert (fields["name"]["documents"], fields["whole"]["documents"]) == (9, 10)
                hits = searcher.load_results(searcher.search_vectors(some([1])[1], 12, filter={"color": "red"}))[0]
                assert [hit.document.attributes["whole"] for hit in hits] == [99]
                assert searcher.get(["doc-2", "nobody"])["doc-2"].attributes["color"] == "blue"


def list_all(index, size: int, between=lambda: None, **options) -> list[str]:
    ids, cursor = [], None
    while True:
        page = list_documents(LiveIndex.open(index).latest(), None, size, cursor, **options)
        ids += [document.id for document in page.documents]
        if (cursor := page.cursor) is None:
            return ids
        between()


def test_listing_survives_changes_between_pages(tmp_path):
    """What stays is listed once, whatever is written meanwhile."""
    index = built(tmp_path / "i", 20)
    assert sorted(list_all(index, 7)) == sorted(expected(range(20)))
    with writer(index, log_documents=3, segments=2) as live:
        numbers = iter(range(100))

        def write() -> None:
            number = next(numbers)
            live.add(*some([number, 50 + number], 1))
            live.delete([f"doc-{50 + number}"])
            if number % 3 == 2:
                live.compact()

        ids = list_all(index, 3, write)
        assert len(ids) == len(set(ids))
        assert set(ids) >= set(expected(range(20)))


def test_documents_with_equal_hashes_are_listed_once(tmp_path, monkeypatch):
    monkeypatch.setattr("bidr.index.documents.id_index.hash_string", lambda name: 7)
    monkeypatch.setattr("bidr.index.live.document_list.hash_string", lambda name: 7)
    index = built(tmp_path / "i", 5)
    with writer(index) as live:
        live.add(*some([7, 8]))
        assert list_all(index, 2) == sorted(expected([0, 1, 2, 3, 4, 7, 8]))


def test_an_index_without_ids_is_listed(tmp_path):
    vectors = some(range(5))[1]
    build_index(tmp_path / "i", codebooks=BOOKS, codes=BOOKS.encode(vectors), vectors=vectors)
    with open_index(tmp_path / "i") as searcher:
        assert sorted(list_all(tmp_path / "i", 2)) == ["0", "1", "2", "3", "4"]
        assert searcher.get(["3"]) == {"3": Document("3", "", "")}
        assert searcher.count() == 5
        assert len(list(searcher.scroll())) == 5


def read_all(index, expression) -> None:
    """Read every file of the attributes."""
    view = LiveIndex.open(index).latest()
    view.count_matching(expression)
    contents(view)
    view.describe_attributes()


def test_damage_to_changed_attributes_is_noticed(tmp_path):
    """The same attributes, or an error that names the file."""
    index = built(tmp_path / "i", 12, described(12))
    with writer(index) as live:
        live.set_attributes_where({"whole": {"lt": 4}}, {"color": "red", "tags": ["x", "y"]})
        live.flush()
        expression, before = parse_filter({"color": "red", "tags": "x"}), contents(index)
    state = index / (index / "CURRENT").read_text().split()[0]
    files = sorted(path for path in state.iterdir() if path.name.startswith("000001.") and path.suffix != ".deleted")
    assert len(files) > 8
    for path in files:
        content = path.read_bytes()
        for place in (0, len(content) // 2, len(content) - 1):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            with pytest.raises(IndexFolderError, match=path.name):
                read_all(index, expression)
        path.write_bytes(content)
    assert contents(index) == before
