"""bidr.Client against a real server: one line is another, the answers are the same."""

import numpy as np
import pytest
from sample_index import clustered
from sample_server import DIM, made, running, unit

import bidr
from bidr.data.types import Document
from bidr.errors import ConfigError, DataError


def test_one_line_changes_and_the_answers_do_not(server):
    asked = clustered(7, DIM, 55)  # more than the three that the server takes at once
    found, passing = [], {"even": True, "n": {"gte": np.int64(4)}}
    for opened in (bidr.open_index(server.index), bidr.Client(server.url)):
        with opened as searcher:
            found.append(searcher.load_results(searcher.search_vectors(asked, 5, 30, filter=passing)))
    local, remote = found
    assert len(remote) == len(local) == 7
    for mine, theirs in zip(remote, local, strict=True):
        assert [one._replace(score=0, candidate_score=0) for one in mine] == [
            one._replace(score=0, candidate_score=0) for one in theirs
        ]
        assert [one.score for one in mine] == pytest.approx([one.score for one in theirs], rel=1e-5)
        assert mine.timings.candidates > 0
        assert type(mine) is type(theirs)


def test_vectors_may_be_lists_in_local_and_remote_searches(server):
    asked = clustered(2, DIM, 56)
    whole = [[1] * DIM, [0, 2] * (DIM // 2)]
    for opened in (bidr.open_index(server.index), bidr.Client(server.url)):
        with opened as searcher:

            def ids(queries, searcher=searcher):
                return [
                    [one.id for one in found] for found in searcher.load_results(searcher.search_vectors(queries, 5))
                ]

            assert ids(asked.tolist()) == ids(tuple(asked)) == ids(asked)
            assert ids(whole) == ids(np.array(whole, dtype=np.float32))
            for wrong in ([[1.0] * DIM, [1.0]], [["a"] * DIM], [[None] * DIM], [[True] * DIM]):
                with pytest.raises(DataError, match=r"quer.*: given .*, expected "):
                    searcher.search_vectors(wrong)


def test_documents_come_and_go(server):
    vectors = clustered(5, DIM, 4_321)
    documents = [Document(f"own-{row}", f"Own {row}", "Text", {"n": 1_000 + row}) for row in range(5)]
    with bidr.Client(server.url) as client:
        assert client.add(documents, vectors) == 5
        assert [found[0].id for found in client.search_vectors(vectors, 1)] == [one.id for one in documents]
        assert client.get(["own-0", "nobody"]) == {"own-0": documents[0]}
        with pytest.raises(DataError, match="documents with these ids exist"):
            client.add(documents[:1], vectors[:1], replace=False)
        assert client.delete([one.id for one in documents]) == 5
        assert client.get([one.id for one in documents]) == {}
        with pytest.raises(DataError, match="own-0"):
            client.delete(["own-0"])
        assert client.delete(["own-0"], missing_ok=True) == 0


def test_what_a_server_refuses_is_the_local_error(server):
    with bidr.Client(server.url) as client:
        with pytest.raises(ConfigError, match="given 0, expected a whole number from 1 to 30"):
            client.search_vectors(clustered(1, DIM, 0), 0)
        with pytest.raises(DataError, match="no text encoder"):
            client.search("words")
        for dim in (2 * DIM, 2 * DIM + 1):
            with pytest.raises(DataError, match=f"given {dim}, expected {DIM}"):
                client.search_vectors(np.ones((1, dim)))


def test_full_vectors_are_sent_and_the_index_truncates_them(tmp_path):
    dims, asked, added = 4, clustered(5, DIM, 57), 3 * clustered(2, DIM, 4_322)
    made(tmp_path / "index", dims=dims)
    with running(tmp_path / "index", tmp_path / "log", "--workers=1", "--writable") as server:
        with bidr.Client(server.url) as client:
            client.add([Document(f"own-{row}", "", "") for row in range(2)], added)
            remote = client.load_results(client.search_vectors(asked, 5, 62))
            about = client.index()
            assert (about["dim"], about["stored_dim"]) == (DIM, dims)
            with pytest.raises(DataError, match=f"given {dims}, expected {DIM}"):
                client.search_vectors(asked[:, :dims])
        with bidr.open_index(tmp_path / "index") as index:
            local = index.load_results(index.search_vectors(asked, 5, 62))
    every = unit(np.concatenate([clustered(60, DIM), added])[:, :dims])
    exact = np.sort(unit(asked[:, :dims]) @ every.T)[:, ::-1][:, :5]
    for found in (remote, local):
        np.testing.assert_allclose([[one.score for one in near] for near in found], exact, atol=1e-3)


def test_documents_are_listed_counted_changed_and_deleted_by_filter(server):
    """The same calls on a folder and on a server give the same results."""
    vectors = clustered(7, DIM, 4_400)
    documents = [
        Document(f"shop-{row}", f"Shop {row}", "Text", {"shop": row, "day": f"2024-0{row + 1}-01"}) for row in range(7)
    ]
    with bidr.Client(server.url) as client, bidr.open_index(server.index) as local:
        client.add(documents, vectors)
        assert client.set_attributes({"shop-1": {"price": 3, "day": None}, "shop-2": {"price": 4}}) == 2
        assert client.set_attributes_where({"shop": {"gte": 5}}, {"price": 9.5}) == 2
        for condition in ({"shop": {"exists": True}}, {"price": {"gt": 3}}, {"day": {"gte": "2024-03-01T00:00Z"}}):
            local.reader.refresh_now()
            remote = {document.id: document for document in client.scroll(condition)}
            assert remote == {document.id: document for document in local.scroll(condition)}
            assert client.count(condition) == local.count(condition) == len(remote)
            bare = client.list_documents(condition, 2, text=False)
            assert [document.text for document in bare.documents] == ["", ""]
            assert bare.cursor == bare.documents[-1].id
        assert client.schema() == local.schema()
        assert client.get(["shop-1"])["shop-1"].attributes == {"shop": 1, "price": 3}
        assert client.count() == local.count()
        with pytest.raises(DataError, match="nobody"):
            client.set_attributes({"shop-1": {"price": 1}, "nobody": {"price": 1}})
        with pytest.raises(DataError, match="attribute"):
            client.set_attributes_where({"shop": 1}, {"price": [1]})
        assert client.set_attributes({"nobody": {"price": 1}}, missing_ok=True) == 0
        assert client.delete_where({"shop": {"exists": True}}) == 7
        assert client.count({"shop": {"exists": True}}) == 0
