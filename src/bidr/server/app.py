"""The ASGI application: which path does what, and what is done for every request."""

import asyncio
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, TypeVar

from bidr.errors import IndexFolderError, SearchTimeoutError
from bidr.search.types import QueryVectors
from bidr.server import search_request as asking
from bidr.server.asgi import (
    BINARY,
    CLOSE,
    JSON,
    BodyBudget,
    ClientDisconnected,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    make_json_response,
    send_reply,
)
from bidr.server.auth import Authenticator, Permission
from bidr.server.config import ServerConfig
from bidr.server.connections import ConnectionTable
from bidr.server.document_endpoint import DocumentEndpoint
from bidr.server.errors import (
    DEADLINE_MESSAGE,
    DeadlineExceeded,
    HTTPError,
    IndexConflict,
    InternalError,
    InvalidRequest,
    Overloaded,
    make_method_error,
    to_error_body,
    to_http_error,
)
from bidr.server.index_holder import IndexHolder, IndexSnapshot, describe_index
from bidr.server.json_logs import log, log_fault
from bidr.server.metrics import Metrics
from bidr.server.openapi import document
from bidr.server.query_params import RequestParser, ValidationContext
from bidr.server.search_handler import search
from bidr.server.static_files import StaticFiles
from bidr.server.writer_client import WriterClient

Handler = Callable[[Request], Awaitable[Response]]
Result = TypeVar("Result")
BEHIND = "the newest state of the index cannot be opened; the server's log says why"


class SearchService:
    """What a worker does: the handlers of all paths, and what they share. `link` is None where it only reads."""

    def __init__(
        self, settings: ServerConfig, served: IndexHolder, metrics: Metrics, link: WriterClient | None = None
    ) -> None:
        self.settings, self.limits, self.served, self.metrics = settings, settings.limits, served, metrics
        self.started = self.draining = False
        self.doors = Authenticator(settings.keys, self.limits.rate, settings.allowed_hosts)
        self.bodies = BodyBudget(self.limits.bodies)
        self.pool = ThreadPoolExecutor(max(settings.threads, 1), "search")
        self._searching = 0
        metrics.queue = lambda: self._searching
        self._reading = self._reading_of(served.now)
        self.connections, self.link = ConnectionTable(self.limits.connections), link
        self.documents = DocumentEndpoint(self.steady, self.on_thread, served, self.limits, metrics, link)

    async def search(self, call: Request) -> Response:
        """POST /v1/search"""
        body = await call.body(JSON, BINARY)
        return await self.steady(lambda serving: self._search(call, body, serving))

    async def steady(self, work: Callable[[IndexSnapshot], Awaitable[Response]]) -> Response:
        """Do it again with the newest state, if parts of the one that it began with are gone by now.

        What is open of a state stays readable; columns and tables of ids are opened when they are first asked for.
        """
        serving = self.served.now
        try:
            return await work(serving)
        except IndexFolderError:
            await asyncio.get_running_loop().run_in_executor(None, self.served.look)
            if self.served.now is serving:
                raise
            return await work(self.served.now)

    async def _search(self, call: Request, body: bytes, serving: IndexSnapshot) -> Response:
        asked = self._asked(call, body, serving)
        call.notes |= {"queries": asked.queries, "k": asked.k, "candidates": asked.candidates}
        if asked.model is not None and asked.model != serving.fingerprint:
            raise IndexConflict(
                "the index was made by another model",
                given=asked.model,
                expected=serving.fingerprint or "no model: the index was made from vectors",
                hint="encode queries with the model of the index",
            )
        started = time.perf_counter()
        queries = await self._encoded(serving, asked, call.deadline)
        encode = 1000 * (time.perf_counter() - started) if asked.texts is not None else 0.0
        found = await self.on_thread(search, serving, asked, queries, call.deadline, encode)
        self.metrics.record_search(asked.queries, found.reads, found.steps)
        return Response(found.body)

    def _asked(self, call: Request, body: bytes, serving: IndexSnapshot) -> asking.SearchRequest:
        read = asking.parse_binary_search if call.content_type == BINARY else asking.parse_json_search
        if self._reading[0]() is not serving:
            self._reading = self._reading_of(serving)
        reading = self._reading[1]
        return read(body, reading.said(call.scope["query_string"]), reading.rules)

    def _reading_of(self, serving: IndexSnapshot) -> "tuple[weakref.ref[IndexSnapshot], RequestParser]":
        return weakref.ref(serving), RequestParser(
            ValidationContext(self.limits, serving.candidates, serving.dim, serving.words)
        )

    async def _encoded(self, serving: IndexSnapshot, asked: asking.SearchRequest, deadline: float) -> QueryVectors:
        if asked.vectors is not None:
            return serving.query_vectors(asked.vectors)
        if serving.service is None:
            raise InvalidRequest(
                "the index has no text encoder", given="texts", expected="vectors", hint="encode the queries yourself"
            )
        assert asked.texts is not None
        return await serving.service.encode(asked.texts, deadline)

    async def on_thread(self, work: Callable[..., Result], *given: Any) -> Result:
        """Run on one of the search threads, if not too many wait for one; without threads here and now."""
        if not self.settings.threads:
            return work(*given)
        if self._searching >= self.settings.threads + self.limits.queue:
            raise Overloaded(1.0, hint="try again later, or start more workers (limit.queue)")
        self._searching += 1
        running = asyncio.get_running_loop().run_in_executor(self.pool, work, *given)
        # A thread goes on though its request was given up: it counts until it is done.
        running.add_done_callback(self._done)
        return await asyncio.shield(running)

    def _done(self, running: "asyncio.Future[Any]") -> None:
        self._searching -= 1
        if not running.cancelled():
            running.exception()  # looked at, though nobody may wait for it any more

    async def index(self, call: Request) -> Response:
        """GET /v1/index"""
        return make_json_response(describe_index(self.served, asdict(self.limits)))

    async def live(self, call: Request) -> Response:
        """GET /livez"""
        return make_json_response({"status": "live"})

    async def ready(self, call: Request) -> Response:
        """GET /readyz"""
        serving, trouble = self.served.now, self.served.trouble
        state = "draining" if self.draining else "starting" if not self.started else "behind" if trouble else "ready"
        told = {
            "status": state,
            "generation": serving.generation,
            "documents": serving.view.count,
            "model": serving.fingerprint,
            "trouble": BEHIND if trouble else None,
        }
        return make_json_response(told, 503 if self.draining or not self.started else 200)

    async def openapi(self, call: Request) -> Response:
        """GET /openapi.json"""
        return make_json_response(document(self.served.now, self.limits, keys=self.settings.keys.any))

    def refuse_malformed(self, client: str, error: HTTPError) -> Response:
        """Answer, count and log what is no HTTP request."""
        try:
            self.doors.count(client)
        except HTTPError as too_many:
            error = too_many
        self.metrics.record_request("other", error.status, 0.0)
        if self.settings.access_log:
            log("malformed", "warning", status=error.status, why=error.message, given=error.given, client=client)
        return refuse(error)

    async def metrics_page(self, call: Request) -> Response:
        """GET /metrics"""
        body, kind = self.metrics.render()
        return Response(body, 200, kind)


class Endpoint:
    """One path: its methods, who may use them, and what is the same for all requests."""

    def __init__(self, service: SearchService, path: str, right: Mapping[str, Permission], **methods: Handler) -> None:
        self.service, self.path, self.right, self.methods = service, path, right, methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self.service
        call = Request(scope, receive, service.limits, service.bodies)
        left = False
        try:
            async with asyncio.timeout(service.limits.seconds):
                reply = await self._answer(call)
        except ClientDisconnected:
            reply, left = Response(b"", 499), True
        except TimeoutError:
            writes = self.right.get(scope["method"]) == "write"
            reply = refuse(
                DeadlineExceeded(
                    DEADLINE_MESSAGE,
                    expected=f"at most {service.limits.seconds:g} s",
                    hint="it may have been written: send it again" if writes else "ask for less at once",
                )
            )
        except Exception as error:
            refused = to_http_error(error)
            if refused is None or (refused.status >= 500 and not isinstance(error, HTTPError | SearchTimeoutError)):
                log_fault("fault", error, path=self.path)
            reply = refuse(refused) if refused else FAULT
        finally:
            call.forget()
        status = reply.status
        if not left:
            closing = (CLOSE,) if service.draining or (call.unread and status >= 400) else ()
            await send_reply(send, reply, closing)
        took = time.monotonic() - call.started
        service.metrics.record_request(self.path, status, took)
        if service.settings.access_log:
            log(
                "request",
                method=scope["method"],
                path=self.path,
                status=status,
                ms=round(1000 * took, 2),
                client=call.client,
                **call.notes,
            )

    async def _answer(self, call: Request) -> Response:
        method = call.scope["method"]
        handler = self.methods.get("GET" if method == "HEAD" else method)
        self.service.doors.admit(call, self.right.get(method, "read") if handler else "none")
        if handler is None:
            allowed = ", ".join([*self.methods, *(["HEAD"] if "GET" in self.methods else [])])
            raise make_method_error(method, allowed)
        if self.service.connections.is_over_limit:
            call.unread = True
            raise Overloaded(1.0, "too many connections are open", hint="keep fewer (limit.connections)")
        return await handler(call)


def refuse(error: HTTPError) -> Response:
    """The answer to a request that is refused."""
    return make_json_response(to_error_body(error), error.status, error.headers)


FAULT = refuse(
    InternalError(
        "a fault of the server; its log says more", hint="try again; if it stays, report it with the server's log"
    )
)


def make_app(service: SearchService) -> Any:
    """The application that uvicorn runs."""
    from fastapi import FastAPI
    from starlette.routing import Route

    documents = service.documents
    open_to_all: dict[str, Permission] = {"GET": "none", "HEAD": "none"}
    health: dict[str, Permission] = {"GET": "health", "HEAD": "health"}
    found: dict[str, tuple[dict[str, Permission], dict[str, Handler]]] = {
        "/v1/search": ({}, {"POST": service.search}),
        "/v1/documents": (
            {"POST": "write", "DELETE": "write"},
            {"GET": documents.fetch, "POST": documents.add, "DELETE": documents.delete},
        ),
        "/v1/index": ({}, {"GET": service.index}),
        "/metrics": ({}, {"GET": service.metrics_page}),
        "/openapi.json": (open_to_all, {"GET": service.openapi}),
        "/livez": (health, {"GET": service.live}),
        "/readyz": (health, {"GET": service.ready}),
    }
    endpoints = {path: Endpoint(service, path, right, **methods) for path, (right, methods) in found.items()}
    app = FastAPI(title="bidr", docs_url=None, redoc_url=None, openapi_url=None)
    app.router.routes = [Route(path, endpoint) for path, endpoint in endpoints.items()]
    # Of any method: a path that is not there is 404 for all of them.
    every = dict.fromkeys(("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"), StaticFiles())
    app.router.default = Endpoint(service, "other", dict.fromkeys((*every, "HEAD"), "none"), **every)
    app.router.redirect_slashes = False
    search = endpoints["/v1/search"]

    async def quickest_first(scope: Scope, receive: Receive, send: Send) -> None:
        # The layers of an application take a tenth of what a search does; searches need none of them.
        if scope["type"] == "http" and scope["path"] == "/v1/search":
            await search(scope, receive, send)
        else:
            await app(scope, receive, send)

    return quickest_first
