"""Filters over attributes: a small language, parsed once, asked of one document or of columns.

{"lang": "en"}                       equal; of a list: one of its strings is
{"year": {"gte": 2020, "lt": 2024}}  a range of numbers or of strings (gt, gte, lt, lte)
{"tag": {"any": ["a", "b"]}}         one of several
{"or": [{...}, {...}], "not": {...}} several keys must all hold; "and", "or", "not" combine filters
A document without the attribute, or with one of another type, does not match.
"""

import json
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bidr.data.attributes import COMBINING
from bidr.data.types import Attributes, to_python_scalar
from bidr.data.validation import format_value, is_unicode
from bidr.errors import ConfigError, FilterError, to_short_json

Scalar = str | int | float | bool
RANGES: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}
DEEPEST = 32
EXAMPLE = '{"lang": "en"}'
HINT = "write it as docs/how-to/filter-by-attributes.md shows, or leave it out to search all documents"


class Condition(NamedTuple):
    """One condition on one attribute: equal to one of `any`, or within all `bounds`."""

    name: str
    any: tuple[Scalar, ...] = ()
    bounds: tuple[tuple[str, Scalar], ...] = ()


class And(NamedTuple):
    parts: "tuple[Filter, ...]"


class Or(NamedTuple):
    parts: "tuple[Filter, ...]"


class Not(NamedTuple):
    part: "Filter"


Filter = Condition | And | Or | Not


def parse_filter(given: Any, depth: int = 0) -> Filter:
    """A filter from what a user wrote; FilterError says what of it cannot be meant."""
    if not isinstance(given, Mapping) or not given:
        raise FilterError(
            "filter: no conditions", given=to_short_json(given), expected=f"an object such as {EXAMPLE}", hint=HINT
        )
    if depth > DEEPEST:
        raise FilterError(
            "filter: nested too deep",
            given=f"more than {DEEPEST} levels",
            expected=f"up to {DEEPEST}",
            hint="write it flatter",
        )
    return And(tuple(_condition(name, value, depth) for name, value in given.items()))


def list_attribute_names(asked: Filter) -> set[str]:
    """The attributes that a filter asks for."""
    if isinstance(asked, Condition):
        return {asked.name}
    parts = (asked.part,) if isinstance(asked, Not) else asked.parts
    return {name for part in parts for name in list_attribute_names(part)}


def measure_filter(given: Any) -> tuple[int, int]:
    """How many conditions ("and", "or" and "not" are some too) and values are written in a filter, right or wrong."""
    conditions, values, waiting = 0, 0, [given]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, Mapping):
            values += 1
            continue
        conditions += len(each)
        for name, value in each.items():
            if name in COMBINING:
                waiting += value if isinstance(value, list | tuple) else [value]
            else:
                sides = list(value.values()) if isinstance(value, Mapping) else [value]
                values += sum(len(side) if isinstance(side, list | tuple) else 1 for side in sides)
    return conditions, values


def parse_filter_json(text: str) -> Any:
    """What --filter says, as Python has it."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f'--filter: {text!r} is not JSON ({error}); write it such as \'{{"lang": "en"}}\'') from error


def _condition(name: Any, value: Any, depth: int) -> Filter:
    if not isinstance(name, str):
        raise FilterError("filter: an attribute's name", given=to_short_json(name), expected="a string", hint=HINT)
    if not is_unicode(name):
        raise _not_unicode("an attribute's name", name)
    if name == "not":
        return Not(parse_filter(value, depth + 1))
    if name in COMBINING:
        if not isinstance(value, list | tuple) or not value:
            raise FilterError(
                f"filter: {to_short_json(name)} of no filters",
                given=to_short_json(value),
                expected=f"a list of filters such as [{EXAMPLE}]",
                hint=HINT,
            )
        parts = tuple(parse_filter(each, depth + 1) for each in value)
        return And(parts) if name == "and" else Or(parts)
    if not isinstance(value, Mapping):
        return Condition(name, any=(_scalar(name, value),))
    if set(value) == {"any"} and isinstance(value["any"], list | tuple) and value["any"]:
        return Condition(name, any=tuple(_scalar(name, each) for each in value["any"]))
    if value and set(value) <= set(RANGES):
        bounds = tuple((key, _scalar(name, each)) for key, each in value.items())
        if len({isinstance(each, str) for _, each in bounds}) > 1 or any(isinstance(each, bool) for _, each in bounds):
            raise FilterError(
                f"filter: a range of {to_short_json(name)}",
                given=to_short_json(value),
                expected="bounds that are all numbers or all strings",
                hint="leave one side out, or write both alike",
            )
        return Condition(name, bounds=bounds)
    raise FilterError(
        f"filter: a condition on {to_short_json(name)}",
        given=to_short_json(value),
        expected=f'a value, {{"any": [values]}}, or bounds by {", ".join(RANGES)}',
        hint=HINT,
    )


def _scalar(name: str, value: Any) -> Scalar:
    value = to_python_scalar(value)
    if isinstance(value, str) and not is_unicode(value):
        raise _not_unicode(f"what {name!a} is compared with", value)
    if isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise FilterError(
        f"filter: what {to_short_json(name)} is compared with",
        given=to_short_json(value),
        expected="a string, a finite number, true or false",
        hint='to ask for one of several write {"any": [values]}',
    )


def _not_unicode(what: str, value: str) -> FilterError:
    return FilterError(
        f"filter: {what}",
        given=format_value(value),
        expected="no half of a surrogate pair",
        hint="write the character whole: no document has such a value",
    )


def match_filter(asked: Filter, attributes: Attributes) -> bool:
    """Whether one document passes."""
    if isinstance(asked, Condition):
        value = attributes.get(asked.name)
        values = value if isinstance(value, list | tuple) else (value,)
        return any(_holds(asked, each) for each in values if each is not None)
    if isinstance(asked, Not):
        return not match_filter(asked.part, attributes)
    combine = all if isinstance(asked, And) else any
    return combine(match_filter(part, attributes) for part in asked.parts)


def _holds(test: Condition, value: Scalar) -> bool:
    if test.any:
        return any(get_kind(value) == get_kind(wanted) and value == wanted for wanted in test.any)
    return all(get_kind(value) == get_kind(bound) and RANGES[key](value, bound) for key, bound in test.bounds)


def get_kind(value: Scalar) -> str:
    """Values of different kinds are never equal, nor before or after each other."""
    if isinstance(value, bool):
        return "truth"
    return "word" if isinstance(value, str) else "number"
