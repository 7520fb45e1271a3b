"""What a search asks for: read from JSON or from bytes, and checked by hand, which is many times as fast as a model."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import orjson

from bidr.errors import to_short_json
from bidr.server.errors import HTTPError, InvalidRequest
from bidr.server.limits import RequestLimits
from bidr.server.query_params import OPTIONS, Options, QueryParams, ValidationContext, validate_options
from bidr.utils.array_types import Floats

FIELDS = ("texts", "vectors", *OPTIONS)
LARGEST = 1e18


class SearchRequest(NamedTuple):
    """A search as it was asked for: `texts` or `vectors`, never both."""

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

    @property
    def queries(self) -> int:
        return len(self.texts if self.texts is not None else self.vectors)  # type: ignore[arg-type]

    @property
    def reads(self) -> int:
        """Vectors that are read from disk, at most."""
        return 0 if self.codes_only else self.queries * (max(self.k, self.candidates) + self.lexical)


def parse_object(body: bytes, fields: Iterable[str]) -> dict[str, Any]:
    """The JSON object that a body holds, with no other fields than these."""
    try:
        given = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise HTTPError(
            f"the body is not JSON: {error}",
            given=body[:60].decode("utf-8", "replace") or "nothing",
            expected="a JSON object",
            hint="NaN and Infinity are no JSON; send UTF-8, numbers in plain notation",
        ) from error
    if not isinstance(given, dict):
        raise InvalidRequest(
            "the body is not an object",
            given=to_short_json(given),
            expected=f"an object with {', '.join(fields)}",
            hint="GET /openapi.json has examples",
        )
    known = tuple(fields)
    for name in given:
        if name not in known:
            raise InvalidRequest(
                "a field that is not known", given=to_short_json(name), expected=", ".join(known), hint="leave it out"
            )
    return given


def parse_json_search(body: bytes, said: QueryParams, rules: ValidationContext) -> SearchRequest:
    """A search from JSON. What the body does not say, the query string may."""
    given = parse_object(body, FIELDS)
    texts, vectors = given.get("texts"), given.get("vectors")
    if (texts is None) == (vectors is None):
        raise InvalidRequest(
            "a search is by texts or by vectors",
            given="both" if texts is not None else "neither",
            expected="one of texts, vectors",
            hint="send a request for each" if texts is not None else 'add "texts": ["..."]',
        )
    options = validate_options(said.given | given if said.given else given, rules)
    if texts is not None:
        return _asked(_texts(texts, rules.limits), None, options, rules)
    return _asked(None, _vectors(vectors, rules.limits, rules.dim), options, rules)


def parse_binary_search(body: bytes, said: QueryParams, rules: ValidationContext) -> SearchRequest:
    """A search from float32 rows, little-endian, with the rest in the query string."""
    row = 4 * rules.dim
    if not body or len(body) % row:
        raise InvalidRequest(
            "the body is not whole rows of float32",
            given=f"{len(body)} bytes",
            expected=f"a multiple of {row} bytes: {rules.dim} dimensions",
            hint="use the model of this index (GET /v1/index)",
        )
    # A copy: code compiled for arrays that may be written would be compiled again for others.
    rows = np.frombuffer(body, dtype="<f4").reshape(-1, rules.dim).copy()
    count_queries(len(rows), rules.limits)
    return _asked(None, _finite(rows), said.options, rules)


def _asked(
    texts: list[str] | None, vectors: Floats | None, options: Options, rules: ValidationContext
) -> SearchRequest:
    limits = rules.limits
    asked = SearchRequest(texts, vectors, *options)
    if asked.lexical:
        _check_words(asked, rules)
    answers = asked.queries * asked.k
    _check_total("candidates of all queries together", max(asked.reads, answers), limits.reads)
    _check_total("answers to all queries together", answers, limits.answers)
    return asked


def _check_total(name: str, total: int, most: int) -> None:
    if total > most:
        raise InvalidRequest(name, given=total, expected=f"up to {most}", hint="send fewer queries at once")


def _check_words(asked: SearchRequest, rules: ValidationContext) -> None:
    if asked.texts is None:
        raise InvalidRequest(
            "lexical: vectors have no words",
            given=asked.lexical,
            expected="texts",
            hint="ask by texts, or leave it out",
        )
    if not rules.words:
        raise InvalidRequest(
            "lexical: the index was built without words",
            given=asked.lexical,
            expected="0",
            hint="build it with --lexical, or leave it out",
        )
    both = max(asked.k, asked.candidates) + asked.lexical
    if both > rules.limits.candidates:
        raise InvalidRequest(
            "candidates and lexical together",
            given=both,
            expected=f"up to {rules.limits.candidates}",
            hint="ask for fewer",
        )


def count_queries(count: int, limits: RequestLimits) -> None:
    """Refuse none, and too many."""
    if not 1 <= count <= limits.queries:
        raise InvalidRequest(
            "the number of queries in one request",
            given=count,
            expected=f"1 to {limits.queries}",
            hint="send several requests",
        )


def matrix(rows: list[Any], dim: int, what: str = "vectors", largest: float = LARGEST) -> Floats:
    """Lists of numbers as float32 rows. Only numbers: numpy would take "1" and true for numbers too."""
    for number, row in enumerate(rows):
        if type(row) is not list or len(row) != dim:
            raise InvalidRequest(
                f"{what}: number {number} is not of the dimensions of this index",
                given=f"{len(row)} numbers" if type(row) is list else to_short_json(row),
                expected=f"{dim} numbers",
                hint="use the model of this index (GET /v1/index)",
            )
        if not NUMBERS.issuperset(map(type, row)):
            raise InvalidRequest(
                f"{what}: number {number} holds what is not a number",
                given=to_short_json(next(each for each in row if type(each) not in NUMBERS)),
                expected="numbers alone",
                hint="send a vector's numbers without quotes, and none that is null",
            )
    with np.errstate(over="ignore"):
        return _finite(np.array(rows, dtype=np.float32), what, largest)


NUMBERS = frozenset((float, int))


def _finite(rows: Floats, what: str = "vectors", largest: float = LARGEST) -> Floats:
    # Squares of what is larger are not numbers of 32 bits any more. The sum of all of them tells in one step of nearly
    # every request that no number is.
    if float(np.vdot(rows, rows)) <= largest**2:
        return rows
    bad = ~(np.abs(rows).max(axis=1) <= largest)
    if bad.any():
        row = rows[int(bad.argmax())]
        value = float(row[int((~(np.abs(row) <= largest)).argmax())])
        raise InvalidRequest(
            f"{what}: number {int(bad.argmax())} holds NaN, infinity, or a number too large",
            given=f"{value:g}" if math.isfinite(value) else "NaN" if math.isnan(value) else "more than 32 bits hold",
            expected=f"finite numbers up to {largest:g}",
            hint="scale or normalise the vectors",
        )
    return rows


def _texts(given: Any, limits: RequestLimits) -> list[str]:
    if type(given) is not list or not all(type(text) is str for text in given):
        raise InvalidRequest(
            "texts are not strings",
            given=to_short_json(given),
            expected="a list of strings",
            hint='for one query send ["its words"]',
        )
    count_queries(len(given), limits)
    for number, text in enumerate(given):
        if not text.strip() or len(text) > limits.characters:
            raise InvalidRequest(
                f"texts: number {number} is empty or too long",
                given=f"{len(text)} characters",
                expected=f"1 to {limits.characters}, not only spaces",
                hint="leave it out, or shorten it (limit.characters)",
            )
    return given


def _vectors(given: Any, limits: RequestLimits, dim: int) -> Floats:
    if type(given) is not list:
        raise InvalidRequest(
            "vectors are no list",
            given=to_short_json(given),
            expected="a list of lists of numbers",
            hint="for one query send [[...]]",
        )
    count_queries(len(given), limits)
    return matrix(given, dim)
