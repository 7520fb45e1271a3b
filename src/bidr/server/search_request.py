"""Parse and validate search requests.

Hand-written: an error names the given and the expected value and a remedy, by the limits of the served index. msgspec
names neither, and saves 2 of the 1,000 microseconds of a request with a text, 5 with a vector of 384 dimensions. A
query string is parsed once and cached, because clients send the same one with every request.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, get_args

import numpy as np
import orjson

from bidr.errors import to_short_json
from bidr.index.filters.filter_expression import measure_filter
from bidr.search.hit_selection import Combination, Fusion, ShapingOptions
from bidr.server.errors import HTTPError, InvalidRequest
from bidr.server.http_messages import parse_query_string
from bidr.server.limits import RequestLimits
from bidr.utils.array_types import Floats

SHAPING = ShapingOptions._fields
OPTIONS = ("k", "candidates", "filter", "text", "codes_only", "model", "lexical", "lexical_weight", *SHAPING)
FIELDS = ("texts", "vectors", "like", "rerank", *OPTIONS)
DEFAULT_K = 10
MAX_LEXICAL_WEIGHT = 1_000.0
MAX_SCORE = 1e30
FUSIONS, COMBINATIONS = get_args(Fusion), get_args(Combination)
MAX_COMPONENT = 1e18
"""Largest vector component: squares of larger ones do not fit into float32."""
MAX_CACHED_BYTES, MAX_CACHED_QUERIES = 256, 256
OMIT_HINT = "or leave it out to use the server's default"
NUMBER_TYPES = frozenset((float, int))
Options = tuple[int, int, dict[str, Any] | None, bool, bool, str | None, int | None, float, ShapingOptions | None]
"""Validated options: those before `SHAPING`, and these together; `lexical` None: as recommended for texts."""


class ValidationContext(NamedTuple):
    """Limits and properties of the served index that requests are checked against."""

    limits: RequestLimits
    candidates: int
    dim: int
    has_lexical: bool = False
    lexical: int = 0
    lexical_weight: float = 0.0


class QueryParams(NamedTuple):
    """Parameters of a query string, and the options that result from them and the defaults."""

    values: dict[str, Any]
    options: Options


class SearchRequest(NamedTuple):
    """A validated search request with `texts`, `vectors` or `like`, ids of documents that make one query.

    shaping: None: none of its options was given.
    """

    texts: list[str] | None
    vectors: Floats | None
    k: int
    candidates: int
    filter: dict[str, Any] | None
    text: bool
    codes_only: bool
    model: str | None
    lexical: int
    lexical_weight: float
    shaping: ShapingOptions | None = None
    like: list[str] | None = None
    rerank: int = 0

    @property
    def queries(self) -> int:
        """Number of query vectors."""
        if self.like is not None:
            return 1
        return len(self.texts if self.texts is not None else self.vectors)  # type: ignore[arg-type]

    @property
    def is_combined(self) -> bool:
        """Whether all query vectors are one query."""
        return self.shaping is not None and self.shaping.combine is not None

    @property
    def end(self) -> int:
        """Number of documents up to the last hit, or the last one that a cross-encoder reads."""
        return max(self.k + (self.shaping.offset if self.shaping else 0) + len(self.like or ()), self.rerank)

    @property
    def reads(self) -> int:
        """Upper bound of the vectors that are read from disk."""
        return 0 if self.codes_only else self.queries * (max(self.end, self.candidates) + self.lexical)


class RequestParser:
    """Parses search requests for one index snapshot; caches parsed query strings."""

    def __init__(self, context: ValidationContext) -> None:
        self.context = context
        self._cache: dict[bytes, QueryParams] = {}

    def parse_params(self, query_string: bytes) -> QueryParams:
        """Parse and validate a query string, even where the body overrides its values."""
        params = self._cache.get(query_string)
        if params is None:
            values = _parse_parameters(parse_query_string(query_string))
            check_dim(values.pop("dim", None), self.context.dim)
            params = QueryParams(values, validate_options(values, self.context))
            is_small = len(query_string) <= MAX_CACHED_BYTES and len(self._cache) < MAX_CACHED_QUERIES
            if is_small and "filter" not in values:  # filters vary from request to request
                self._cache[query_string] = params
        return params

    def parse_json(self, body: bytes, params: QueryParams) -> SearchRequest:
        """Parse a JSON body. Fields of the body override the query string."""
        fields = parse_object(body, FIELDS)
        texts, vectors, like = fields.get("texts"), fields.get("vectors"), fields.get("like")
        count = (texts is not None) + (vectors is not None) + (like is not None)
        if count != 1:
            raise InvalidRequest(
                "a search is by texts or by vectors, or like documents",
                given="several of them" if count else "none of them",
                expected="one of texts, vectors, like",
                hint="send one request for each" if count else 'add "texts": ["..."]',
            )
        options = validate_options(params.values | fields if params.values else fields, self.context)
        if texts is not None:
            request = _make_request(_check_texts(texts, self.context.limits), None, options, self.context)
            return request if fields.get("rerank") is None else _add_rerank(request, fields["rerank"], self.context)
        if fields.get("rerank") is not None:
            raise InvalidRequest(
                "rerank needs texts", given=to_short_json(fields["rerank"]), expected="texts", hint="leave rerank out"
            )
        if like is not None:
            return _make_request(None, None, options, self.context, _check_ids(like, self.context.limits))
        return _make_request(None, _parse_vectors(vectors, self.context), options, self.context)

    def parse_binary(self, body: bytes, params: QueryParams) -> SearchRequest:
        """Parse little-endian float32 rows; all options come from the query string."""
        dim = self.context.dim
        row_bytes = 4 * dim
        if not body or len(body) % row_bytes:
            raise InvalidRequest(
                "the body is not whole rows of float32",
                given=f"{len(body)} bytes",
                expected=f"a multiple of {row_bytes} bytes: {dim} dimensions",
                hint="use the model of this index (GET /v1/index)",
            )
        # Copied: numba would compile every kernel a second time for read-only arrays.
        rows = np.frombuffer(body, dtype="<f4").reshape(-1, dim).copy()
        check_query_count(len(rows), self.context.limits)
        return _make_request(None, _check_finite(rows), params.options, self.context)


def parse_object(body: bytes, fields: Iterable[str]) -> dict[str, Any]:
    """Parse a JSON object and reject fields that are not in `fields`."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise HTTPError(
            f"the body is not JSON: {error}",
            given=body[:60].decode("utf-8", "replace") or "nothing",
            expected="a JSON object",
            hint="send UTF-8 without NaN and Infinity, which JSON does not have",
        ) from error
    if not isinstance(parsed, dict):
        raise InvalidRequest(
            "the body is not an object",
            given=to_short_json(parsed),
            expected=f"an object with {', '.join(fields)}",
            hint="GET /openapi.json has examples",
        )
    allowed = tuple(fields)
    for name in parsed:
        if name not in allowed:
            raise InvalidRequest(
                "unknown field in body", given=to_short_json(name), expected=", ".join(allowed), hint="leave it out"
            )
    return parsed


def validate_options(values: Mapping[str, Any], context: ValidationContext) -> Options:
    """Validate search options and fill in defaults for those that are absent."""
    limits, get = context.limits, values.get
    default_candidates = min(context.candidates, limits.candidates)
    return (
        min(DEFAULT_K, limits.k) if (k := get("k")) is None else check_int(k, "k", limits.k),
        default_candidates
        if (depth := get("candidates")) is None
        else check_int(depth, "candidates", limits.candidates),
        None if (conditions := get("filter")) is None else check_filter(conditions, limits),
        True if (text := get("text")) is None else check_bool(text, "text"),
        False if (codes_only := get("codes_only")) is None else check_bool(codes_only, "codes_only"),
        None if (model := get("model")) is None else _check_model(model),
        None if (lexical := get("lexical")) is None else check_int(lexical, "lexical", limits.candidates, minimum=0),
        context.lexical_weight
        if (weight := get("lexical_weight")) is None
        else _check_number(weight, "lexical_weight", -MAX_LEXICAL_WEIGHT, MAX_LEXICAL_WEIGHT),
        _parse_shaping(values, limits) if any(get(name) is not None for name in SHAPING) else None,
    )


def _parse_shaping(values: Mapping[str, Any], limits: RequestLimits) -> ShapingOptions:
    """Validate the options of `SHAPING` that are given."""
    options = {name: values[name] for name in SHAPING if values.get(name) is not None}
    for name, maximum, minimum in (("offset", limits.candidates, 0), ("group_size", limits.k, 1)):
        if name in options:
            options[name] = check_int(options[name], name, maximum, minimum)
    for name, low, high in (("min_score", -MAX_SCORE, MAX_SCORE), ("mmr", 0.0, 1.0)):
        if name in options:
            options[name] = _check_number(options[name], name, low, high)
    if "group_by" in options and (type(options["group_by"]) is not str or not options["group_by"]):
        raise InvalidRequest(
            "group_by is not the name of an attribute",
            given=to_short_json(options["group_by"]),
            expected="a string",
            hint="GET /v1/schema has the names; or leave it out",
        )
    for name, choices in (("fusion", FUSIONS), ("combine", COMBINATIONS)):
        if name in options and options[name] not in choices:
            raise InvalidRequest(
                f"invalid value of {name}",
                given=to_short_json(options[name]),
                expected=" or ".join(choices),
                hint=OMIT_HINT.removeprefix("or "),
            )
    return ShapingOptions(**options)


def check_dim(value: int | None, dim: int) -> None:
    """Reject a `dim` parameter that differs from the index; the length of a binary body cannot tell."""
    if value is not None and value != dim:
        raise InvalidRequest(
            "wrong number of dimensions",
            given=value,
            expected=f"{dim}, the dimensions of this index",
            hint="use the model of this index (GET /v1/index)",
        )


def check_query_count(count: int, limits: RequestLimits) -> None:
    """Reject requests without queries or with too many."""
    if not 1 <= count <= limits.queries:
        raise InvalidRequest(
            "invalid number of queries",
            given=count,
            expected=f"1 to {limits.queries}",
            hint="send several requests",
        )


def parse_matrix(rows: list[Any], dim: int, name: str = "vectors", max_component: float = MAX_COMPONENT) -> Floats:
    """Convert lists of numbers to float32 rows. Checks types first: numpy would convert "1" and true."""
    for number, row in enumerate(rows):
        if type(row) is not list or len(row) != dim:
            raise InvalidRequest(
                f"{name}: row {number} does not have the dimensions of this index",
                given=f"{len(row)} numbers" if type(row) is list else to_short_json(row),
                expected=f"{dim} numbers",
                hint="use the model of this index (GET /v1/index)",
            )
        if not NUMBER_TYPES.issuperset(map(type, row)):
            raise InvalidRequest(
                f"{name}: row {number} has a component that is not a number",
                given=to_short_json(next(value for value in row if type(value) not in NUMBER_TYPES)),
                expected="numbers",
                hint="send numbers without quotes, and no null",
            )
    with np.errstate(over="ignore"):
        return _check_finite(np.array(rows, dtype=np.float32), name, max_component)


def _make_request(
    texts: list[str] | None,
    vectors: Floats | None,
    options: Options,
    context: ValidationContext,
    like: list[str] | None = None,
) -> SearchRequest:
    k, candidates, condition, text, codes_only, model, lexical, weight, shaping = options
    is_combined = shaping is not None and shaping.combine is not None
    if lexical is None:
        lexical = get_default_lexical(context, k, candidates) if texts is not None and not is_combined else 0
    request = SearchRequest(
        texts, vectors, k, candidates, condition, text, codes_only, model, lexical, weight, shaping, like
    )
    if request.lexical:
        _check_lexical(request, context)
    if request.end > max(context.limits.candidates, context.limits.k):
        raise InvalidRequest(
            "k and offset together exceed the limit",
            given=request.end,
            expected=f"up to {max(context.limits.candidates, context.limits.k)}",
            hint="lower k or offset (limit.candidates)",
        )
    results = request.k if is_combined else request.queries * request.k
    _check_total("too many candidates in one request", max(request.reads, results), context.limits.reads)
    _check_total("too many answers in one request", results, context.limits.answers)
    return request


def get_default_lexical(context: ValidationContext, k: int, candidates: int) -> int:
    """Return the recommended number of BM25 candidates, reduced to the limit."""
    return max(0, min(context.lexical, context.limits.candidates - max(k, candidates)))


def _check_total(message: str, total: int, limit: int) -> None:
    if total > limit:
        raise InvalidRequest(message, given=total, expected=f"up to {limit}", hint="send fewer queries at once")


def _check_lexical(request: SearchRequest, context: ValidationContext) -> None:
    if request.texts is None:
        raise InvalidRequest(
            "lexical needs texts, not vectors",
            given=request.lexical,
            expected="texts",
            hint="search by texts, or leave it out",
        )
    if request.is_combined:
        raise InvalidRequest(
            "lexical takes one text for each query",
            given=request.lexical,
            expected="0 with combine",
            hint="leave lexical out, or combine",
        )
    if not context.has_lexical:
        raise InvalidRequest(
            "lexical: this index was built without words",
            given=request.lexical,
            expected="0",
            hint="build it with --lexical, or leave it out",
        )
    total = max(request.end, request.candidates) + request.lexical
    if total > context.limits.candidates:
        raise InvalidRequest(
            "candidates and lexical together exceed the limit",
            given=total,
            expected=f"up to {context.limits.candidates}",
            hint="lower candidates or lexical",
        )


def _check_finite(rows: Floats, name: str = "vectors", max_component: float = MAX_COMPONENT) -> Floats:
    # One dot product accepts almost every request: the sum of squares bounds every component.
    if float(np.vdot(rows, rows)) <= max_component**2:
        return rows
    is_bad = ~(np.abs(rows).max(axis=1) <= max_component)
    if is_bad.any():
        row = rows[int(is_bad.argmax())]
        value = float(row[int((~(np.abs(row) <= max_component)).argmax())])
        raise InvalidRequest(
            f"{name}: row {int(is_bad.argmax())} has NaN, infinity, or a number that is too large",
            given=f"{value:g}"
            if math.isfinite(value)
            else "NaN"
            if math.isnan(value)
            else "more than float32 can hold",
            expected=f"finite numbers up to {max_component:g}",
            hint="scale or normalize the vectors",
        )
    return rows


def _check_texts(texts: Any, limits: RequestLimits) -> list[str]:
    if type(texts) is not list or not all(type(text) is str for text in texts):
        raise InvalidRequest(
            "texts are not strings",
            given=to_short_json(texts),
            expected="a list of strings",
            hint='for one query send ["text of the query"]',
        )
    check_query_count(len(texts), limits)
    for number, text in enumerate(texts):
        if not text.strip() or len(text) > limits.characters:
            raise InvalidRequest(
                f"texts: number {number} is empty or too long",
                given=f"{len(text)} characters",
                expected=f"1 to {limits.characters}, not only spaces",
                hint="leave it out, or shorten it (limit.characters)",
            )
    return texts


def _parse_vectors(vectors: Any, context: ValidationContext) -> Floats:
    if type(vectors) is not list:
        raise InvalidRequest(
            "vectors is not a list",
            given=to_short_json(vectors),
            expected="a list of lists of numbers",
            hint="for one query send [[...]]",
        )
    check_query_count(len(vectors), context.limits)
    return parse_matrix(vectors, context.dim)


def _parse_parameters(query: Mapping[str, list[str]]) -> dict[str, Any]:
    """Convert the parameters of a query string to their types."""
    values = {}
    for name, texts in query.items():
        if name not in PARSERS or len(texts) > 1:
            raise InvalidRequest(
                "unknown or repeated parameter",
                given=name,
                expected=f"once each: {', '.join(PARSERS)}",
                hint="leave it out",
            )
        parse, expected = PARSERS[name]
        try:
            values[name] = parse(texts[0])
        except (ValueError, KeyError) as error:
            raise InvalidRequest(
                f"cannot parse parameter {name}", given=texts[0] or "nothing", expected=expected, hint=OMIT_HINT
            ) from error
    return values


def _parse_int(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise ValueError(text)
    return int(text)


BOOLEANS = {"true": True, "false": False}
PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "k": (_parse_int, "a whole number"),
    "candidates": (_parse_int, "a whole number"),
    "filter": (orjson.loads, "JSON"),
    "text": (BOOLEANS.__getitem__, "true or false"),
    "codes_only": (BOOLEANS.__getitem__, "true or false"),
    "model": (str, "a fingerprint"),
    "lexical": (_parse_int, "a whole number"),
    "lexical_weight": (float, "a number"),
    "dim": (_parse_int, "a whole number"),
    "offset": (_parse_int, "a whole number"),
    "min_score": (float, "a number"),
    "group_by": (str, "the name of an attribute"),
    "group_size": (_parse_int, "a whole number"),
    "mmr": (float, "a number"),
    "fusion": (str, "sum or rrf"),
    "combine": (str, "max or mean"),
}


def check_int(value: Any, name: str, maximum: int, minimum: int = 1) -> int:
    if type(value) is float and value.is_integer() and abs(value) < 1e18:
        value = int(value)
    if type(value) is not int or not minimum <= value <= maximum:
        raise InvalidRequest(
            f"invalid value of {name}",
            given=to_short_json(value),
            expected=f"a whole number from {minimum} to {maximum}",
            hint=f"send one in this range, {OMIT_HINT}",
        )
    return value


def _add_rerank(request: SearchRequest, count: Any, context: ValidationContext) -> SearchRequest:
    """Add the number of hits that a cross-encoder reads, within the limit of answers."""
    limits = context.limits
    reranked = request._replace(rerank=check_int(count, "rerank", min(limits.k, limits.candidates), 0))
    if reranked.rerank and (request.codes_only or request.is_combined):
        raise InvalidRequest(
            "rerank goes with neither codes_only nor combine",
            given=reranked.rerank,
            expected="0",
            hint="leave one of them out",
        )
    _check_total("too many hits to rerank in one request", reranked.queries * reranked.rerank, limits.answers)
    _check_total("too many candidates in one request", reranked.reads, limits.reads)
    return reranked


def _check_ids(ids: Any, limits: RequestLimits) -> list[str]:
    """Validate the documents of a search for more like them."""
    is_list = type(ids) is list and all(type(doc_id) is str and doc_id for doc_id in ids)
    if not is_list or not 1 <= len(ids) <= limits.documents:
        raise InvalidRequest(
            "like is not a list of ids",
            given=to_short_json(ids),
            expected=f"1 to {limits.documents} ids of documents",
            hint='for one document send ["id"] (limit.documents)',
        )
    return list(dict.fromkeys(ids))


def _check_number(value: Any, name: str, low: float, high: float) -> float:
    if type(value) not in (float, int) or not low <= value <= high:
        raise InvalidRequest(
            f"invalid value of {name}",
            given=to_short_json(value),
            expected=f"a number from {low:g} to {high:g}",
            hint=f"send one in this range, {OMIT_HINT}",
        )
    return float(value)


def check_bool(value: Any, name: str) -> bool:
    if type(value) is not bool:
        raise InvalidRequest(
            f"{name} is not a boolean",
            given=to_short_json(value),
            expected="true or false",
            hint="send it without quotes",
        )
    return value


def check_filter(conditions: Any, limits: RequestLimits) -> dict[str, Any]:
    if type(conditions) is not dict or not conditions:
        raise InvalidRequest(
            "the filter has no conditions",
            given=to_short_json(conditions),
            expected='conditions by attribute, such as {"lang": "en"}',
            hint="leave it out to search all documents",
        )
    condition_count, value_count = measure_filter(conditions)
    for name, count, limit in (
        ("conditions", condition_count, limits.conditions),
        ("values", value_count, limits.values),
    ):
        if count > limit:
            raise InvalidRequest(
                f"filter: {name} exceed the limit",
                given=count,
                expected=f"up to {limit}",
                hint='use a range or {"any": [...]}, or send several requests',
            )
    return conditions


def _check_model(fingerprint: Any) -> str:
    if type(fingerprint) is not str or not fingerprint:
        raise InvalidRequest(
            "model is not a fingerprint",
            given=to_short_json(fingerprint),
            expected="a string: the fingerprint of the model that made the vectors",
            hint="GET /v1/index has the fingerprint of the index; or leave it out",
        )
    return fingerprint
