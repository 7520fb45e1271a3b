"""Requests of each operation, independent of the transport: generators that yield requests and receive bodies."""

import datetime
import json
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from bidr.client.errors import Unavailable
from bidr.data.attribute_validation import check_attributes
from bidr.data.types import Document, DocumentPage, to_python_scalar, validate_documents, validate_ids
from bidr.data.validation import check_unicode, format_value, validate_query_texts
from bidr.data.vector_source import as_array
from bidr.errors import ConfigError, DataError
from bidr.search.types import QueryVectors, SearchHit, SearchResult, Timings
from bidr.utils.array_types import Floats

T = TypeVar("T")
Reply = dict[str, Any]
MAX_BODY_SHARE = 0.9
MAX_QUERY_BYTES = 7_000  # servers and proxies accept URLs of 8 KiB


class RequestSpec(NamedTuple):
    """A request to send. `is_idempotent`: it may be sent again after a connection failed."""

    method: str
    path: str
    params: Mapping[str, Any] | Sequence[tuple[str, str]] = {}
    body: bytes = b""
    type: str = "application/json"
    is_idempotent: bool = True


RequestSteps = Generator[RequestSpec, Reply, T]
SCALAR_FIELDS = SearchHit._fields[:5]
INDEX = RequestSpec("GET", "/v1/index")
INDEXES = "/v1/indexes"


class SearchParams(NamedTuple):
    """Options of a search, common to all queries."""

    k: int = 10
    candidates: int | None = None
    filter: Any = None
    codes_only: bool = False
    lexical: int | None = None
    lexical_weight: float | None = None
    offset: int = 0
    min_score: float | None = None
    group_by: str | None = None
    group_size: int = 1
    mmr: float | None = None
    fusion: str = "sum"
    combine: str | None = None
    rerank: int = 0

    def to_fields(self) -> dict[str, Any]:
        """Return `k` and all options that differ from their defaults."""
        defaults = self._field_defaults
        return {name: value for name, value in self._asdict().items() if name == "k" or value != defaults[name]}


def address_index(steps: RequestSteps[T], name: str | None) -> RequestSteps[T]:
    """Send requests to a named index; None: to the index without a name."""
    try:
        request = next(steps)
        while True:
            if name is not None and not request.path.startswith(INDEXES):
                request = request._replace(path=f"{INDEXES}/{quote(name, safe='')}/{request.path.removeprefix('/v1/')}")
            request = steps.send((yield request))
    except StopIteration as done:
        value: T = done.value
        return value


class RequestBuilder:
    """Operations on one server. Its limits are requested once, before the first operation with several items."""

    def __init__(self) -> None:
        self._index_info: Reply | None = None

    def index(self) -> RequestSteps[Reply]:
        self._index_info = yield INDEX
        return self._index_info

    def indexes(self) -> RequestSteps[list[dict[str, Any]]]:
        indexes: list[dict[str, Any]] = (yield RequestSpec("GET", INDEXES))["indexes"]
        return indexes

    def create_index(self, name: str, options: Mapping[str, Any]) -> RequestSteps[None]:
        path = f"{INDEXES}/{quote(check_unicode(name, 'name', 'index'), safe='')}"
        yield RequestSpec("PUT", path, body=to_json(options).encode(), is_idempotent=False)

    def drop_index(self, name: str) -> RequestSteps[None]:
        path = f"{INDEXES}/{quote(check_unicode(name, 'name', 'index'), safe='')}"
        yield RequestSpec("DELETE", path, is_idempotent=False)

    def schema(self) -> RequestSteps[list[dict[str, Any]]]:
        attributes: list[dict[str, Any]] = (yield RequestSpec("GET", "/v1/schema"))["attributes"]
        return attributes

    def search_texts(self, texts: Sequence[str], params: SearchParams) -> RequestSteps[list[SearchResult]]:
        results: list[SearchResult] = []
        texts = validate_query_texts(texts)
        quoted = [json.dumps(text) for text in texts]
        rest = to_json({"texts": [], **params.to_fields()})[len('{"texts": [') :]
        for part in (yield from self._split_queries([len(text) + 2 for text in quoted], len(rest.encode()), params)):
            body = ('{"texts": [' + ", ".join(quoted[part]) + rest).encode()
            count = 1 if params.combine else len(quoted[part])
            results += parse_search_reply((yield RequestSpec("POST", "/v1/search", body=body)), count)
        return results

    def more_like(self, ids: Collection[str], params: SearchParams) -> RequestSteps[SearchResult]:
        body = to_json({"like": validate_ids(ids), **params.to_fields()}).encode()
        return parse_search_reply((yield RequestSpec("POST", "/v1/search", body=body)), 1)[0]

    def search_vectors(
        self, queries: QueryVectors | npt.ArrayLike, params: SearchParams
    ) -> RequestSteps[list[SearchResult]]:
        rows = to_query_rows(queries)
        results: list[SearchResult] = []
        # The length of a binary body does not tell the dimensions.
        query = params.to_fields() | {"dim": rows.shape[1]}
        if "filter" in query:
            query["filter"] = to_json(query["filter"])
        if "codes_only" in query:
            query["codes_only"] = "true"
        for part in (yield from self._split_queries([rows[:1].nbytes] * len(rows), 0, params)):
            body, content_type = rows[part].tobytes(), "application/octet-stream"
            results += parse_search_reply(
                (yield RequestSpec("POST", "/v1/search", query, body, content_type)),
                1 if params.combine else len(rows[part]),
            )
        return results

    def add(self, documents: Sequence[Document], vectors: Floats | None, replace: bool) -> RequestSteps[int]:
        documents = validate_documents(documents)
        rows: list[dict[str, Any]] = [_to_fields(document) for document in documents]
        matrix = None if vectors is None else as_array(vectors, "vectors")
        if matrix is not None and (matrix.ndim == 0 or len(matrix) != len(documents)):
            raise DataError(f"vectors: given shape {matrix.shape} for {len(documents)} documents, expected one of each")
        for row, vector in zip(rows, () if matrix is None else matrix.tolist(), strict=False):
            row["vector"] = vector
        count = 0
        start = b'{"replace": false, "documents": [' if not replace else b'{"documents": ['
        bodies = [to_json(row).encode() for row in rows]
        limits = yield from self._get_limits()
        for part in split_batches(
            [len(body) + 1 for body in bodies], limits["documents"], MAX_BODY_SHARE * limits["body"]
        ):
            body = start + b",".join(bodies[part]) + b"]}"
            reply = yield RequestSpec("POST", "/v1/documents", body=body, is_idempotent=replace)
            count += int(reply["added"]) + int(reply["replaced"])
        return count

    def delete(self, ids: Collection[str], missing_ok: bool) -> RequestSteps[int]:
        count = 0
        # A repeated deletion finds no document: idempotent only with missing_ok.
        for part in (yield from self._split_ids(ids)):
            params = [*part, ("missing_ok", "true" if missing_ok else "false")]
            count += int((yield RequestSpec("DELETE", "/v1/documents", params, is_idempotent=missing_ok))["deleted"])
        return count

    def delete_where(self, condition: Any) -> RequestSteps[int]:
        body = to_json({"filter": condition}).encode()
        return int((yield RequestSpec("POST", "/v1/documents/delete", body=body))["deleted"])

    def set_attributes(self, changes: Mapping[str, Mapping[str, Any]], missing_ok: bool) -> RequestSteps[int]:
        if not isinstance(changes, Mapping):
            raise DataError(f"changes: given {format_value(changes)}, expected a dictionary of attributes by id")
        rows = [{"id": doc_id, "attributes": values} for doc_id, values in changes.items()]
        bodies, count = [to_json(row).encode() for row in rows], 0
        start = b'{"missing_ok": true, "documents": [' if missing_ok else b'{"documents": ['
        limits = yield from self._get_limits()
        for part in split_batches(
            [len(body) + 1 for body in bodies], limits["documents"], MAX_BODY_SHARE * limits["body"]
        ):
            body = start + b",".join(bodies[part]) + b"]}"
            count += int((yield RequestSpec("PATCH", "/v1/documents", body=body))["changed"])
        return count

    def set_attributes_where(self, condition: Any, values: Mapping[str, Any]) -> RequestSteps[int]:
        body = to_json({"filter": condition, "attributes": values}).encode()
        return int((yield RequestSpec("PATCH", "/v1/documents", body=body))["changed"])

    def count(self, condition: Any) -> RequestSteps[int]:
        body = to_json({"filter": condition}).encode()
        return int((yield RequestSpec("POST", "/v1/documents/count", body=body))["count"])

    def list_documents(
        self, condition: Any, limit: int | None, cursor: str | None, text: bool
    ) -> RequestSteps[DocumentPage]:
        body = to_json({"filter": condition, "limit": limit, "cursor": cursor, "text": text}).encode()
        reply = yield RequestSpec("POST", "/v1/documents/list", body=body)
        return DocumentPage([_parse_document(row) for row in reply["documents"]], reply["cursor"])

    def get(self, ids: Collection[str]) -> RequestSteps[dict[str, Document]]:
        documents: dict[str, Document] = {}
        for part in (yield from self._split_ids(ids)):
            reply = yield RequestSpec("GET", "/v1/documents", part)
            documents |= {row["id"]: _parse_document(row) for row in reply["documents"]}
        return documents

    def _get_limits(self) -> RequestSteps[dict[str, Any]]:
        info = self._index_info or (yield from self.index())
        limits: dict[str, Any] = info["limits"]
        return limits

    def _split_ids(self, ids: Collection[str]) -> RequestSteps[list[list[tuple[str, str]]]]:
        """Split ids into query parameters of several requests."""
        unique_ids = [check_unicode(doc_id, "id", "ids") for doc_id in validate_ids(ids)]
        limit = (yield from self._get_limits())["documents"]
        sizes = [len("&id=" + quote(doc_id, safe="")) for doc_id in unique_ids]
        return [
            [("id", doc_id) for doc_id in unique_ids[part]] for part in split_batches(sizes, limit, MAX_QUERY_BYTES)
        ]

    def _split_queries(self, sizes: Sequence[int], overhead: int, params: SearchParams) -> RequestSteps[list[slice]]:
        """Split queries into requests. sizes: bytes of each query; overhead: bytes of the other fields."""
        if len(sizes) <= 1 or params.combine:  # what is one query is one request
            return [slice(0, len(sizes))] if sizes else []
        limits = yield from self._get_limits()
        assert self._index_info is not None
        k = params.k if isinstance(params.k, int) else 1
        k += params.offset if isinstance(params.offset, int) else 0
        candidates, lexical = params.candidates or self._index_info.get("candidates"), params.lexical
        lexical = self._index_info.get("lexical") if lexical is None else lexical
        depth = k
        if not params.codes_only:
            depth = max(k, candidates if isinstance(candidates, int) else 1)
            depth += lexical if isinstance(lexical, int) else 0
        limit = min(limits["queries"], limits["reads"] // max(depth, 1), limits["answers"] // max(k, 1))
        return list(split_batches(sizes, limit, MAX_BODY_SHARE * limits["body"] - overhead))


def parse_search_reply(reply: Reply, queries: int) -> list[SearchResult]:
    """Parse the results of a search; raises Unavailable if their number differs from the queries."""
    if (count := len(reply["results"])) != queries:
        raise Unavailable(
            f"the server gave {count} results, expected {queries}: one a query; is it a `bidr serve`?", 200
        )
    return parse_answers(reply)


def parse_answers(reply: Reply) -> list[SearchResult]:
    """Parse the results of a search to the types of a local searcher."""
    results = []
    for result in reply["results"]:
        hits = [
            SearchHit(
                **{name: row[name] for name in SCALAR_FIELDS},
                document=_parse_stored_document(row),
                word_rank=row.get("word_rank", 0),
                rerank_score=row.get("rerank_score"),
            )
            for row in result["answers"]
        ]
        timings = result["timings"]
        results.append(SearchResult(hits, Timings(*(float(timings.get(step) or 0.0) for step in Timings._fields))))
    return results


def to_query_rows(queries: QueryVectors | npt.ArrayLike) -> Floats:
    """Convert query vectors to float32 rows. The server derives code and vector queries from them."""
    if isinstance(queries, QueryVectors):
        if queries.codes is not queries.vectors and not np.array_equal(queries.codes, queries.vectors):
            raise ConfigError("queries of two sides given, but a server takes one vector a query; send texts instead")
        queries = queries.vectors
    with np.errstate(over="ignore"):  # the server rejects infinity
        rows = np.ascontiguousarray(as_array(queries, "queries"), dtype="<f4")
    if rows.ndim != 2:
        raise DataError(f"queries: given shape {rows.shape}, expected (queries, dimensions); for one use vector[None]")
    return rows


def to_json(value: Any) -> str:
    """Serialize a value, numpy scalars included; raises DataError for values without JSON or UTF-8 form."""
    try:
        text = json.dumps(value, default=_convert_scalar, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(
            f"given {format_value(value)}: {error}, expected a value that JSON can represent; convert it"
        ) from error
    return check_unicode(text, "value", "the request")


def _convert_scalar(value: Any) -> Any:
    if isinstance(value, datetime.date):  # datetimes too
        return value.isoformat()
    scalar = to_python_scalar(value)
    if scalar is value:
        raise DataError(
            f"given {value!r} of type {type(value).__name__}, expected a value that JSON can represent; convert it"
        )
    return scalar


def _parse_stored_document(row: Reply) -> Document | None:
    return _parse_document(row) if row.get("title") is not None or row.get("text") is not None else None


def _parse_document(row: Reply) -> Document:
    return Document(row["id"], row.get("title") or "", row.get("text") or "", row.get("attributes"))


def _to_fields(document: Document) -> dict[str, Any]:
    fields: dict[str, Any] = {"id": document.id, "title": document.title, "text": document.text}
    if document.attributes is not None:
        fields["attributes"] = check_attributes(document.attributes, f"document {document.id!r}")
    return fields


def split_batches(sizes: Sequence[int], limit: int, max_bytes: float) -> Iterator[slice]:
    """Yield slices of at most `limit` items and `max_bytes` bytes; a larger item is a slice of its own."""
    start = size = 0
    for number, item_size in enumerate(sizes):
        if number > start and (number - start >= limit or size + item_size > max_bytes):
            yield slice(start, number)
            start, size = number, 0
        size += item_size
    if sizes:
        yield slice(start, len(sizes))
