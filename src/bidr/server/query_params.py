"""What a search may say besides its queries: each option checked, from JSON or from a query string."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import orjson

from bidr.errors import to_short_json
from bidr.index.filters.filter_expression import measure_filter
from bidr.server.asgi import parse_query_string
from bidr.server.errors import InvalidRequest
from bidr.server.limits import RequestLimits

OPTIONS = ("k", "candidates", "filter", "text", "codes_only", "model", "lexical", "lexical_weight")
HEAVIEST = 1_000.0
K = 10
LEAVE_OUT = "or leave it out, and the server chooses"
LONGEST_KNOWN, MOST_KNOWN = 256, 256


class ValidationContext(NamedTuple):
    """What a search may ask of the index as it is."""

    limits: RequestLimits
    candidates: int
    dim: int
    words: bool = False


Options = tuple[int, int, dict[str, Any] | None, bool, bool, str | None, int, float]
"""What is asked besides the queries, in the order of `Asked`."""


class QueryParams(NamedTuple):
    """What a query string says, and the options that this makes with the defaults of the rest."""

    given: dict[str, Any]
    options: Options


class RequestParser:
    """Reads searches by rules. Clients send the same query string again and again: it is looked at once."""

    def __init__(self, rules: ValidationContext) -> None:
        self.rules = rules
        self._known: dict[bytes, QueryParams] = {}

    def said(self, raw: bytes) -> QueryParams:
        """What a query string says; refused if that cannot work, though a body may say otherwise."""
        known = self._known.get(raw)
        if known is None:
            given = _parameters(parse_query_string(raw))
            check_dim(given.pop("dim", None), self.rules.dim)
            known = QueryParams(given, validate_options(given, self.rules))
            if len(raw) <= LONGEST_KNOWN and len(self._known) < MOST_KNOWN and "filter" not in given:
                self._known[raw] = known
        return known


def validate_options(given: Mapping[str, Any], rules: ValidationContext) -> Options:
    """What is given, checked, and the defaults of the rest."""
    limits, get = rules.limits, given.get
    depth = min(rules.candidates, limits.candidates)
    return (
        min(K, limits.k) if (k := get("k")) is None else _number(k, "k", limits.k),
        depth if (asked := get("candidates")) is None else _number(asked, "candidates", limits.candidates),
        None if (conditions := get("filter")) is None else _filter(conditions, limits),
        True if (text := get("text")) is None else _truth(text, "text"),
        False if (only := get("codes_only")) is None else _truth(only, "codes_only"),
        None if (model := get("model")) is None else _model(model),
        0 if (lexical := get("lexical")) is None else _number(lexical, "lexical", limits.candidates, least=0),
        0.0 if (weight := get("lexical_weight")) is None else _weight(weight, "lexical_weight"),
    )


def check_dim(given: int | None, dim: int) -> None:
    """Refuse vectors that are said to have other dimensions than the index: bytes do not tell."""
    if given is not None and given != dim:
        raise InvalidRequest(
            "the vectors are of other dimensions than this index",
            given=given,
            expected=f"{dim}, the dimensions of this index",
            hint="use the model of this index (GET /v1/index)",
        )


def _parameters(query: Mapping[str, list[str]]) -> dict[str, Any]:
    """The values of a query string's parameters."""
    found = {}
    for name, values in query.items():
        if name not in READERS or len(values) > 1:
            raise InvalidRequest(
                "unknown or repeated parameter",
                given=name,
                expected=f"once each: {', '.join(READERS)}",
                hint="leave it out",
            )
        read, expected = READERS[name]
        try:
            found[name] = read(values[0])
        except (ValueError, KeyError) as error:
            raise InvalidRequest(
                f"{name} cannot be read", given=values[0] or "nothing", expected=expected, hint=LEAVE_OUT
            ) from error
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
    "dim": (_digits, "a whole number"),
}


def _number(given: Any, name: str, most: int, least: int = 1) -> int:
    if type(given) is float and given.is_integer() and abs(given) < 1e18:
        given = int(given)
    if type(given) is not int or not least <= given <= most:
        raise InvalidRequest(
            f"{name} cannot be asked for so",
            given=to_short_json(given),
            expected=f"a whole number from {least} to {most}",
            hint=f"{LEAVE_OUT}; whoever runs the server sets the limit",
        )
    return given


def _weight(given: Any, name: str) -> float:
    if type(given) not in (float, int) or not abs(given) <= HEAVIEST:
        raise InvalidRequest(
            f"{name} cannot be asked for so",
            given=to_short_json(given),
            expected=f"a number from -{HEAVIEST:g} to {HEAVIEST:g}",
            hint=LEAVE_OUT,
        )
    return float(given)


def _truth(given: Any, name: str) -> bool:
    if type(given) is not bool:
        raise InvalidRequest(
            f"{name} is not a truth value",
            given=to_short_json(given),
            expected="true or false",
            hint="send it without quotes",
        )
    return given


def _filter(given: Any, limits: RequestLimits) -> dict[str, Any]:
    if type(given) is not dict or not given:
        raise InvalidRequest(
            "the filter has no conditions",
            given=to_short_json(given),
            expected='conditions by attribute, such as {"lang": "en"}',
            hint="leave it out to search all documents",
        )
    conditions, values = measure_filter(given)
    for name, count, most in (("conditions", conditions, limits.conditions), ("values", values, limits.values)):
        if count > most:
            raise InvalidRequest(
                f"filter: {name}",
                given=count,
                expected=f"up to {most}",
                hint='ask for a range, for one of several by {"any": [...]}, or for less at once',
            )
    return given


def _model(given: Any) -> str:
    if type(given) is not str or not given:
        raise InvalidRequest(
            "model is not a fingerprint",
            given=to_short_json(given),
            expected="a string: the fingerprint of the model that made the vectors",
            hint="GET /v1/index says that of the index; or leave it out",
        )
    return given
