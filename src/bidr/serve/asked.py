"""What a search asks for: read from JSON or from bytes, and checked by hand, which is many times as fast as a model."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import orjson

from bidr.codes.codebooks import Floats
from bidr.serve.errors import Invalid, Refused
from bidr.serve.limits import Limits

OPTIONS = ("k", "candidates", "filter", "text", "codes_only", "model", "lexical", "lexical_weight")
FIELDS = ("texts", "vectors", *OPTIONS)
LARGEST = 1e18
HEAVIEST = 1_000.0
K = 10


class Asked(NamedTuple):
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


def object_of(body: bytes, fields: Iterable[str]) -> dict[str, Any]:
    """The JSON object that a body holds, with no other fields than these."""
    try:
        given = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refused(
            f"the body is not JSON: {error}", hint="NaN and Infinity are no JSON; send UTF-8, numbers in plain notation"
        ) from error
    if not isinstance(given, dict):
        raise Invalid("the body is not an object", given=given, expected='an object such as {"texts": ["..."]}')
    known = tuple(fields)
    for name in given:
        if name not in known:
            raise Invalid("unknown field", given=name, expected=", ".join(known), hint="leave it out")
    return given


class Rules(NamedTuple):
    """What a search may ask of the index as it is."""

    limits: Limits
    candidates: int
    dim: int
    words: bool = False


Query = Mapping[str, list[str]]


def from_json(body: bytes, query: Query, rules: Rules) -> Asked:
    """A search from JSON. What the body does not say, the query string may."""
    given = object_of(body, FIELDS)
    texts, vectors = given.get("texts"), given.get("vectors")
    if (texts is None) == (vectors is None):
        raise Invalid("a search is by texts or by vectors", given=sorted(given), expected="one of texts, vectors")
    if query:
        given = _parameters(query, rules) | given
    if texts is not None:
        return _asked(given, _texts(texts, rules.limits), None, rules)
    return _asked(given, None, _vectors(vectors, rules.limits, rules.dim), rules)


def from_bytes(body: bytes, query: Query, rules: Rules) -> Asked:
    """A search from float32 rows, little-endian, with the rest in the query string."""
    row = 4 * rules.dim
    if not body or len(body) % row:
        raise Invalid(
            "the body is not whole rows of float32",
            given=f"{len(body)} bytes",
            expected=f"a multiple of {row} bytes: {rules.dim} dimensions",
            hint="use the model of this index (GET /v1/index)",
        )
    rows = np.frombuffer(body, dtype="<f4").reshape(-1, rules.dim)
    count_queries(len(rows), rules.limits)
    return _asked(_parameters(query, rules), None, _finite(rows), rules)


def _asked(given: Mapping[str, Any], texts: list[str] | None, vectors: Floats | None, rules: Rules) -> Asked:
    limits = rules.limits
    asked = Asked(texts, vectors, *_options(given, rules))
    if asked.lexical:
        _check_words(asked, rules)
    for name, total, most in (
        ("candidates of all queries together", max(asked.reads, asked.queries * asked.k), limits.reads),
        ("answers to all queries together", asked.queries * asked.k, limits.answers),
    ):
        if total > most:
            raise Invalid(name, given=total, expected=f"up to {most}", hint="send fewer queries at once")
    return asked


def _check_words(asked: Asked, rules: Rules) -> None:
    if asked.texts is None:
        raise Invalid(
            "lexical: vectors have no words",
            given=asked.lexical,
            expected="texts",
            hint="ask by texts, or leave it out",
        )
    if not rules.words:
        raise Invalid(
            "lexical: the index was built without words",
            given=asked.lexical,
            expected="0",
            hint="build it with --lexical, or leave it out",
        )
    both = max(asked.k, asked.candidates) + asked.lexical
    if both > rules.limits.candidates:
        raise Invalid(
            "candidates and lexical together",
            given=both,
            expected=f"up to {rules.limits.candidates}",
            hint="ask for fewer",
        )


def _options(given: Mapping[str, Any], rules: Rules) -> tuple[Any, ...]:
    """What is asked besides the queries, in the order of `Asked`."""
    limits = rules.limits
    depth = min(rules.candidates, limits.candidates)
    return (
        _number(given.get("k"), "k", min(K, limits.k), limits.k),
        _number(given.get("candidates"), "candidates", depth, limits.candidates),
        _filter(given.get("filter")),
        _truth(given.get("text"), "text", True),
        _truth(given.get("codes_only"), "codes_only", False),
        _model(given.get("model")),
        _number(given.get("lexical"), "lexical", 0, limits.candidates, least=0),
        _weight(given.get("lexical_weight"), "lexical_weight"),
    )


def _parameters(query: Query, rules: Rules) -> dict[str, Any]:
    """What a query string says; checked, though a body may say otherwise."""
    found = {}
    for name, values in query.items():
        if name not in READERS or len(values) > 1:
            raise Invalid("unknown or repeated parameter", given=name, expected=", ".join(READERS))
        read, expected = READERS[name]
        try:
            found[name] = read(values[0])
        except (ValueError, KeyError) as error:
            raise Invalid(f"{name} cannot be read", given=values[0], expected=expected) from error
    _options(found, rules)
    return found


def _digits(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise ValueError(text)
    return int(text)


TRUTH = {"true": True, "false": False}
READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "k": (_digits, "a whole number"),
    "candidates": (_digits, "a whole number"),
    "filter": (orjson.loads, "JSON"),
    "text": (TRUTH.__getitem__, "true or false"),
    "codes_only": (TRUTH.__getitem__, "true or false"),
    "model": (str, "a fingerprint"),
    "lexical": (_digits, "a whole number"),
    "lexical_weight": (float, "a number"),
}


def count_queries(count: int, limits: Limits) -> None:
    """Refuse none, and too many."""
    if not 1 <= count <= limits.queries:
        raise Invalid(
            "queries of one request", given=count, expected=f"1 to {limits.queries}", hint="send several requests"
        )


def matrix(rows: list[Any], dim: int, what: str = "vectors", largest: float = LARGEST) -> Floats:
    """Lists of numbers as float32 rows. Only numbers: numpy would take "1" and true for numbers too."""
    for number, row in enumerate(rows):
        if type(row) is not list or len(row) != dim:
            raise Invalid(
                f"{what}: number {number} is not of the dimensions of this index",
                given=f"{len(row)} numbers" if type(row) is list else row,
                expected=f"{dim} numbers",
                hint="use the model of this index (GET /v1/index)",
            )
        if not NUMBERS.issuperset(map(type, row)):
            raise Invalid(f"{what}: number {number} holds what is not a number", expected="numbers alone")
    with np.errstate(over="ignore"):
        return _finite(np.array(rows, dtype=np.float32), what, largest)


NUMBERS = frozenset((float, int))


def _finite(rows: Floats, what: str = "vectors", largest: float = LARGEST) -> Floats:
    # Squares of what is larger are not numbers of 32 bits any more.
    bad = ~(np.abs(rows).max(axis=1) <= largest)
    if bad.any():
        raise Invalid(
            f"{what}: number {int(bad.argmax())} holds NaN, infinity, or a number too large",
            expected=f"finite numbers up to {largest:g}",
            hint="scale or normalise the vectors",
        )
    return rows


def _texts(given: Any, limits: Limits) -> list[str]:
    if type(given) is not list or not all(type(text) is str for text in given):
        raise Invalid("texts", given=given, expected="a list of strings")
    count_queries(len(given), limits)
    for number, text in enumerate(given):
        if not text.strip() or len(text) > limits.characters:
            raise Invalid(
                f"texts: number {number} is empty or too long",
                given=f"{len(text)} characters",
                expected=f"1 to {limits.characters}, not only spaces",
            )
    return given


def _vectors(given: Any, limits: Limits, dim: int) -> Floats:
    if type(given) is not list:
        raise Invalid("vectors", given=given, expected="a list of lists of numbers")
    count_queries(len(given), limits)
    return matrix(given, dim)


def _number(given: Any, name: str, default: int, most: int, least: int = 1) -> int:
    if given is None:
        return default
    if type(given) is float and given.is_integer() and abs(given) < 1e18:
        given = int(given)
    if type(given) is not int or not least <= given <= most:
        raise Invalid(name, given=given, expected=f"a whole number from {least} to {most}")
    return given


def _weight(given: Any, name: str) -> float:
    if given is None:
        return 0.0
    if type(given) not in NUMBERS or not abs(given) <= HEAVIEST:
        raise Invalid(name, given=given, expected=f"a number from -{HEAVIEST:g} to {HEAVIEST:g}")
    return float(given)


def _truth(given: Any, name: str, default: bool) -> bool:
    if given is None:
        return default
    if type(given) is not bool:
        raise Invalid(name, given=given, expected="true or false")
    return given


def _filter(given: Any) -> dict[str, Any] | None:
    if given is None:
        return None
    if type(given) is not dict or not given:
        raise Invalid("filter", given=given, expected='conditions by attribute, such as {"lang": "en"}')
    return given


def _model(given: Any) -> str | None:
    if given is not None and (type(given) is not str or not given):
        raise Invalid("model", given=given, expected="the fingerprint of the model that made the vectors")
    return given
