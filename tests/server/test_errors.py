"""Refusals: each says what is wrong, what was given, what was expected and what to do, as JSON writes it."""

import asyncio
import json
from typing import ClassVar

import httpx
import pytest
from sample_server import DIM, READ, WRITE, asking, made, opened, said_well

from bidr.server.config import ApiKeys
from bidr.server.document_endpoint import DocumentEndpoint
from bidr.server.errors import HTTPError, to_error_body
from bidr.server.http_messages import BINARY, JSON
from bidr.server.limits import RequestLimits


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return made(tmp_path_factory.mktemp("refusals") / "index")


@pytest.fixture(scope="module")
def service(index):
    return opened(index, limits=RequestLimits(body=20_000, k=50, queries=8, rate=0))


def ask(service, method, path, **given):
    async def go():
        async with asking(service) as client:
            return await client.request(method, path, **given)

    return asyncio.run(go())


DEEP = "lists within lists"  # more than Python's own JSON can write


def make_json_response(value):
    return json.dumps(value).replace(f'"{DEEP}"', "[" * 1000 + "]" * 1000)


ONE = {"vectors": [[0.1] * DIM]}
JUNK = (None, True, "5", -1, 1.5, [], {}, [None], {"a": True}, "it's", DEEP)


@pytest.mark.parametrize(
    "body",
    [
        *JUNK,
        *({"texts": value} for value in JUNK),
        *({"vectors": value} for value in JUNK),
        *({"vectors": [value]} for value in JUNK),
        *({"vectors": [[value] + [0.1] * (DIM - 1)]} for value in (None, True, "5", [], 1e308)),
        *(ONE | {name: value} for name in ("k", "candidates", "text", "model", "lexical_weight") for value in JUNK),
        *(ONE | {"filter": value} for value in JUNK),
        *(ONE | {"filter": {name: value}} for name in ("n", "not", "or") for value in JUNK),
        *(ONE | {"filter": {"n": {name: value}}} for name in ("any", "gte", "near") for value in JUNK),
        ONE | {"filter": {"n": {"gte": 1, "lt": "a"}}},
        ONE | {"filter": {"n": {"gte": True}}},
        ONE | {"other": 1},
    ],
)
def test_every_error_has_given_expected_and_hint_as_json(service, body):
    """What is wrong, what was given, what was expected, what to do: null, true and double quotes, as clients write."""
    said_well(ask(service, "POST", "/v1/search", content=make_json_response(body), headers={"content-type": JSON}))


@pytest.mark.parametrize(
    ("method", "path", "given"),
    [
        ("POST", "/v1/search", {"content": b"{", "headers": {"content-type": JSON}}),
        ("POST", "/v1/search", {"content": b"", "headers": {"content-type": JSON}}),
        ("POST", "/v1/search", {"content": b"[NaN]", "headers": {"content-type": JSON}}),
        ("POST", "/v1/search", {"content": b"abc"}),
        ("POST", "/v1/search", {"content": b"abc", "headers": {"content-type": BINARY}}),
        ("POST", "/v1/search", {"content": b"\xff" * 4 * DIM, "headers": {"content-type": BINARY}}),
        ("POST", "/v1/search", {"content": bytes(30_000), "headers": {"content-type": BINARY}}),
        *(
            ("POST", f"/v1/search?{query}", {"json": ONE})
            for query in ("k=", "k=x", "%ff=1", "a", "text=1", "filter={")
        ),
        *(("POST", f"/v1/search?{query}", {"json": ONE}) for query in ("k=1&k=2", "dim=3", "filter=null", "model=")),
        *(("GET", f"/v1/documents{query}", {}) for query in ("", "?id=", "?a=1", "?id=" + "x" * 600)),
        ("POST", "/v1/documents", {"json": {"documents": []}}),
        ("DELETE", "/v1/documents?id=a", {}),
        ("PUT", "/v1/search", {}),
        ("PUT", "/", {}),
        ("GET", "/nothing", {}),
        ("GET", "/v1/index", {"headers": {"host": "elsewhere.example"}}),
    ],
)
def test_so_does_every_other(service, method, path, given):
    said_well(ask(service, method, path, **given))


@pytest.mark.parametrize("key", [None, "a-key-that-nobody-has", READ])
def test_so_does_the_doorkeeper(index, key):
    service = opened(index, keys=ApiKeys(read=READ, write=WRITE), limits=RequestLimits(rate=1))
    headers = {"authorization": f"Bearer {key}"} if key else {}
    for _ in range(3):
        said_well(ask(service, "POST", "/v1/documents", json={"documents": []}, headers=headers))


@pytest.mark.parametrize(
    "documents",
    [
        *JUNK,
        *([value] for value in JUNK),
        *([{"id": value}] for value in JUNK),
        *([{"id": "a", "text": value}] for value in JUNK if value != "5"),
        *([{"id": "a", "attributes": value}] for value in JUNK),
        *([{"id": "a", "attributes": {"n": value}}] for value in (None, [1], {}, 1e300, 1 << 70)),
        *([{"id": "a", "attributes": {value: 1}}] for value in ("", "not", "x" * 300)),
        *([{"id": "a", "vector": value}] for value in JUNK),
        [{"id": "a", "other": 1}],
        [{"id": "a"}, {"id": "a"}],
    ],
)
def test_so_do_documents(service, documents):
    for replace in (False, "yes"):
        with pytest.raises(HTTPError) as caught:
            asyncio.run(documents_of(service, {"documents": documents, "replace": replace}))
        said_well(httpx.Response(caught.value.status, json=to_error_body(caught.value)))


async def documents_of(service, body):
    """Through the handler that adds, for a server that may write; nothing here is ever written."""
    asked = service.documents
    writing = DocumentEndpoint(
        service.retry_on_new_snapshot, service.run_on_thread, asked.holder, asked.limits, asked.metrics, object()
    )

    class Given:
        log_fields: ClassVar[dict] = {}

        async def read_body(self, *types):
            return make_json_response(body).encode()

    await writing.add(Given())
