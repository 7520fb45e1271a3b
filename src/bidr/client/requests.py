"""The requests that each operation makes, whoever sends them: generators that yield a request and get its answer."""

import json
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from bidr.client.errors import Unavailable
from bidr.data.attributes import check_attributes
from bidr.data.types import Document, to_python_scalar, validate_documents, validate_ids
from bidr.data.validation import check_unicode, format_value, validate_query_texts
from bidr.data.vector_source import as_array
from bidr.errors import ConfigError, DataError
from bidr.search.types import QueryVectors, SearchHit, SearchResult, Timings
from bidr.utils.array_types import Floats

T = TypeVar("T")
Reply = dict[str, Any]
BODY_SHARE = 0.9
QUERY_BYTES = 7_000  # what servers and proxies take in an address is 8 KiB, the rest of it included


class Request(NamedTuple):
    """One request. again: it may be sent twice though it is not known what became of the first."""

    method: str
    path: str
    params: Mapping[str, Any] | Sequence[tuple[str, str]] = {}
    body: bytes = b""
    type: str = "application/json"
    again: bool = True


RequestSteps = Generator[Request, Reply, T]
NUMBERS = SearchHit._fields[:5]
INDEX = Request("GET", "/v1/index")


class SearchParams(NamedTuple):
    """What all queries of a search have in common."""

    k: int = 10
    candidates: int | None = None
    filter: Any = None
    codes_only: bool = False
    lexical: int = 0
    lexical_weight: float = 0.0

    def fields(self) -> dict[str, Any]:
        """What a server must be told: what is not as it is by default."""
        usual = self._field_defaults
        return {name: value for name, value in self._asdict().items() if name == "k" or value != usual[name]}


class RequestBuilder:
    """Operations on one server. What it allows is asked once, when something larger than one query is sent."""

    def __init__(self) -> None:
        self._about: Reply | None = None

    def index(self) -> RequestSteps[Reply]:
        self._about = yield INDEX
        return self._about

    def by_texts(self, texts: Sequence[str], question: SearchParams) -> RequestSteps[list[SearchResult]]:
        found: list[SearchResult] = []
        texts = validate_query_texts(texts)
        quoted = [json.dumps(text) for text in texts]
        rest = as_json({"texts": [], **question.fields()})[len('{"texts": [') :]
        for part in (yield from self._parts([len(text) + 2 for text in quoted], len(rest.encode()), question)):
            body = ('{"texts": [' + ", ".join(quoted[part]) + rest).encode()
            found += parse_search_reply((yield Request("POST", "/v1/search", body=body)), len(quoted[part]))
        return found

    def by_vectors(
        self, queries: QueryVectors | npt.ArrayLike, question: SearchParams
    ) -> RequestSteps[list[SearchResult]]:
        rows, found = to_query_rows(queries), []
        params = question.fields() | {"dim": rows.shape[1]}  # by their bytes alone, wide rows are more rows
        if "filter" in params:
            params["filter"] = as_json(params["filter"])
        if "codes_only" in params:
            params["codes_only"] = "true"
        for part in (yield from self._parts([rows[:1].nbytes] * len(rows), 0, question)):
            body, kind = rows[part].tobytes(), "application/octet-stream"
            found += parse_search_reply((yield Request("POST", "/v1/search", params, body, kind)), len(rows[part]))
        return found

    def add(self, documents: Sequence[Document], vectors: Floats | None, replace: bool) -> RequestSteps[int]:
        documents = validate_documents(documents)
        rows: list[dict[str, Any]] = [_fields(document) for document in documents]
        given = None if vectors is None else as_array(vectors, "vectors")
        if given is not None and (given.ndim == 0 or len(given) != len(documents)):
            raise DataError(f"vectors: given shape {given.shape} for {len(documents)} documents, expected one of each")
        for row, vector in zip(rows, () if given is None else given.tolist(), strict=False):
            row["vector"] = vector
        count = 0
        start = b'{"replace": false, "documents": [' if not replace else b'{"documents": ['
        bodies = [as_json(row).encode() for row in rows]
        limits = yield from self._limits()
        for part in split_batches([len(body) + 1 for body in bodies], limits["documents"], BODY_SHARE * limits["body"]):
            body = start + b",".join(bodies[part]) + b"]}"
            done = yield Request("POST", "/v1/documents", body=body, again=replace)
            count += int(done["added"]) + int(done["replaced"])
        return count

    def delete(self, ids: Collection[str], missing_ok: bool) -> RequestSteps[int]:
        count = 0
        # Deleted twice is not found the second time: only where that is allowed may it be sent again.
        for part in (yield from self._named(ids)):
            params = [*part, ("missing_ok", "true" if missing_ok else "false")]
            count += int((yield Request("DELETE", "/v1/documents", params, again=missing_ok))["deleted"])
        return count

    def get(self, ids: Collection[str]) -> RequestSteps[dict[str, Document]]:
        found: dict[str, Document] = {}
        for part in (yield from self._named(ids)):
            reply = yield Request("GET", "/v1/documents", part)
            found |= {row["id"]: _document(row) for row in reply["documents"]}
        return found

    def _limits(self) -> RequestSteps[dict[str, Any]]:
        about = self._about or (yield from self.index())
        limits: dict[str, Any] = about["limits"]
        return limits

    def _named(self, ids: Collection[str]) -> RequestSteps[list[list[tuple[str, str]]]]:
        """Ids as parameters, as many as may go together in one request."""
        names = [check_unicode(name, "id", "ids") for name in validate_ids(ids)]
        most = (yield from self._limits())["documents"]
        sizes = [len("&id=" + quote(name, safe="")) for name in names]
        return [[("id", name) for name in names[part]] for part in split_batches(sizes, most, QUERY_BYTES)]

    def _parts(self, sizes: Sequence[int], rest: int, question: SearchParams) -> RequestSteps[list[slice]]:
        """Queries that may go together in one request. sizes: bytes of each; rest: of what every request has."""
        if len(sizes) <= 1:
            return [slice(0, 1)] if sizes else []
        limits = yield from self._limits()
        assert self._about is not None
        k = question.k if isinstance(question.k, int) else 1
        candidates, lexical = question.candidates or self._about.get("candidates"), question.lexical
        depth = k
        if not question.codes_only:
            depth = max(k, candidates if isinstance(candidates, int) else 1)
            depth += lexical if isinstance(lexical, int) else 0
        most = min(limits["queries"], limits["reads"] // max(depth, 1), limits["answers"] // max(k, 1))
        return list(split_batches(sizes, most, BODY_SHARE * limits["body"] - rest))


def parse_search_reply(reply: Reply, queries: int) -> list[SearchResult]:
    """What a search found for so many queries."""
    if (count := len(reply["results"])) != queries:
        raise Unavailable(
            f"the server gave {count} results, expected {queries}: one a query; is it a `bidr serve`?", 200
        )
    return parse_answers(reply)


def parse_answers(reply: Reply) -> list[SearchResult]:
    """What a search found, as the local searcher says it."""
    found = []
    for result in reply["results"]:
        answers = [
            SearchHit(**{name: row[name] for name in NUMBERS}, document=_known(row), word_rank=row.get("word_rank", 0))
            for row in result["answers"]
        ]
        timings = result["timings"]
        found.append(SearchResult(answers, Timings(*(float(timings.get(step) or 0.0) for step in Timings._fields))))
    return found


def to_query_rows(queries: QueryVectors | npt.ArrayLike) -> Floats:
    """Rows to send. A server gets the users' own vectors: what each side makes of them is its affair."""
    if isinstance(queries, QueryVectors):
        if queries.codes is not queries.vectors and not np.array_equal(queries.codes, queries.vectors):
            raise ConfigError("queries of two sides given, but a server takes one vector a query; send texts instead")
        queries = queries.vectors
    with np.errstate(over="ignore"):  # what is too large for float32 the server refuses
        rows = np.ascontiguousarray(as_array(queries, "queries"), dtype="<f4")
    if rows.ndim != 2:
        raise DataError(f"queries: given shape {rows.shape}, expected (queries, dimensions); for one use vector[None]")
    return rows


def as_json(value: Any) -> str:
    """JSON, in which numbers of numpy are numbers; what JSON or UTF-8 has no form for is a DataError."""
    try:
        text = json.dumps(value, default=_for_json, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(f"given {format_value(value)}: {error}, expected what JSON can say; convert it") from error
    return check_unicode(text, "value", "the request")


def _for_json(value: Any) -> Any:
    found = to_python_scalar(value)
    if found is value:
        raise DataError(f"given {value!r} of type {type(value).__name__}, expected what JSON can say; convert it")
    return found


def _known(row: Reply) -> Document | None:
    return _document(row) if row.get("title") is not None or row.get("text") is not None else None


def _document(row: Reply) -> Document:
    return Document(row["id"], row.get("title") or "", row.get("text") or "", row.get("attributes"))


def _fields(document: Document) -> dict[str, Any]:
    fields: dict[str, Any] = {"id": document.id, "title": document.title, "text": document.text}
    if document.attributes is not None:
        fields["attributes"] = check_attributes(document.attributes, f"document {document.id!r}")
    return fields


def split_batches(sizes: Sequence[int], most: int, room: float) -> Iterator[slice]:
    """Which items go together: as many as may, and as fit; one that does not fit by itself goes alone."""
    start = size = 0
    for number, own in enumerate(sizes):
        if number > start and (number - start >= most or size + own > room):
            yield slice(start, number)
            start, size = number, 0
        size += own
    if sizes:
        yield slice(start, len(sizes))
