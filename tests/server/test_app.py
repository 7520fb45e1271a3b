"""What a worker answers, asked without a socket in between."""

import asyncio
import json
import threading
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from sample_index import clustered
from sample_server import DIM, READ, WRITE, ask, asking, made, opened, said_well, search, vector

from bidr.index.live.live_reader import LiveIndex
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors
from bidr.server import app
from bidr.server.config import ApiKeys
from bidr.server.document_lookup import DocumentLookup
from bidr.server.limits import RequestLimits

SMALL = RequestLimits(
    body=20_000,
    k=50,
    queries=8,
    candidates=60,
    answers=100,
    reads=300,
    characters=40,
    conditions=10,
    values=20,
    documents=5,
)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return made(tmp_path_factory.mktemp("serve") / "index")


@pytest.fixture(scope="module")
def service(index):
    return opened(index, limits=SMALL)


def test_answers_are_those_of_the_searcher(index, service):
    """Ids, scores, both ranks, for JSON and for bytes."""
    asked = clustered(3, DIM, 77)
    searcher = Searcher(LiveIndex.open(index))
    expected = searcher.load_results(searcher.search_vectors(QueryVectors(asked, asked), 5, 20))
    rows = asked.astype("<f4").tobytes()
    by_json = search(service, vectors=asked.tolist(), k=5, candidates=20).json()
    by_bytes = ask(
        service,
        "POST",
        "/v1/search?k=5&candidates=20",
        content=rows,
        headers={"content-type": "application/octet-stream"},
    ).json()
    for found in (by_json, by_bytes):
        assert found["generation"] == 1
        for result, answers in zip(found["results"], expected, strict=True):
            got = [(each["rank"], each["id"], each["candidate_rank"]) for each in result["answers"]]
            assert got == [(each.rank, each.id, each.candidate_rank) for each in answers]
            np.testing.assert_allclose([each["score"] for each in result["answers"]], [a.score for a in answers], 1e-5)
            assert result["answers"][0]["text"] == answers[0].document.text
            assert result["answers"][0]["attributes"] == answers[0].document.attributes
            assert set(result["timings"]) == {"encode", "candidates", "reads", "ranking", "total"}
            assert set(result["disk"]) == {"vectors", "hits", "reads", "bytes"}
            assert result["disk"]["vectors"] >= result["disk"]["hits"]


def test_codes_only_filter_and_text(service):
    found = search(service, vectors=[vector(1)], k=5, codes_only=True, filter={"even": True}, text=False).json()
    answers = found["results"][0]["answers"]
    assert [each["rank"] for each in answers] == [each["candidate_rank"] for each in answers] == [1, 2, 3, 4, 5]
    assert all(each["attributes"]["even"] for each in answers)
    assert all(each["text"] is None and each["title"] is None for each in answers)
    nothing = search(service, vectors=[vector(1)], filter={"n": -1}).json()
    assert nothing["results"][0]["answers"] == []


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"vectors": [[0.1] * DIM], "k": 1e9}, 422, "from 1 to 50"),
        ({"vectors": [[0.1] * DIM], "k": 10**30}, 422, "from 1 to 50"),
        ({"vectors": [[0.1] * DIM], "k": 0}, 422, "k"),
        ({"vectors": [[0.1] * DIM], "k": True}, 422, "k"),
        ({"vectors": [[0.1] * DIM], "k": "5"}, 422, "k"),
        ({"vectors": [[0.1] * DIM], "candidates": 61}, 422, "from 1 to 60"),
        ({"vectors": [[1e308] + [0.1] * (DIM - 1)]}, 422, "too large"),
        ({"vectors": [["0.1"] * DIM]}, 422, "not a number"),
        ({"vectors": [[True] * DIM]}, 422, "not a number"),
        ({"vectors": [[None] * DIM]}, 422, "not a number"),
        ({"vectors": [[0.1] * 384]}, 422, "use the model of this index"),
        ({"vectors": [[0.1] * DIM, [0.1]]}, 422, "16 numbers"),
        ({"vectors": []}, 422, "1 to 8"),
        ({"vectors": [[0.1] * DIM] * 9}, 422, "1 to 8"),
        ({"vectors": [[0.1] * DIM] * 3, "k": 50}, 422, "up to 100"),
        ({"vectors": [[0.1] * DIM] * 8, "candidates": 60}, 422, "up to 300"),
        ({"vectors": [[0.1] * DIM], "model": "of another"}, 409, "another model"),
        ({"vectors": [[0.1] * DIM], "filter": {"n": {"near": 3}}}, 422, "filter"),
        ({"vectors": [[0.1] * DIM], "filter": {}}, 422, "filter"),
        ({"vectors": [[0.1] * DIM], "filter": {"or": [{"n": 1}] * 10}}, 422, "filter: conditions"),
        ({"vectors": [[0.1] * DIM], "filter": {str(n): 1 for n in range(11)}}, 422, "up to 10"),
        ({"vectors": [[0.1] * DIM], "filter": {"not": {"not": {"or": [{"a": 1, "b": 2}] * 4}}}}, 422, "up to 10"),
        ({"vectors": [[0.1] * DIM], "filter": {"n": {"any": list(range(21))}}}, 422, "filter: values"),
        ({"vectors": [[0.1] * DIM], "filter": {"or": [{"n": {"any": [1, 2, 3]}}] * 7}}, 422, "up to 20"),
        ({"vectors": [[0.1] * DIM], "filter": {"or": [1] * 21}}, 422, "filter: values"),
        ({"vectors": [[0.1] * DIM], "K": 5}, 422, "unknown field"),
        ({"vectors": [[0.1] * DIM], "texts": ["a"]}, 422, "texts or by vectors"),
        ({}, 422, "texts or by vectors"),
        ({"texts": ["words"]}, 422, "no text encoder"),
        ({"texts": ["x" * 41]}, 422, "too long"),
        ({"texts": ["  "]}, 422, "empty"),
    ],
)
def test_invalid_requests_are_errors_with_a_remedy(service, body, status, said):
    found = search(service, **body)
    assert found.status_code == status, found.text
    error = found.json()["error"]
    assert set(error) == {"type", "message", "given", "expected", "hint"}
    assert said in found.text


def test_a_filter_of_the_maximum_size_is_answered(service):
    most = {"or": [*({"n": {"gte": 3, "lt": 5}} for _ in range(8)), {"n": {"any": [1, 2, 7, 8]}}]}
    for given in (most, {"n": {"any": list(range(20))}}):
        found = search(service, vectors=[vector(1)], filter=given)
        assert (found.status_code, len(found.json()["results"][0]["answers"]) > 5) == (200, True), found.text
    by_query = ask(service, "POST", "/v1/search", params={"filter": json.dumps({"or": [{"n": 1}] * 10})}, json={})
    assert (by_query.status_code, "filter: conditions" in by_query.text) == (422, True)


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b'{"vectors": [[NaN]]}', 400),
        (b'{"vectors"', 400),
        (b"\xff\xfe", 400),
        (b"[1]", 422),
        (b"", 400),
        (b"[" * 10_000, 400),
    ],
)
def test_bodies_that_are_not_json(service, content, status):
    kind = {"content-type": "application/json"}
    assert ask(service, "POST", "/v1/search", content=content, headers=kind).status_code == status


def test_bytes_that_are_no_vectors(service):
    kind = {"content-type": "application/octet-stream"}
    nan = np.full((1, DIM), np.nan, dtype="<f4").tobytes()
    for content, said in ((b"123", "whole rows"), (nan, "NaN"), (b"", "whole rows")):
        found = ask(service, "POST", "/v1/search", content=content, headers=kind)
        assert (found.status_code, said in found.text) == (422, True), found.text
    for query in ("k=x", "k=1&k=2", "z=1", "filter=%7B", "text=yes", "k=1e9"):
        found = ask(service, "POST", f"/v1/search?{query}", content=bytes(4 * DIM), headers=kind)
        assert found.status_code == 422, found.text


def test_a_binary_body_with_another_dim_parameter_is_refused(service):
    """Two rows of 16 numbers are as many bytes as one of 32: only who sends them can tell."""
    kind = {"content-type": "application/octet-stream"}
    wide = clustered(1, 2 * DIM, 3).astype("<f4").tobytes()
    for query, status, queries in ((f"dim={DIM}", 200, 2), ("", 200, 2), (f"dim={2 * DIM}", 422, 0), ("dim=x", 422, 0)):
        found = ask(service, "POST", f"/v1/search?{query}", content=wide, headers=kind)
        assert (found.status_code, len(found.json().get("results", ()))) == (status, queries), found.text
    error = ask(service, "POST", f"/v1/search?dim={2 * DIM}", content=wide, headers=kind).json()["error"]
    assert (error["given"], "dimensions" in error["message"]) == (str(2 * DIM), True)
    assert str(DIM) in error["expected"]
    assert "model of this index" in error["hint"]
    by_json = ask(service, "POST", f"/v1/search?dim={2 * DIM}", json={"vectors": [vector(1)]})
    assert by_json.status_code == 422, "said of any search, it holds"
    told = ask(service, "GET", "/openapi.json").json()["paths"]["/v1/search"]["post"]["parameters"]
    assert [one["schema"]["const"] for one in told if one["name"] == "dim"] == [DIM]


def test_the_page_is_cached_by_browsers_and_read_only(service):
    found = ask(service, "GET", "/")
    assert (found.status_code, found.headers.get_list("cache-control")) == (200, ["no-cache"])
    again = ask(service, "GET", "/", headers={"if-none-match": found.headers["etag"]})
    assert (again.status_code, again.content, "content-length" in again.headers) == (304, b"", False)
    assert ask(service, "HEAD", "/").status_code == 200
    posted = ask(service, "POST", "/")
    assert (posted.status_code, posted.headers["allow"]) == (405, "GET, HEAD")
    assert ask(service, "POST", "/nothing").status_code == 404
    assert ask(service, "GET", "/v1/index").headers.get_list("cache-control") == ["no-store"]


def test_other_types_paths_and_methods(service):
    assert ask(service, "POST", "/v1/search", content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    assert ask(service, "GET", "/v1/nothing").status_code == 404
    found = ask(service, "PUT", "/v1/search")
    assert (found.status_code, found.headers["allow"]) == (405, "POST")
    assert ask(service, "POST", "/v1/documents", json={"documents": []}).status_code == 403


def test_a_body_above_the_limit_is_discarded(service):
    """With or without its length said; the client gets to see why."""

    def parts():
        for _ in range(100):
            yield bytes(1_000)

    async def stream():
        for part in parts():
            yield part

    kind = {"content-type": "application/json"}
    for given in ({"content": bytes(100_000)}, {"content": stream()}):
        found = ask(service, "POST", "/v1/search", headers=kind, **given)
        assert found.status_code == 413
        assert "20000 bytes" in found.text


def test_documents_are_fetched_by_id(service):
    found = ask(service, "GET", "/v1/documents", params={"id": ["doc-7", "nobody", "doc-3"]}).json()
    assert [each["id"] for each in found["documents"]] == ["doc-7", "doc-3"]
    assert found["documents"][0]["title"] == "Title 7"
    assert found["missing"] == ["nobody"]
    for query in ("", "id=", "id=a&x=1", "id=" + "&id=".join("abcdef")):
        assert ask(service, "GET", f"/v1/documents?{query}").status_code == 422


def test_fetching_documents_does_not_keep_the_loop(service, monkeypatch):
    threads = []
    real = DocumentLookup.get_documents
    monkeypatch.setattr(
        DocumentLookup, "get_documents", lambda *given: (threads.append(threading.current_thread()), real(*given))[1]
    )
    assert ask(service, "GET", "/v1/documents?id=doc-1").status_code == 200
    assert threads[0] is not threading.main_thread()


def test_keys(index):
    """Read and write keys; health is for everybody; no key is ever part of an answer."""
    service = opened(index, keys=ApiKeys(read=READ, write=WRITE), limits=SMALL)

    def status(path, key=None, method="GET", **given):
        headers = {"authorization": key} if key else {}
        found = ask(service, method, path, headers=headers, **given)
        assert READ not in found.text
        assert WRITE not in found.text
        return found.status_code

    assert status("/v1/index") == 401
    assert status("/v1/index", f"Bearer {READ}") == 200
    assert status("/v1/index", f"Bearer {WRITE}") == 200
    for wrong in (f"Bearer {READ}x", f"Basic {READ}", "Bearer", "Bearer \xff"):
        assert status("/v1/index", wrong.encode("latin-1")) == 401
    new = {"json": {"documents": [{"id": "a"}]}}
    assert status("/v1/documents", None, "POST", **new) == 401
    assert status("/v1/documents", f"Bearer {READ}", "POST", **new) == 403
    assert (status("/livez"), status("/readyz"), status("/metrics")) == (200, 200, 401)


def test_without_keys_only_this_machine_asks(service):
    """A page of another site that gives its own name to this address is refused."""
    found = ask(service, "GET", "/v1/index", headers={"host": "evil.example"})
    assert found.status_code == 403
    for name in ("localhost:80", "127.0.0.1", "[::1]:9"):
        assert ask(service, "GET", "/v1/index", headers={"host": name}).status_code == 200


def test_with_a_write_key_alone_only_this_machine_reads(index):
    service = opened(index, keys=ApiKeys(write=WRITE))
    assert ask(service, "GET", "/v1/index", headers={"host": "evil.example"}).status_code == 403
    assert ask(service, "GET", "/v1/index", headers={"host": "localhost"}).status_code == 200
    given = {"host": "evil.example", "authorization": f"Bearer {WRITE}"}
    assert ask(service, "GET", "/v1/index", headers=given).status_code == 200


@pytest.mark.parametrize(
    ("keys", "headers", "status"),
    [
        (ApiKeys(read=READ), {}, 401),
        (ApiKeys(read=READ), {"authorization": "Bearer wrong"}, 401),
        (ApiKeys(read=READ, write=WRITE), {"authorization": f"Bearer {READ}"}, 403),
        (ApiKeys(), {"host": "evil.example"}, 403),
    ],
)
def test_what_is_refused_counts_for_the_rate(index, monkeypatch, keys, headers, status):
    monkeypatch.setattr("bidr.server.rate_limit.time", SimpleNamespace(monotonic=lambda: 0.0))
    service = opened(index, keys=keys, limits=RequestLimits(rate=1.0))
    found = [ask(service, "POST", "/v1/documents", headers=headers).status_code for _ in range(3)]
    assert found == [status, 429, 429]


def test_rate(index, monkeypatch):
    monkeypatch.setattr("bidr.server.rate_limit.time", SimpleNamespace(monotonic=lambda: 0.0))
    service = opened(index, limits=RequestLimits(rate=3.0))
    found = [ask(service, "GET", "/v1/index") for _ in range(6)]
    assert [each.status_code for each in found[:3]] == [200] * 3
    assert found[-1].status_code == 429
    assert int(found[-1].headers["retry-after"]) >= 1
    assert ask(service, "GET", "/livez").status_code == 200


def test_the_rate_counts_addresses_of_one_ipv6_network_as_one_client(index, monkeypatch):
    monkeypatch.setattr("bidr.server.rate_limit.time", SimpleNamespace(monotonic=lambda: 0.0))
    application = app.make_app(opened(index, limits=RequestLimits(rate=1.0)))

    async def request_from(address: str) -> int:
        transport = httpx.ASGITransport(application, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return (await client.get("/v1/index")).status_code

    addresses = ("2001:db8:1:2::1", "2001:db8:1:2::2", "2001:db8:1:3::1")
    assert [asyncio.run(request_from(address)) for address in addresses] == [200, 429, 200]


def test_a_full_queue_answers_503(index, monkeypatch):
    service = opened(index, limits=RequestLimits(queue=1), threads=1)
    real, free, refusals = app.search, threading.Event(), []
    monkeypatch.setattr(app, "search", lambda *given: (free.wait(60), real(*given))[1])

    async def one(client):
        found = await client.post("/v1/search", json={"vectors": [vector(1)]})
        refusals.extend([found] if found.status_code == 503 else [])
        if len(refusals) == 4:
            free.set()
        return found

    async def many():
        async with asking(service) as client:
            return await asyncio.gather(*(one(client) for _ in range(6)))

    found = asyncio.run(many())
    assert sorted(each.status_code for each in found) == [200, 200, 503, 503, 503, 503]
    refused = next(each for each in found if each.status_code == 503)
    assert int(refused.headers["retry-after"]) >= 1
    assert search(service, vectors=[vector(1)]).status_code == 200


def test_deadline(index, monkeypatch):
    """The answer comes while a thread is still at work, which stops between queries."""
    service = opened(index, limits=RequestLimits(seconds=0.5), threads=1)
    real, free, done = app.search, threading.Event(), []

    def slow(snapshot, asked, queries, deadline, encode):
        free.wait(60)
        try:
            return real(snapshot, asked, queries, deadline, encode)
        except Exception as error:
            done.append(error)
            raise

    monkeypatch.setattr(app, "search", slow)
    found = search(service, vectors=[vector(1)])
    assert (found.status_code, free.is_set()) == (504, False)
    free.set()
    service.pool.shutdown()
    assert "exceeded its deadline" in str(done[0])


def test_faults_tell_nothing(index, monkeypatch, capfd):
    service = opened(index)

    def broken(*given):
        raise RuntimeError("secret inner life")

    monkeypatch.setattr(app, "search", broken)
    found = search(service, vectors=[vector(1)])
    assert (found.status_code, found.json()["error"]["type"]) == (500, "internal")
    assert "secret" not in found.text
    assert "Traceback" not in found.text
    line = json.loads(capfd.readouterr().err.splitlines()[0])
    assert "secret inner life" in line["trace"]


def test_index_ready_and_metrics(service):
    about = ask(service, "GET", "/v1/index").json()
    assert (about["documents"], about["dim"], about["code_bytes"], about["texts"]) == (60, DIM, 2, False)
    assert about["limits"]["k"] == 50
    assert ask(service, "GET", "/readyz").json()["status"] == "ready"
    search(service, vectors=[vector(1)] * 2)
    text = ask(service, "GET", "/metrics").text
    for name in ("bidr_search_step_seconds_count", "bidr_search_queries_sum", "bidr_vector_reads_total", "bidr_queue"):
        assert name in text
    service.draining = True
    try:
        drained = ask(service, "GET", "/readyz")
        assert (drained.status_code, drained.json()["status"]) == (503, "draining")
        assert search(service, vectors=[vector(1)]).headers["connection"] == "close"
    finally:
        service.draining = False


def test_metrics_count_vectors_that_were_read(index):
    """Fewer pass a filter, or are there, than candidates were asked for; the codes alone read none."""
    service = opened(index, limits=RequestLimits())

    def reads(**options):
        before = counted()
        assert search(service, vectors=[vector(1), vector(2)], **options).status_code == 200
        return counted() - before

    def counted():
        lines = ask(service, "GET", "/metrics").text.splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("bidr_vector_reads_total")))

    assert reads(candidates=20) == 40
    assert reads(candidates=10_000) == 120
    assert reads(candidates=10_000, filter={"n": {"lt": 7}}) == 14
    assert reads(candidates=10_000, filter={"n": -1}) == 0
    assert reads(candidates=50, codes_only=True) == 0


def test_openapi_is_of_this_index(service):
    found = ask(service, "GET", "/openapi.json").json()
    body = found["paths"]["/v1/search"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["oneOf"][0]["properties"]["vectors"]["items"]["minItems"] == DIM
    assert search(service, **body["example"]).status_code == 200


def test_a_disconnected_client_cancels_its_request(service):
    """No answer is sent to nobody, and nothing breaks."""
    sent = []

    async def go():
        async def receive():
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/search",
            "raw_path": b"/v1/search",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json"), (b"host", b"localhost")],
            "client": ("127.0.0.1", 1),
        }
        await app.make_app(service)(scope, receive, send)

    asyncio.run(go())
    assert sent == []


def test_client_errors_name_no_path_of_the_server(index, service):
    found = [search(service, vectors=[[0.1] * 3]), ask(service, "GET", "/v1/documents?id=zz")]
    assert all(str(index.parent) not in each.text for each in found)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/documents/list", {"limit": 6}),
        ("POST", "/v1/documents/list", {"limit": 0}),
        ("POST", "/v1/documents/list", {"cursor": 1}),
        ("POST", "/v1/documents/list", {"cursor": ""}),
        ("POST", "/v1/documents/list", {"text": 1}),
        ("POST", "/v1/documents/list", {"filter": {}}),
        ("POST", "/v1/documents/list", {"filter": {"n": {"near": 1}}}),
        ("POST", "/v1/documents/list", {"offset": 1}),
        ("POST", "/v1/documents/count", {"filter": [1]}),
        ("POST", "/v1/documents/count", {"filter": {"n": {"any": list(range(21))}}}),
    ],
)
def test_invalid_listings_are_errors_with_a_remedy(service, method, path, body):
    found = ask(service, method, path, json=body)
    assert found.status_code == 422, found.text
    said_well(found)


def test_a_listing_is_that_of_the_index(service):
    first = ask(service, "POST", "/v1/documents/list", json={"filter": {"even": True}, "limit": 5}).json()
    then = ask(service, "POST", "/v1/documents/list", json={"filter": {"even": True}, "cursor": first["cursor"]}).json()
    ids = [document["id"] for page in (first, then) for document in page["documents"]]
    assert len(set(ids)) == 10
    assert all(document["attributes"]["even"] for document in first["documents"])
    assert ask(service, "POST", "/v1/documents/count", json={"filter": {"even": True}}).json() == {"count": 30}
    assert ask(service, "PATCH", "/v1/documents", json={}).status_code == 403
    assert ask(service, "POST", "/v1/documents/delete", json={"filter": {"n": 1}}).status_code == 403


SHAPINGS = [
    {"offset": 3},
    {"min_score": 0.2},
    {"group_by": "even", "group_size": 2},
    {"mmr": 0.4, "offset": 1},
    {"combine": "max"},
    {"combine": "mean", "min_score": 0.1, "k": 3},
]


@pytest.mark.parametrize("options", SHAPINGS)
def test_shaped_results_are_those_of_the_searcher(index, service, options):
    queries = clustered(2, DIM, 78)
    searcher = Searcher(LiveIndex.open(index))
    local = {name: value for name, value in options.items() if name != "k"}
    batch = searcher.search_vectors(QueryVectors(queries, queries), options.get("k", 5), 20, **local)
    expected = [[hit.id for hit in hits] for hits in searcher.load_results(batch)]
    found = search(service, vectors=queries.tolist(), candidates=20, **{"k": 5, **options})
    assert found.status_code == 200, found.text
    assert [[hit["id"] for hit in result["answers"]] for result in found.json()["results"]] == expected
    by_bytes = ask(
        service,
        "POST",
        "/v1/search",
        params={"k": 5, "candidates": 20, **options},
        content=queries.astype("<f4").tobytes(),
        headers={"content-type": "application/octet-stream"},
    )
    assert [[hit["id"] for hit in result["answers"]] for result in by_bytes.json()["results"]] == expected


def test_more_like_documents(service):
    found = search(service, like=["doc-7"], k=5, candidates=60).json()["results"][0]["answers"]
    own = search(service, vectors=[clustered(60, DIM, 0)[7].tolist()], k=6, candidates=60).json()["results"][0][
        "answers"
    ]
    assert own[0]["id"] == "doc-7"
    assert [hit["id"] for hit in found] == [hit["id"] for hit in own[1:]]
    unknown = search(service, like=["nobody"])
    assert unknown.status_code == 404
    said_well(unknown)


@pytest.mark.parametrize(
    "options",
    [{"offset": -1}, {"offset": 61}, {"offset": "x"}, {"min_score": "x"}, {"min_score": 1e31}, {"mmr": 2},
     {"mmr": True}, {"group_by": ""}, {"group_by": 3}, {"group_size": 0}, {"fusion": "best"}, {"combine": "min"},
     {"like": ["doc-1"]}, {"k": 50, "offset": 60}],
)  # fmt: skip
def test_invalid_shapings_are_errors_with_a_remedy(service, options):
    found = search(service, vectors=[vector(1)], **options)
    assert found.status_code == 422, found.text
    said_well(found)
