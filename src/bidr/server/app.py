"""The ASGI application: routes, handlers, and error handling, metrics and logging of all requests."""

import asyncio
import copy
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, TypeVar

from bidr.errors import IndexFolderError, SearchTimeoutError
from bidr.search.cross_encoder import CrossEncoder
from bidr.search.types import QueryVectors
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
from bidr.server.http_messages import (
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
    send_response,
)
from bidr.server.index_endpoint import PREFIX, IndexEndpoint, IndexTable
from bidr.server.index_holder import IndexHolder, IndexSnapshot, describe_attributes, describe_index
from bidr.server.json_logs import log, log_fault
from bidr.server.metrics import Metrics
from bidr.server.openapi import make_openapi
from bidr.server.request_tracer import RequestTracer, open_tracer
from bidr.server.search_handler import read_document_query, search
from bidr.server.search_request import RequestParser, SearchRequest, ValidationContext
from bidr.server.static_files import StaticFiles
from bidr.server.writer_client import WriterClient

Handler = Callable[[Request], Awaitable[Response]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Route = tuple[dict[str, Permission], dict[str, Handler]]
"""Permissions and handlers by method."""
Result = TypeVar("Result")
REFRESH_FAILED = "the newest state of the index cannot be opened; the server's log says why"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


class SearchQueue:
    """Number of searches that wait for a thread or have one, of all indexes of a worker."""

    length = 0


class SearchService:
    """The handlers of a worker and the state that they share. `writer` is None on a read-only server."""

    def __init__(
        self, config: ServerConfig, holder: IndexHolder, metrics: Metrics, writer: WriterClient | None = None
    ) -> None:
        self.config, self.limits, self.holder, self.metrics = config, config.limits, holder, metrics
        self.started = self.draining = False
        self.authenticator = Authenticator(config.keys, self.limits.rate, config.allowed_hosts)
        self.body_budget = BodyBudget(self.limits.bodies)
        self.pool = ThreadPoolExecutor(max(config.threads, 1), "search")
        self._queue = SearchQueue()
        metrics.count_searches = lambda: self._queue.length
        self.connections, self.writer = ConnectionTable(self.limits.connections), writer
        self.table: IndexTable | None = None
        self.reranker = CrossEncoder(config.reranker) if config.reranker is not None else None
        self.tracer: RequestTracer | None = open_tracer() if config.traces else None
        self._open(holder, writer)

    def _open(self, holder: IndexHolder, writer: WriterClient | None) -> None:
        self.holder, self._parser = holder, self._make_parser(holder.current)
        self.documents = DocumentEndpoint(
            self.retry_on_new_snapshot, self.run_on_thread, holder, self.limits, self.metrics, writer
        )

    def attach(self, holder: IndexHolder, writer: WriterClient | None) -> "SearchService":
        """Return a service of another index that shares threads, limits, keys and connections with this one."""
        service = copy.copy(self)
        service._open(holder, writer)
        return service

    async def search(self, request: Request) -> Response:
        """Handle POST /v1/search."""
        body = await request.read_body(JSON, BINARY)
        return await self.retry_on_new_snapshot(lambda snapshot: self._search(request, body, snapshot))

    async def retry_on_new_snapshot(self, handle: Callable[[IndexSnapshot], Awaitable[Response]]) -> Response:
        """Handle a request again on the newest snapshot if files of the first one were deleted.

        Open files of a snapshot stay readable, but columns and id tables are opened on first use.
        """
        snapshot = self.holder.current
        try:
            return await handle(snapshot)
        except IndexFolderError:
            await asyncio.get_running_loop().run_in_executor(None, self.holder.refresh)
            if self.holder.current is snapshot:
                raise
            return await handle(self.holder.current)

    async def _search(self, http_request: Request, body: bytes, snapshot: IndexSnapshot) -> Response:
        request = self._parse(http_request, body, snapshot)
        http_request.log_fields |= {"queries": request.queries, "k": request.k, "candidates": request.candidates}
        if request.model is not None and request.model != snapshot.fingerprint:
            raise IndexConflict(
                "the index was made by another model",
                given=request.model,
                expected=snapshot.fingerprint or "no model: the index was made from vectors",
                hint="encode queries with the model of the index",
            )
        started = time.perf_counter()
        queries = await self._encode(snapshot, request, http_request.deadline)
        encode_ms = 1000 * (time.perf_counter() - started) if request.texts is not None else 0.0
        if request.rerank and self.reranker is None:
            raise InvalidRequest(
                "rerank: the server has no cross-encoder",
                given=request.rerank,
                expected="0",
                hint="whoever runs it can start it with --reranker FOLDER; or leave it out",
            )
        reranker = (self.reranker,) if request.rerank else ()
        outcome = await self.run_on_thread(
            search, snapshot, request, queries, http_request.deadline, encode_ms, *reranker
        )
        self.metrics.record_search(request.queries, outcome.reads, outcome.steps, outcome.read_stats)
        http_request.steps = outcome.steps
        return Response(outcome.body)

    def _parse(self, http_request: Request, body: bytes, snapshot: IndexSnapshot) -> SearchRequest:
        if self._parser[0]() is not snapshot:
            self._parser = self._make_parser(snapshot)
        parser = self._parser[1]
        parse = parser.parse_binary if http_request.content_type == BINARY else parser.parse_json
        return parse(body, parser.parse_params(http_request.scope["query_string"]))

    def _make_parser(self, snapshot: IndexSnapshot) -> "tuple[weakref.ref[IndexSnapshot], RequestParser]":
        recommended = snapshot.recommended
        context = ValidationContext(
            self.limits,
            snapshot.candidates,
            snapshot.dim,
            snapshot.has_lexical,
            recommended.lexical,
            recommended.lexical_weight,
        )
        return weakref.ref(snapshot), RequestParser(context)

    async def _encode(self, snapshot: IndexSnapshot, request: SearchRequest, deadline: float) -> QueryVectors:
        if request.vectors is not None:
            return snapshot.to_query_vectors(request.vectors)
        if request.like is not None:
            return await self.run_on_thread(read_document_query, snapshot, request.like, deadline)
        if snapshot.encoder is None:
            raise InvalidRequest(
                "the index has no text encoder",
                given="texts",
                expected="vectors",
                hint="encode the queries yourself, or start the server with the encoder of the vectors (--encoder)",
            )
        assert request.texts is not None
        queries = await snapshot.encoder.encode(request.texts, deadline)
        return queries if snapshot.has_text_model else snapshot.to_query_vectors(queries.vectors)

    async def run_on_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a function on a search thread, or inline without threads; raises Overloaded if the queue is full."""
        if not self.config.threads:
            return function(*arguments)
        if self._queue.length >= self.config.threads + self.limits.queue:
            raise Overloaded(1.0, hint="try again later, or start more workers (limit.queue)")
        self._queue.length += 1
        future = asyncio.get_running_loop().run_in_executor(self.pool, function, *arguments)
        # A thread continues after its request was cancelled, and counts until it ends.
        future.add_done_callback(self._finish)
        return await asyncio.shield(future)

    def _finish(self, future: "asyncio.Future[Any]") -> None:
        self._queue.length -= 1
        if not future.cancelled():
            future.exception()  # retrieved, or asyncio logs it when the request was cancelled

    async def get_index(self, request: Request) -> Response:
        """Handle GET /v1/index."""
        return make_json_response(describe_index(self.holder, asdict(self.limits)))

    async def get_schema(self, request: Request) -> Response:
        """Handle GET /v1/schema."""

        async def describe(snapshot: IndexSnapshot) -> Response:
            attributes = await self.run_on_thread(describe_attributes, snapshot, request.deadline)
            return make_json_response({"documents": snapshot.view.count, "attributes": attributes})

        return await self.retry_on_new_snapshot(describe)

    async def get_liveness(self, request: Request) -> Response:
        """Handle GET /livez."""
        return make_json_response({"status": "live"})

    async def get_readiness(self, request: Request) -> Response:
        """Handle GET /readyz."""
        snapshot, error = self.holder.current, self.holder.error
        status = "draining" if self.draining else "starting" if not self.started else "behind" if error else "ready"
        body = {
            "status": status,
            "generation": snapshot.generation,
            "documents": snapshot.view.count,
            "model": snapshot.fingerprint,
            "trouble": REFRESH_FAILED if error else None,
        }
        return make_json_response(body, 503 if self.draining or not self.started else 200)

    async def get_openapi(self, request: Request) -> Response:
        """Handle GET /openapi.json."""
        return make_json_response(
            make_openapi(
                self.holder.current, self.limits, keys=self.config.keys.any, has_reranker=self.reranker is not None
            )
        )

    async def get_metrics(self, request: Request) -> Response:
        """Handle GET /metrics."""
        body, content_type = self.metrics.render()
        return Response(body, 200, content_type)

    def reject_malformed(self, client: str, error: HTTPError) -> Response:
        """Count, log and answer bytes that are not an HTTP request."""
        try:
            self.authenticator.rate_limiter.acquire(client)
        except HTTPError as rate_error:
            error = rate_error
        self.metrics.record_request("other", error.status, 0.0)
        if self.config.access_log:
            log("malformed", "warning", status=error.status, why=error.message, given=error.given, client=client)
        return make_error_response(error)


class Endpoint:
    """ASGI application of one path: dispatches methods, checks permissions, handles errors, and logs."""

    def __init__(
        self, service: SearchService, path: str, permissions: Mapping[str, Permission], **handlers: Handler
    ) -> None:
        self.service, self.path, self.permissions, self.handlers = service, path, permissions, handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self.service
        request = Request(scope, receive, service.limits, service.body_budget)
        is_disconnected = False
        try:
            async with asyncio.timeout(service.limits.seconds):
                response = await self._handle(request)
        except ClientDisconnected:
            response, is_disconnected = Response(b"", 499), True
        except TimeoutError:
            is_write = self.permissions.get(scope["method"]) == "write"
            response = make_error_response(
                DeadlineExceeded(
                    DEADLINE_MESSAGE,
                    expected=f"at most {service.limits.seconds:g} s",
                    hint="the documents may have been written: send them again"
                    if is_write
                    else "search for less at once",
                )
            )
        except Exception as error:
            http_error = to_http_error(error)
            is_expected = isinstance(error, HTTPError | SearchTimeoutError)
            if http_error is None or (http_error.status >= 500 and not is_expected):
                log_fault("fault", error, path=self.path)
            response = make_error_response(http_error) if http_error else FAULT_RESPONSE
        finally:
            request.release_body()
        status = response.status
        if not is_disconnected:
            must_close = service.draining or (request.is_body_unread and status >= 400)
            await send_response(send, response, (CLOSE,) if must_close else ())
        seconds = time.monotonic() - request.started
        service.metrics.record_request(self.path, status, seconds)
        if service.tracer is not None:
            service.tracer.record(
                scope["method"], self.path, status, seconds, request.headers, request.log_fields, request.steps
            )
        if service.config.access_log:
            log(
                "request",
                method=scope["method"],
                path=self.path,
                status=status,
                ms=round(1000 * seconds, 2),
                client=request.client,
                **request.log_fields,
            )

    async def _handle(self, request: Request) -> Response:
        method = request.scope["method"]
        handler = self.handlers.get("GET" if method == "HEAD" else method)
        self.service.authenticator.authorize(request, self.permissions.get(method, "read") if handler else "none")
        if handler is None:
            raise make_method_error(method, ", ".join([*self.handlers, *(["HEAD"] if "GET" in self.handlers else [])]))
        if self.service.connections.is_over_limit:
            request.is_body_unread = True
            raise Overloaded(1.0, "too many connections are open", hint="keep fewer (limit.connections)")
        return await handler(request)


def make_error_response(error: HTTPError) -> Response:
    """Serialize an error as a JSON response."""
    return make_json_response(to_error_body(error), error.status, error.headers)


FAULT_RESPONSE = make_error_response(
    InternalError(
        "a fault of the server; its log says more", hint="try again; if it stays, report it with the server's log"
    )
)


def make_routes(service: SearchService) -> dict[str, Route]:
    """Return the routes of one index."""
    documents = service.documents
    return {
        "/v1/search": ({}, {"POST": service.search}),
        "/v1/documents": (
            {"POST": "write", "PATCH": "write", "DELETE": "write"},
            {
                "GET": documents.fetch,
                "POST": documents.add,
                "PATCH": documents.set_attributes,
                "DELETE": documents.delete,
            },
        ),
        "/v1/documents/list": ({}, {"POST": documents.list_documents}),
        "/v1/documents/count": ({}, {"POST": documents.count}),
        "/v1/documents/delete": ({"POST": "write"}, {"POST": documents.delete_where}),
        "/v1/index": ({}, {"GET": service.get_index}),
        "/v1/schema": ({}, {"GET": service.get_schema}),
    }


def make_app(service: SearchService) -> App:
    """Return the ASGI application that uvicorn runs."""
    public: dict[str, Permission] = {"GET": "none", "HEAD": "none"}
    health: dict[str, Permission] = {"GET": "health", "HEAD": "health"}
    routes = make_routes(service) | {
        "/metrics": ({}, {"GET": service.get_metrics}),
        "/openapi.json": (public, {"GET": service.get_openapi}),
        "/livez": (health, {"GET": service.get_liveness}),
        "/readyz": (health, {"GET": service.get_readiness}),
    }
    endpoints = {
        path: Endpoint(service, path, permissions, **handlers) for path, (permissions, handlers) in routes.items()
    }
    indexes = IndexEndpoint(service)
    endpoints[PREFIX] = Endpoint(service, PREFIX, {}, GET=indexes.list_indexes)
    one_index = Endpoint(
        service,
        f"{PREFIX}/NAME",
        {"PUT": "write", "DELETE": "write"},
        GET=indexes.describe,
        PUT=indexes.create,
        DELETE=indexes.drop,
    )
    # For all methods: an unknown path is 404 whatever the method.
    page = dict.fromkeys(METHODS, StaticFiles())
    default = Endpoint(service, "other", dict.fromkeys((*METHODS, "HEAD"), "none"), **page)

    attached_endpoints: dict[SearchService, dict[str, Endpoint]] = {}

    def find_endpoint(path: str) -> Endpoint:
        """Return the endpoint of a path below a named index, of an index, or of no known path."""
        name, _, operation = path.removeprefix(PREFIX + "/").partition("/")
        if not path.startswith(PREFIX + "/"):
            return default
        if not operation:
            return one_index
        attached = service.table.services.get(name) if service.table is not None else None
        if attached is None:
            return default
        if attached not in attached_endpoints:
            for dropped in attached_endpoints.keys() - set(service.table.services.values() if service.table else ()):
                del attached_endpoints[dropped]
            attached_endpoints[attached] = {
                route: Endpoint(service, route.replace("/v1", f"{PREFIX}/NAME", 1), permissions, **handlers)
                for route, (permissions, handlers) in make_routes(attached).items()
            }
        return attached_endpoints[attached].get(f"/v1/{operation}", default)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        await (endpoints.get(path) or find_endpoint(path))(scope, receive, send)

    return app
