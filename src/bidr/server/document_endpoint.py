"""/v1/documents: fetch by id, add and replace, delete."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from bidr.data.attributes import check_attributes
from bidr.errors import AttributesError, to_short_json
from bidr.index.vectors import MAX_VALUES as STORED
from bidr.server.asgi import JSON, Request, Response, make_json_response
from bidr.server.errors import Forbidden, IndexConflict, InvalidRequest, to_http_error
from bidr.server.index_holder import IndexHolder, IndexSnapshot
from bidr.server.limits import RequestLimits
from bidr.server.metrics import Metrics
from bidr.server.search_request import LARGEST, matrix, parse_object
from bidr.server.writer_client import WriterClient

Steady = Callable[[Callable[[IndexSnapshot], Awaitable[Response]]], Awaitable[Response]]
Result = TypeVar("Result")
# JSON does not tell 1e30 from the whole number, which no column holds: one limit for both.
LARGEST_NUMBER = 2**62
FIELDS = ("id", "title", "text", "attributes", "vector")
LONGEST_ID = 512


class ThreadRunner(Protocol):
    """Runs work where the event loop does not wait for it."""

    async def __call__(self, work: Callable[..., Result], *given: Any) -> Result: ...


class DocumentEndpoint:
    """The handlers. `link` is None where the server only reads."""

    def __init__(
        self,
        steady: Steady,
        on_thread: ThreadRunner,
        served: IndexHolder,
        limits: RequestLimits,
        metrics: Metrics,
        link: WriterClient | None,
    ) -> None:
        self._steady, self._on_thread = steady, on_thread
        self.served, self.limits, self.metrics, self.link = served, limits, metrics, link

    async def fetch(self, call: Request) -> Response:
        """GET /v1/documents?id=a&id=b"""
        query = call.query()
        ids = self._ids(query, {"id"})

        async def fetched(serving: IndexSnapshot) -> Response:
            count, reply = await self._on_thread(_fetched, serving, ids)
            call.notes["documents"] = count
            return reply

        return await self._steady(fetched)

    async def add(self, call: Request) -> Response:
        """POST /v1/documents"""
        link = self._link()
        given = parse_object(await call.body(JSON), ("documents", "replace"))
        listed, replace = given.get("documents"), given.get("replace", True)
        if type(replace) is not bool:
            raise InvalidRequest(
                "replace is not a truth value",
                given=to_short_json(replace),
                expected="true or false",
                hint="send it without quotes, or leave it out",
            )
        if type(listed) is not list or not 1 <= len(listed) <= self.limits.documents:
            raise InvalidRequest(
                "documents are no list, or none, or too many",
                given=f"{len(listed)} documents" if isinstance(listed, list) else to_short_json(listed),
                expected=f"a list of 1 to {self.limits.documents}",
                hint="send several requests (limit.documents)",
            )
        documents, vectors = self._checked(listed, replace, self.served.now)
        call.notes["documents"] = len(documents)
        about = {"op": "add", "documents": documents, "replace": replace}
        result = await link.ask(about, vectors)
        self.metrics.record_write("added", result["added"])
        self.metrics.record_write("replaced", result["replaced"])
        return make_json_response(result)

    async def delete(self, call: Request) -> Response:
        """DELETE /v1/documents?id=a&id=b"""
        link = self._link()
        query = call.query()
        ids = self._ids(query, {"id", "missing_ok"})
        missing_ok = query.get("missing_ok", ["false"])
        if missing_ok not in (["true"], ["false"]):
            raise InvalidRequest(
                "missing_ok cannot be read",
                given=", ".join(missing_ok),
                expected="true or false, once",
                hint="leave it out, and ids that are not there are refused",
            )
        call.notes["documents"] = len(ids)
        result = await link.ask({"op": "delete", "ids": ids, "missing_ok": missing_ok == ["true"]})
        self.metrics.record_write("deleted", result["deleted"])
        return make_json_response(result)

    def _link(self) -> WriterClient:
        if self.link is None:
            raise Forbidden(
                "this server only reads",
                given="a request to write",
                expected="searches, and documents by id",
                hint="whoever runs it can start it with --writable",
            )
        return self.link

    def _ids(self, query: dict[str, list[str]], known: set[str]) -> list[str]:
        for name in query:
            if name not in known:
                raise InvalidRequest(
                    "a parameter that is not known", given=name, expected=", ".join(sorted(known)), hint="leave it out"
                )
        ids = query.get("id", [])
        lengths = [len(name) for name in ids] or [0]
        if not 1 <= len(ids) <= self.limits.documents or not 0 < min(lengths) <= max(lengths) <= LONGEST_ID:
            raise InvalidRequest(
                "no ids are given, too many, or one that no document has",
                given=f"{len(ids)} ids of {min(lengths)} to {max(lengths)} characters",
                expected=f"1 to {self.limits.documents} ids of 1 to {LONGEST_ID} characters",
                hint="send them as id=a&id=b, in several requests where they are many (limit.documents)",
            )
        return list(dict.fromkeys(ids))

    def _checked(self, listed: list[Any], replace: bool, serving: IndexSnapshot) -> tuple[list[list[Any]], bytes]:
        """Documents as fields, and their vectors as bytes."""
        fields = [_document(number, given) for number, given in enumerate(listed)]
        # Of an id that is given twice the last counts, as if it had come in a request of its own.
        last = {given[0]: number for number, given in enumerate(fields)}
        if len(last) < len(fields):
            if not replace:
                ids = [given[0] for given in fields]
                raise IndexConflict(
                    "an id is given twice",
                    given=to_short_json(next(name for name in last if ids.count(name) > 1)),
                    expected="each once",
                    hint='leave one out, or send "replace": true',
                )
            fields, listed = ([rows[number] for number in last.values()] for rows in (fields, listed))
        vectors = [given["vector"] for given in listed if given.get("vector") is not None]
        by_text = serving.service is not None
        if by_text and vectors:
            raise InvalidRequest(
                "the index has encoders of its own",
                given=f"{len(vectors)} documents with vectors",
                expected="title and text alone",
                hint="leave the vectors out",
            )
        if not by_text and len(vectors) != len(listed):
            raise InvalidRequest(
                "the index has no text encoder",
                given=f"{len(listed) - len(vectors)} documents without vector",
                expected=f"a vector of {serving.dim} numbers of each",
                hint='send "vector": [...] with each document',
            )
        if not vectors:
            return fields, b""
        rows = matrix(vectors, serving.dim, "documents: vector", get_max_component(serving))
        return fields, rows.astype("<f4").tobytes()


def _fetched(serving: IndexSnapshot, ids: list[str]) -> tuple[int, Response]:
    found, missing = serving.finder.documents(ids)
    return len(found), make_json_response({"documents": found, "missing": missing})


def get_max_component(serving: IndexSnapshot) -> float:
    """The largest number that a vector may have: vectors of length 1 are made so before they are stored."""
    return LARGEST if serving.view.manifest.unit else STORED["fp16"]


def _document(number: int, given: Any) -> list[Any]:
    where = f"documents: number {number}"
    if type(given) is not dict:
        raise InvalidRequest(
            f"{where} is not an object",
            given=to_short_json(given),
            expected=f"an object with {', '.join(FIELDS)}",
            hint='send at least {"id": "...", "text": "..."}',
        )
    for name in given:
        if name not in FIELDS:
            raise InvalidRequest(
                f"{where}: unknown field",
                given=to_short_json(name),
                expected=", ".join(FIELDS),
                hint="put it into attributes, or leave it out",
            )
    return [_id(where, given), *_words(where, given), _attributes(where, given.get("attributes"))]


def _id(where: str, given: dict[str, Any]) -> str:
    name = given.get("id")
    if type(name) is not str or not 0 < len(name) <= LONGEST_ID:
        raise InvalidRequest(
            f"{where}: id is missing, or cannot be one",
            given=to_short_json(name) if "id" in given else "none",
            expected=f"a string of 1 to {LONGEST_ID} characters",
            hint="give each document an id of its own",
        )
    return name


def _words(where: str, given: dict[str, Any]) -> list[str]:
    words = [given.get(key, "") for key in ("title", "text")]
    if not all(type(word) is str for word in words):
        raise InvalidRequest(
            f"{where}: title or text is not a string",
            given=to_short_json(next(word for word in words if type(word) is not str)),
            expected="strings",
            hint="leave out what there is not",
        )
    return words


def _attributes(where: str, given: Any) -> dict[str, Any] | None:
    try:
        checked = check_attributes(given, where) if given is not None else None
    except AttributesError as error:
        raise to_http_error(error) or error from error
    for key, value in (checked or {}).items():
        if isinstance(value, int | float) and abs(value) > LARGEST_NUMBER:
            raise InvalidRequest(
                f"{where}: attribute {to_short_json(key)}",
                given=to_short_json(value),
                expected="a number of at most 2^62 in size",
                hint="send it as a string, or leave it out",
            )
    return checked or None
