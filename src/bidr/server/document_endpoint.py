"""Handlers of /v1/documents: fetch by id, list, count, add and replace, change attributes, delete."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from bidr.data.attribute_validation import check_attributes
from bidr.errors import AttributesError, to_short_json
from bidr.index.filters.filter_expression import Filter, parse_filter
from bidr.index.live.attribute_overlay import validate_changes
from bidr.index.live.document_list import list_documents
from bidr.index.vectors import MAX_VALUES
from bidr.server.errors import Forbidden, IndexConflict, InvalidRequest, to_http_error
from bidr.server.http_messages import JSON, Request, Response, make_json_response
from bidr.server.index_holder import IndexHolder, IndexSnapshot
from bidr.server.limits import RequestLimits
from bidr.server.metrics import Metrics
from bidr.server.search_request import (
    MAX_COMPONENT,
    check_bool,
    check_filter,
    check_int,
    parse_matrix,
    parse_object,
)
from bidr.server.writer_client import WriterClient
from bidr.utils.deadline import deadline_scope

SnapshotRunner = Callable[[Callable[[IndexSnapshot], Awaitable[Response]]], Awaitable[Response]]
Result = TypeVar("Result")
MAX_NUMBER = 2**62
"""Limit of numeric attributes. JSON does not tell 1e30 from an integer that no column can hold: one limit for both."""
LISTED_DOCUMENTS = 100
"""Default size of a page."""
FIELDS = ("id", "title", "text", "attributes", "vector")
MAX_ID_CHARS = 512


class ThreadRunner(Protocol):
    """Runs a function on a thread, so that it does not block the event loop."""

    async def __call__(self, function: Callable[..., Result], *arguments: Any) -> Result: ...


class DocumentEndpoint:
    """The handlers. `writer` is None on a read-only server."""

    def __init__(
        self,
        run_on_snapshot: SnapshotRunner,
        run_on_thread: ThreadRunner,
        holder: IndexHolder,
        limits: RequestLimits,
        metrics: Metrics,
        writer: WriterClient | None,
    ) -> None:
        self._run_on_snapshot, self._run_on_thread = run_on_snapshot, run_on_thread
        self.holder, self.limits, self.metrics, self.writer = holder, limits, metrics, writer

    async def fetch(self, request: Request) -> Response:
        """Handle GET /v1/documents?id=a&id=b."""
        ids = self._parse_ids(request.parse_query(), {"id"})

        async def fetch_from(snapshot: IndexSnapshot) -> Response:
            count, response = await self._run_on_thread(_fetch_documents, snapshot, ids)
            request.log_fields["documents"] = count
            return response

        return await self._run_on_snapshot(fetch_from)

    async def add(self, request: Request) -> Response:
        """Handle POST /v1/documents."""
        writer = self._require_writer()
        body = parse_object(await request.read_body(JSON), ("documents", "replace"))
        items, replace = body.get("documents"), body.get("replace", True)
        if type(replace) is not bool:
            raise InvalidRequest(
                "replace is not a boolean",
                given=to_short_json(replace),
                expected="true or false",
                hint="send it without quotes, or leave it out",
            )
        if type(items) is not list or not 1 <= len(items) <= self.limits.documents:
            raise InvalidRequest(
                "documents is not a list, empty, or too long",
                given=f"{len(items)} documents" if isinstance(items, list) else to_short_json(items),
                expected=f"a list of 1 to {self.limits.documents}",
                hint="send several requests (limit.documents)",
            )
        documents, vectors = self._parse_documents(items, replace, self.holder.current)
        request.log_fields["documents"] = len(documents)
        result = await writer.submit({"op": "add", "documents": documents, "replace": replace}, vectors)
        self.metrics.record_write("added", result["added"])
        self.metrics.record_write("replaced", result["replaced"])
        return make_json_response(result)

    async def delete(self, request: Request) -> Response:
        """Handle DELETE /v1/documents?id=a&id=b."""
        writer = self._require_writer()
        query = request.parse_query()
        ids = self._parse_ids(query, {"id", "missing_ok"})
        missing_ok = query.get("missing_ok", ["false"])
        if missing_ok not in (["true"], ["false"]):
            raise InvalidRequest(
                "missing_ok is not a boolean",
                given=", ".join(missing_ok),
                expected="true or false, once",
                hint="leave it out to reject unknown ids",
            )
        request.log_fields["documents"] = len(ids)
        result = await writer.submit({"op": "delete", "ids": ids, "missing_ok": missing_ok == ["true"]})
        self.metrics.record_write("deleted", result["deleted"])
        return make_json_response(result)

    async def delete_where(self, request: Request) -> Response:
        """Handle POST /v1/documents/delete."""
        writer = self._require_writer()
        body = parse_object(await request.read_body(JSON), ("filter",))
        result = await writer.submit({"op": "delete_where", "filter": self._parse_filter(body)})
        self.metrics.record_write("deleted", result["deleted"])
        return make_json_response(result)

    async def set_attributes(self, request: Request) -> Response:
        """Handle PATCH /v1/documents: changes by id, or one change for all that match a filter."""
        writer = self._require_writer()
        body = parse_object(await request.read_body(JSON), ("documents", "missing_ok", "filter", "attributes"))
        names = {name for name, value in body.items() if value is not None}
        if names in ({"documents"}, {"documents", "missing_ok"}):
            job = self._parse_changes(body)
        elif names == {"filter", "attributes"}:
            values = _parse_changed_attributes("attributes", body["attributes"])
            job = {"op": "set_attributes_where", "filter": self._parse_filter(body), "values": values}
        else:
            raise InvalidRequest(
                "attributes change by documents, or by filter",
                given=", ".join(sorted(names)) or "neither",
                expected="documents (and missing_ok), or filter and attributes",
                hint='send {"documents": [{"id": "...", "attributes": {...}}]}',
            )
        result = await writer.submit(job)
        self.metrics.record_write("changed", result["changed"])
        return make_json_response(result)

    async def list_documents(self, request: Request) -> Response:
        """Handle POST /v1/documents/list."""
        body = parse_object(await request.read_body(JSON), ("filter", "limit", "cursor", "text"))
        limit, cursor, text = body.get("limit"), body.get("cursor"), body.get("text")
        max_limit = self.limits.documents
        limit = min(LISTED_DOCUMENTS, max_limit) if limit is None else check_int(limit, "limit", max_limit)
        if cursor is not None and (type(cursor) is not str or not cursor):
            raise InvalidRequest(
                "cursor is not a string",
                given=to_short_json(cursor),
                expected="the cursor of the page before",
                hint="leave it out for the first page",
            )
        texts = True if text is None else check_bool(text, "text")
        expression = None if body.get("filter") is None else parse_filter(self._parse_filter(body))

        async def list_from(snapshot: IndexSnapshot) -> Response:
            page = await self._run_on_thread(
                _list_documents, snapshot, request.deadline, expression, limit, cursor, texts
            )
            request.log_fields["documents"] = len(page["documents"])
            return make_json_response(page)

        return await self._run_on_snapshot(list_from)

    async def count(self, request: Request) -> Response:
        """Handle POST /v1/documents/count."""
        body = parse_object(await request.read_body(JSON), ("filter",))
        expression = None if body.get("filter") is None else parse_filter(self._parse_filter(body))

        async def count_in(snapshot: IndexSnapshot) -> Response:
            count = await self._run_on_thread(_count_documents, snapshot, request.deadline, expression)
            return make_json_response({"count": count})

        return await self._run_on_snapshot(count_in)

    def _parse_filter(self, body: dict[str, Any]) -> dict[str, Any]:
        """Validate a filter, so that the writer process need not refuse it."""
        conditions = check_filter(body.get("filter"), self.limits)
        parse_filter(conditions)
        return conditions

    def _parse_changes(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a job of changes by id."""
        items, missing_ok = body["documents"], body.get("missing_ok")
        if type(items) is not list or not 1 <= len(items) <= self.limits.documents:
            raise InvalidRequest(
                "documents is not a list, empty, or too long",
                given=f"{len(items)} documents" if isinstance(items, list) else to_short_json(items),
                expected=f"a list of 1 to {self.limits.documents}",
                hint="send several requests (limit.documents)",
            )
        changes: dict[str, dict[str, Any]] = {}
        for number, item in enumerate(items):
            where = f"documents: number {number}"
            if type(item) is not dict or set(item) != {"id", "attributes"}:
                raise InvalidRequest(
                    f"{where} is not a change",
                    given=to_short_json(item),
                    expected='{"id": "...", "attributes": {...}}',
                    hint="put the new values into attributes",
                )
            doc_id = _parse_id(where, item)
            changes[doc_id] = changes.get(doc_id, {}) | _parse_changed_attributes(where, item["attributes"])
        missing_ok = False if missing_ok is None else check_bool(missing_ok, "missing_ok")
        return {"op": "set_attributes", "changes": changes, "missing_ok": missing_ok}

    def _require_writer(self) -> WriterClient:
        if self.writer is None:
            raise Forbidden(
                "this server is read-only",
                given="a request to write",
                expected="searches, and documents by id",
                hint="whoever runs it can start it with --writable",
            )
        return self.writer

    def _parse_ids(self, query: dict[str, list[str]], parameters: set[str]) -> list[str]:
        for name in query:
            if name not in parameters:
                raise InvalidRequest(
                    "unknown query parameter", given=name, expected=", ".join(sorted(parameters)), hint="leave it out"
                )
        ids = query.get("id", [])
        lengths = [len(doc_id) for doc_id in ids] or [0]
        if not 1 <= len(ids) <= self.limits.documents or not 0 < min(lengths) <= max(lengths) <= MAX_ID_CHARS:
            raise InvalidRequest(
                "no ids, too many, or ids of invalid length",
                given=f"{len(ids)} ids of {min(lengths)} to {max(lengths)} characters",
                expected=f"1 to {self.limits.documents} ids of 1 to {MAX_ID_CHARS} characters",
                hint="send them as id=a&id=b, in several requests if they are many (limit.documents)",
            )
        return list(dict.fromkeys(ids))

    def _parse_documents(
        self, items: list[Any], replace: bool, snapshot: IndexSnapshot
    ) -> tuple[list[list[Any]], bytes]:
        """Return the fields of each document, and all vectors as little-endian float32 bytes."""
        documents = [_parse_document(number, item) for number, item in enumerate(items)]
        # The last document with an id wins, as in consecutive requests.
        last_by_id = {fields[0]: number for number, fields in enumerate(documents)}
        if len(last_by_id) < len(documents):
            if not replace:
                ids = [fields[0] for fields in documents]
                raise IndexConflict(
                    "an id occurs twice",
                    given=to_short_json(next(doc_id for doc_id in last_by_id if ids.count(doc_id) > 1)),
                    expected="each once",
                    hint='leave one out, or send "replace": true',
                )
            documents, items = ([rows[number] for number in last_by_id.values()] for rows in (documents, items))
        vectors = [item["vector"] for item in items if item.get("vector") is not None]
        needs_vectors = snapshot.encoder is None or bool(vectors)
        if snapshot.has_text_model and vectors:
            raise InvalidRequest(
                "the index encodes documents itself",
                given=f"{len(vectors)} documents with vectors",
                expected="title and text only",
                hint="leave the vectors out",
            )
        if needs_vectors and len(vectors) != len(items):
            raise InvalidRequest(
                "the index has no text encoder" if snapshot.encoder is None else "some documents have vectors",
                given=f"{len(items) - len(vectors)} documents without vector",
                expected=f"a vector of {snapshot.dim} numbers for each",
                hint='send "vector": [...] with each document',
            )
        if not vectors:
            return documents, b""
        rows = parse_matrix(vectors, snapshot.dim, "documents: vector", get_max_component(snapshot))
        return documents, rows.astype("<f4").tobytes()


def _fetch_documents(snapshot: IndexSnapshot, ids: list[str]) -> tuple[int, Response]:
    documents, missing = snapshot.lookup.get_documents(ids)
    return len(documents), make_json_response({"documents": documents, "missing": missing})


def _list_documents(
    snapshot: IndexSnapshot, deadline: float, condition: Filter | None, limit: int, cursor: str | None, texts: bool
) -> dict[str, Any]:
    view = snapshot.view
    with deadline_scope(deadline):
        page = list_documents(view, condition, limit, cursor, texts=texts)
    has_text = texts and view.documents.has_text
    documents = [
        {
            "id": document.id,
            "title": document.title if has_text else None,
            "text": document.text if has_text else None,
            "attributes": document.attributes or None,
        }
        for document in page.documents
    ]
    return {"documents": documents, "cursor": page.cursor}


def _count_documents(snapshot: IndexSnapshot, deadline: float, condition: Filter | None) -> int:
    with deadline_scope(deadline):
        return snapshot.view.count if condition is None else snapshot.view.count_matching(condition)


def get_max_component(snapshot: IndexSnapshot) -> float:
    """Return the largest vector component that can be stored; unit vectors are normalized before they are."""
    return MAX_COMPONENT if snapshot.view.manifest.unit else MAX_VALUES["fp16"]


def _parse_document(number: int, item: Any) -> list[Any]:
    where = f"documents: number {number}"
    if type(item) is not dict:
        raise InvalidRequest(
            f"{where} is not an object",
            given=to_short_json(item),
            expected=f"an object with {', '.join(FIELDS)}",
            hint='send at least {"id": "...", "text": "..."}',
        )
    for name in item:
        if name not in FIELDS:
            raise InvalidRequest(
                f"{where}: unknown field",
                given=to_short_json(name),
                expected=", ".join(FIELDS),
                hint="put it into attributes, or leave it out",
            )
    return [_parse_id(where, item), *_parse_texts(where, item), _parse_attributes(where, item.get("attributes"))]


def _parse_id(where: str, item: dict[str, Any]) -> str:
    doc_id = item.get("id")
    if type(doc_id) is not str or not 0 < len(doc_id) <= MAX_ID_CHARS:
        raise InvalidRequest(
            f"{where}: id is missing or invalid",
            given=to_short_json(doc_id) if "id" in item else "none",
            expected=f"a string of 1 to {MAX_ID_CHARS} characters",
            hint="give each document a unique id",
        )
    return doc_id


def _parse_texts(where: str, item: dict[str, Any]) -> list[str]:
    texts = [item.get(field, "") for field in ("title", "text")]
    if not all(type(text) is str for text in texts):
        raise InvalidRequest(
            f"{where}: title or text is not a string",
            given=to_short_json(next(text for text in texts if type(text) is not str)),
            expected="strings",
            hint="leave out a field without value",
        )
    return texts


def _parse_changed_attributes(where: str, values: Any) -> dict[str, Any]:
    """Validate changes of attributes; null removes one."""
    try:
        changes = validate_changes(values, where)
    except AttributesError as error:
        raise to_http_error(error) or error from error
    _check_numbers(where, changes)
    return changes


def _parse_attributes(where: str, attributes: Any) -> dict[str, Any] | None:
    try:
        checked = check_attributes(attributes, where) if attributes is not None else None
    except AttributesError as error:
        raise to_http_error(error) or error from error
    _check_numbers(where, checked or {})
    return checked or None


def _check_numbers(where: str, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        if isinstance(value, int | float) and abs(value) > MAX_NUMBER:
            raise InvalidRequest(
                f"{where}: attribute {to_short_json(name)}",
                given=to_short_json(value),
                expected="a number of magnitude up to 2^62",
                hint="send it as a string, or leave it out",
            )
