"""Several indexes in one server: each answers as alone; created, filled, listed and dropped over HTTP."""

import pytest
from sample_index import clustered
from sample_server import DIM, READ, WRITE, made, opened, running, said_well, search, vector
from sample_server import ask as request

import bidr
from bidr.cli.serve import parse_indexes
from bidr.client.errors import ServiceError
from bidr.errors import ConfigError
from bidr.server.config import ApiKeys


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("named")
    return {name: made(folder / name, 40 + 10 * seed, seed) for seed, name in enumerate(("a", "b"))}


def test_each_index_answers_as_alone(folders):
    together = opened(folders["a"], indexes=folders)
    for name, folder in folders.items():
        alone = opened(folder)
        body = {"vectors": clustered(2, DIM, 5).tolist(), "k": 5, "filter": {"even": True}}
        expected = search(alone, **body).json()
        found = request(together, "POST", f"/v1/indexes/{name}/search", json=body).json()
        assert [[hit["id"] for hit in one["answers"]] for one in found["results"]] == [
            [hit["id"] for hit in one["answers"]] for one in expected["results"]
        ]
        assert request(together, "GET", f"/v1/indexes/{name}").json()["documents"] == alone.holder.current.view.count
        assert (
            request(together, "GET", f"/v1/indexes/{name}/schema").json() == request(alone, "GET", "/v1/schema").json()
        )
        listed = request(together, "POST", f"/v1/indexes/{name}/documents/count", json={})
        assert listed.json() == {"count": alone.holder.current.view.count}
    assert search(together, vectors=[vector(1)]).json()["results"]  # paths without a name
    names = request(together, "GET", "/v1/indexes").json()["indexes"]
    assert [(each["name"], each["documents"], each["default"]) for each in names] == [("a", 40, True), ("b", 50, False)]
    for method, path in [("GET", "/v1/indexes/c"), ("POST", "/v1/indexes/c/search"), ("PUT", "/v1/indexes/c"),
                         ("DELETE", "/v1/indexes/b"), ("GET", "/v1/indexes/a/nothing")]:  # fmt: skip
        found = request(together, method, path, json={"dim": 3})
        assert found.status_code in (403, 404), found.text
        said_well(found)


def test_indexes_are_created_filled_and_dropped(folders, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    made(root / "old", 20)
    keys = ApiKeys(read=READ, write=WRITE)
    with running(
        f"a={folders['a']}", tmp_path / "log", "--writable", f"--root={root}", "--workers=2", keys=keys
    ) as server:
        for key, status in ((READ, 403), (WRITE, 200)):
            with server.client(headers={"authorization": f"Bearer {key}"}) as client:
                assert client.put("/v1/indexes/new", json={"dim": 8}).status_code == status
        with server.client(headers={"authorization": f"Bearer {WRITE}"}) as client:
            names = {each["name"]: each["documents"] for each in client.get("/v1/indexes").json()["indexes"]}
            assert names == {"a": 40, "old": 20, "new": 0}
            vectors = clustered(5, 8, 1)
            documents = [{"id": f"n{row}", "text": "t", "vector": vectors[row].tolist()} for row in range(5)]
            assert client.post("/v1/indexes/new/documents", json={"documents": documents}).json()["added"] == 5
            hits = client.post("/v1/indexes/new/search", json={"vectors": vectors[:1].tolist(), "k": 2}).json()
            assert hits["results"][0]["answers"][0]["id"] == "n0"
            assert client.post("/v1/documents/count", json={}).json() == {"count": 40}
            for path, body, status in [
                ("new", {"dim": 8}, 409), ("x y", {"dim": 8}, 422), (".x", {"dim": 8}, 422), ("x", {}, 422),
                ("x", {"dim": 0}, 422), ("x", {"dim": 8, "metric": "l7"}, 422), ("x", {"dim": 7}, 422),
                ("x", {"dim": 8, "bytes_per_doc": 3}, 422), ("x", {"dim": 8, "fit_documents": 3}, 422),
            ]:  # fmt: skip
                found = client.put(f"/v1/indexes/{path}", json=body)
                assert found.status_code == status, found.text
                said_well(found)
            assert client.delete("/v1/indexes/a").status_code == 409
            assert client.delete("/v1/indexes/new").json() == {"dropped": "new"}
            assert client.post("/v1/indexes/new/search", json={"vectors": [[1.0] * 8]}).status_code == 404
            assert not (root / "new").exists()
            fill_by_client(server.url)
            made(root / "later", 12)  # by another program
            while "later" not in {each["name"] for each in client.get("/v1/indexes").json()["indexes"]}:
                pass
            assert not server.events("fault")


def fill_by_client(url: str) -> None:
    with bidr.Client(url, WRITE) as first, bidr.Client(url, WRITE, index="fresh") as client:
        with pytest.raises(ServiceError, match="fresh"):
            client.count()
        first.create_index("fresh", 8, metric="ip", bytes_per_doc=2)
        documents = [bidr.Document(f"f{row}", "", f"text {row}", {"n": row}) for row in range(4)]
        assert client.add(documents, clustered(4, 8, 2)) == 4
        assert client.set_attributes_where({"n": {"gte": 2}}, {"late": True}) == 2
        assert {document.id for document in client.scroll({"late": True})} == {"f2", "f3"}
        assert client.search_vectors(clustered(4, 8, 2)[:1], 1)[0][0].id == "f0"
        assert client.more_like("f0", 2)[0].id != "f0"
        assert client.index()["documents"] == 4
        assert {each["name"] for each in first.indexes()} >= {"a", "fresh"}
        assert first.count() == 40
        first.drop_index("fresh")


def test_names_of_indexes(folders, tmp_path):
    a, b = folders.values()
    assert parse_indexes((str(a),), None) == (a, {})
    assert parse_indexes((f"x={a}", f"y={b}"), None) == (a, {"x": a, "y": b})
    assert parse_indexes((str(a), str(b)), None) == (a, {"a": a, "b": b})
    assert parse_indexes((), a.parent) == (a, {})
    for wrong in ((), (f"={a}",), (f"x={a}", f"x={b}"), (f"x y={a}",)):
        with pytest.raises(ConfigError, match="index"):
            parse_indexes(wrong, None)
    with pytest.raises(ConfigError, match="root"):
        parse_indexes((str(a),), tmp_path / "nowhere")
