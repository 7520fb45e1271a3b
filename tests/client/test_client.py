"""The client against a stand-in server: what is sent, what comes back, what is tried again and what is not."""

import asyncio
import json
import time

import httpx
import numpy as np
import pytest

import bidr
from bidr.client.client import AsyncClient, Client
from bidr.client.errors import Conflict, NotAllowed, Rejected, ServiceError, Unavailable
from bidr.client.requests import parse_answers
from bidr.client.retry import Retry
from bidr.data.types import Document
from bidr.errors import BidrError, ConfigError, DataError
from bidr.search.types import QueryVectors, SearchHit, SearchResult, Timings

LIMITS = {"queries": 4, "reads": 2_000, "answers": 1_000, "documents": 3, "body": 1_000}
INDEX = {"name": "made", "documents": 9, "dim": 2, "candidates": 100, "limits": LIMITS}
ROW = {"rank": 1, "id": "a", "score": 0.5, "candidate_rank": 7, "candidate_score": 0.25}
TIMINGS = {"encode": 1.0, "candidates": 2.0, "reads": 3.0, "ranking": 4.0, "total": 10.0}
QUICK = Retry(times=3, patience=5.0)


class Server:
    """Answers like one, after `failures`: status codes, or exceptions that break the connection."""

    def __init__(self, *failures: int | Exception, headers: dict[str, str] | None = None) -> None:
        self.failures, self.headers, self.requests = list(failures), headers or {}, []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self.failures and request.url.path != "/v1/index":
            failure = self.failures.pop(0)
            if isinstance(failure, Exception):
                raise failure
            error = {"type": "kind", "message": "no", "given": "x", "expected": "y", "hint": "do z"}
            return httpx.Response(failure, json={"error": error}, headers=self.headers)
        return httpx.Response(200, json=self.answer(request))

    def answer(self, request: httpx.Request) -> dict:
        if request.url.path == "/v1/index":
            return INDEX
        if request.url.path == "/v1/documents":
            ids = request.url.params.get_list("id")
            if request.method == "POST":
                return {"added": len(json.loads(request.content)["documents"]), "replaced": 0}
            if request.method == "DELETE":
                return {"deleted": len(ids)}
            found = [{"id": name, "title": "t", "text": "x", "attributes": {"n": 1}} for name in ids if name != "no"]
            return {"documents": found, "missing": [name for name in ids if name == "no"]}
        binary = request.headers["content-type"] == "application/octet-stream"
        count = len(request.content) // 8 if binary else len(json.loads(request.content)["texts"])
        document = {"title": "T", "text": "Text", "attributes": {"lang": "en"}}
        return {"results": [{"answers": [ROW | document], "timings": TIMINGS}] * count, "generation": 1}

    def bodies(self, path: str = "/v1/search") -> list[dict]:
        return [json.loads(request.content) for request in self.requests if request.url.path == path]


def client(server: Server, **options) -> Client:
    return Client("http://made", transport=httpx.MockTransport(server), retry=QUICK, **options)


FOUND = SearchHit(1, "a", 0.5, 7, 0.25, Document("a", "T", "Text", {"lang": "en"}))


def test_answers_are_those_of_the_local_searcher():
    server = Server()
    with client(server) as searcher:
        one = searcher.search("words", k=3, candidates=50, filter={"lang": "en"})
        assert isinstance(one, SearchResult)
        assert one == [FOUND]
        assert one.timings == Timings(1.0, 2.0, 3.0, 4.0)
        assert searcher.search(["a", "b"]) == [[FOUND], [FOUND]]
        assert searcher.search([]) == []
    assert server.bodies()[0] == {"texts": ["words"], "k": 3, "candidates": 50, "filter": {"lang": "en"}}


def test_async_gives_the_same():
    async def run():
        async with AsyncClient("http://made", transport=httpx.MockTransport(Server(503)), retry=QUICK) as searcher:
            assert (await searcher.index())["documents"] == 9
            assert await searcher.add([Document("a", "", "")]) == 1
            assert await searcher.delete(["a"]) == 1
            assert list(await searcher.get(["a"])) == ["a"]
            assert await searcher.search_vectors(np.zeros((1, 2))) == [[FOUND]]
            return await searcher.search("words"), await searcher.search(["a", "b"])

    assert asyncio.run(run()) == ([FOUND], [[FOUND], [FOUND]])


def test_vectors_go_as_bytes():
    server = Server()
    rows = np.array([[1, 2], [3, 4], [5, 6]], dtype=np.float64)
    with client(server) as searcher:
        found = searcher.search_vectors(rows, k=2, filter={"n": 1}, codes_only=True)
        assert searcher.load_results(found) == [[FOUND]] * 3
        sent = server.requests[-1]
        assert np.frombuffer(sent.content, dtype="<f4").tolist() == [1, 2, 3, 4, 5, 6]
        assert dict(sent.url.params) == {"k": "2", "filter": '{"n": 1}', "codes_only": "true", "dim": "2"}
        assert searcher.search_vectors(QueryVectors(rows, rows)) == found
        with pytest.raises(ConfigError, match="two sides"):
            searcher.search_vectors(QueryVectors(rows, 2 * rows))
        with pytest.raises(DataError, match=r"vector\[None\]"):
            searcher.search_vectors(rows[0])


@pytest.mark.parametrize("made", [[], [{"answers": [], "timings": TIMINGS}] * 2])
def test_responses_with_another_number_of_results_are_refused(monkeypatch, made):
    """A server that takes one wide row for two queries must not pass for one that answered."""
    monkeypatch.setattr(Server, "answer", lambda self, request: {"results": made, "generation": 1})
    with client(Server()) as searcher:
        for call in (lambda: searcher.search("words"), lambda: searcher.search_vectors(np.zeros((1, 2)))):
            with pytest.raises(ServiceError, match=f"{len(made)} results, expected 1"):
                call()


def test_a_single_id_or_document_is_refused():
    """Letters of an id are ids too: deleting "12" must not delete "1" and "2"."""
    server = Server()
    calls = [
        (lambda one: one.delete("12"), r"ids: given the string '12', expected a list of ids; for one write \['12'\]"),
        (lambda one: one.get("12"), "given the string '12'"),
        (lambda one: one.delete([1.5, 2]), r"ids: number 0: id is 1.5 \(float\), expected a string or a whole number"),
        (lambda one: one.add(Document("a", "", "")), r"given a single Document, expected .* \[document\]"),
        (lambda one: one.add("a"), "given a single str"),
    ]

    async def run(call, said):
        async with AsyncClient("http://made", transport=httpx.MockTransport(server)) as searcher:
            with pytest.raises(DataError, match=said):
                await call(searcher)

    for call, said in calls:
        with client(server) as searcher, pytest.raises(DataError, match=said):
            call(searcher)
        asyncio.run(run(call, said))
    assert not server.requests


def test_many_are_sent_in_parts_that_the_server_allows():
    server = Server()
    with client(server) as searcher:
        for depth in (1, 1_000):
            assert len(searcher.search([str(number) for number in range(5)], candidates=depth)) == 5
        documents = [Document(str(number), "t", "x" * (450 if number < 2 else 1)) for number in range(6)]
        assert searcher.add(documents) == 6
        assert searcher.delete([str(number) for number in range(7)]) == 7
        assert list(searcher.get(["a", "no", "b", "c"])) == ["a", "b", "c"]
    assert [len(body["texts"]) for body in server.bodies()] == [4, 1, 2, 2, 1], "by queries, then by vectors to be read"
    posts = [
        json.loads(one.content)["documents"]
        for one in server.requests
        if one.method == "POST" and b"documents" in one.content
    ]
    assert [len(one) for one in posts] == [1, 3, 2]
    assert sum(one.url.path == "/v1/index" for one in server.requests) == 1


def test_bodies_and_addresses_stay_short():
    server = Server()
    ids = [f"doc {number} " + "ä" * 50 for number in range(60)]
    with client(server) as searcher:
        assert len(searcher.search(["x" * 400, "y" * 400, "z" * 400, "w"], k=1)) == 4
        assert len(searcher.search_vectors(np.zeros((3, 2)), k=1)) == 3
        searcher._builder._index_info = INDEX | {"limits": LIMITS | {"documents": 1_000, "body": 20, "queries": 100}}
        assert len(searcher.search_vectors(np.zeros((5, 2)), k=1)) == 5
        assert list(searcher.get(ids)) == ids
        assert searcher.delete(ids) == 60
    texts = [one.content for one in server.requests if one.headers.get("content-type") == "application/json"]
    assert [len(json.loads(body)["texts"]) for body in texts] == [2, 2]
    assert max(map(len, texts)) <= LIMITS["body"]
    rows = [len(one.content) for one in server.requests if one.content and one.content not in texts]
    assert rows == [24, 16, 16, 8]
    named = [one for one in server.requests if one.url.path == "/v1/documents"]
    assert len(named) == 6, "three each"
    assert all(len(one.url.raw_path) < 8_000 for one in named)


def test_lexical_options_are_those_of_the_local_searcher():
    server = Server()
    with client(server, lexical=30, lexical_weight=0.5) as searcher:
        searcher.search("a")
        searcher.search("a", lexical=7)
        searcher.search("a", lexical=0, lexical_weight=0.0, codes_only=True)
        searcher.search_vectors(np.zeros((1, 2)), lexical=3)
        searcher.search([str(number) for number in range(4)], candidates=500, lexical=500)
    assert dict(server.requests[3].url.params) == {
        "k": "10",
        "lexical": "3",
        "lexical_weight": "0.5",
        "dim": "2",
    }
    bodies = [json.loads(one.content) for one in server.requests if b"texts" in one.content]
    told = [{name: value for name, value in body.items() if name not in ("texts", "k")} for body in bodies]
    assert told[:3] == [
        {"lexical": 30, "lexical_weight": 0.5},
        {"lexical": 7, "lexical_weight": 0.5},
        {"lexical": 0, "lexical_weight": 0.0, "codes_only": True},
    ]
    assert [len(body["texts"]) for body in bodies[3:]] == [2, 2], "what words add is read too"
    (found,) = parse_answers({"results": [{"answers": [ROW | {"word_rank": 4}], "timings": TIMINGS}]})
    assert found[0].word_rank == 4
    with client(server) as searcher, pytest.raises((TypeError, ValueError)):
        searcher.search("a", lexcal=3)


def test_numbers_of_numpy_are_numbers():
    server = Server()
    with client(server, candidates=np.int64(500), lexical_weight=np.float64(0.5)) as searcher:
        searcher.search("a", k=np.int64(3), filter={"n": {"any": [np.int64(1)]}}, codes_only=np.True_)
        searcher.search_vectors(np.zeros((1, 2)), k=np.uint8(3), filter={"n": np.float64(0.25)})
        searcher.search([str(number) for number in range(4)], k=np.int64(500))
        searcher.add([Document("a", "", "", {"n": np.int64(1)})])
        with pytest.raises(DataError, match=r"given .*object.*, expected .* JSON"):
            searcher.search("a", filter={"n": object()})
    one, *parts = [json.loads(each.content) for each in server.requests if b"texts" in each.content]
    filter = {"n": {"any": [1]}}
    assert one == {
        "texts": ["a"],
        "k": 3,
        "candidates": 500,
        "filter": filter,
        "codes_only": True,
        "lexical_weight": 0.5,
    }
    assert dict(server.requests[1].url.params)["filter"] == '{"n": 0.25}'
    assert [len(part["texts"]) for part in parts] == [2, 2], "as many as the answers to all allow"


def test_retries_wait_for_retry_after(monkeypatch):
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    server = Server(503, 429, headers={"retry-after": "2"})
    with client(server, key="secret") as searcher:
        assert searcher.search("words") == [FOUND]
    assert len(server.requests) == 3
    assert all(2 <= wait <= 2.2 for wait in waits)
    assert server.requests[0].headers["authorization"] == "Bearer secret"


def test_patience_ends(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda wait: None)
    server = Server(*[503] * 9)
    with client(server) as searcher, pytest.raises(Unavailable, match="no: given x, expected y; do z") as error:
        searcher.search("words")
    assert error.value.status == 503
    assert len(server.requests) == 1 + QUICK.times
    server = Server(503, headers={"retry-after": "60"})
    with client(server) as searcher, pytest.raises(Unavailable):
        searcher.search("words")
    assert len(server.requests) == 1, "nobody waits a minute who has patience for five seconds"


@pytest.mark.parametrize(
    ("status", "kind", "local"),
    [
        (400, Rejected, DataError),
        (413, Rejected, DataError),
        (422, Rejected, DataError),
        (422, Rejected, ConfigError),
        (401, NotAllowed, ConfigError),
        (403, NotAllowed, ConfigError),
        (409, Conflict, BidrError),
        (500, Unavailable, BidrError),
        (504, Unavailable, BidrError),
    ],
)
def test_what_is_refused_is_not_sent_again_and_is_an_error_of_the_library(status, kind, local):
    server = Server(status)
    with client(server) as searcher, pytest.raises(local) as error:
        searcher.search("words")
    assert isinstance(error.value, kind)
    assert error.value.kind == "kind"
    assert len(server.requests) == 1


def test_only_idempotent_requests_are_retried_after_a_broken_connection(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda wait: None)
    documents = [Document("a", "", "")]
    calls = {
        "search": (lambda one: one.search("words"), True),
        "add": (lambda one: one.add(documents), True),
        "add new": (lambda one: one.add(documents, replace=False), False),
        "delete": (lambda one: one.delete(["a"]), False),
        "delete, perhaps": (lambda one: one.delete(["a"], missing_ok=True), True),
    }
    for name, (call, again) in calls.items():
        with client(Server(httpx.ConnectError("down"))) as searcher:
            assert call(searcher), f"{name}: the first never arrived"
        broken = Server(httpx.ReadError("gone"))
        with client(broken) as searcher:
            if again:
                assert call(searcher), name
            else:
                with pytest.raises(Unavailable, match="cannot be reached"):
                    call(searcher)


def test_an_unreachable_server_is_an_error_in_one_line(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda wait: None)
    with (
        client(Server(*[httpx.ConnectError("refused")] * 9)) as searcher,
        pytest.raises(Unavailable, match=r"http://made cannot be reached \(ConnectError: refused\); is `bidr serve`"),
    ):
        searcher.search("words")
    with pytest.raises(ConfigError, match=r"a folder is opened by bidr\.open_index"):
        bidr.Client("runs/index")


def test_waits_grow_and_differ():
    retry = Retry(times=10, patience=1e9)
    waits = [[retry.compute_delay(number, None, 0.0) for _ in range(50)] for number in range(8)]
    for number, some in enumerate(waits):
        most = min(0.1 * 2**number, 10.0)
        assert all(0.5 * most <= wait <= most for wait in some)
        assert len(set(some)) > 1
    assert retry.compute_delay(10, None, 0.0) is None
