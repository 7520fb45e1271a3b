"""Filter expressions over attributes: parser, and evaluation on one document (columns: see `attribute_columns`).

{"lang": "en"}                       equals; for a list of strings: contains
{"lang": null}                       the document does not have the attribute
{"tag": {"any": ["a", "b"]}}         one of several; {"all": [...]}: a list that contains all of them
{"year": {"gte": 2020, "lt": 2024}}  a range of numbers or of strings (gt, gte, lt, lte)
{"published": {"gte": "2024-01-31"}} a range of times, if all bounds are ISO 8601 dates or times (see `iso_time`)
{"url": {"prefix": "https://"}}      a string that begins so
{"price": {"exists": true}}          the document has the attribute
{"lang": {"not": "en"}}              negation of a value or of conditions on the attribute
{"or": [{...}, {...}], "not": {...}} several keys are combined by "and"; "and", "or", "not" nest filters

Several conditions on one attribute are combined by "and". A document without the attribute, or with a value of another
kind, matches no condition but null, {"exists": false} and negations.
"""

import datetime
import json
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from bidr.data.attribute_validation import COMBINING
from bidr.data.types import Attributes, to_python_scalar
from bidr.data.validation import format_value, is_unicode
from bidr.errors import ConfigError, FilterError, to_short_json
from bidr.index.filters.iso_time import MAX_TIME, parse_time

Scalar = str | int | float | bool
RANGES: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}
OPERATORS = ("any", "all", *RANGES, "prefix", "exists", "not")
MAX_DEPTH = 32
EXAMPLE = '{"lang": "en"}'
HINT = "write it as docs/how-to/filter-by-attributes.md shows, or leave it out to search all documents"


class Condition(NamedTuple):
    """One condition on one attribute: equal to one of `any`, or within all `bounds`."""

    name: str
    any: tuple[Scalar, ...] = ()
    bounds: tuple[tuple[str, Scalar], ...] = ()


class TimeRange(NamedTuple):
    """A string that is an ISO 8601 time from `low` to `high`, inclusive, in microseconds since 1970."""

    name: str
    low: int
    high: int


class Prefix(NamedTuple):
    """A string that begins with `prefix`."""

    name: str
    prefix: str


class Exists(NamedTuple):
    """Any value."""

    name: str


class And(NamedTuple):
    parts: "tuple[Filter, ...]"


class Or(NamedTuple):
    parts: "tuple[Filter, ...]"


class Not(NamedTuple):
    part: "Filter"


Leaf = Condition | TimeRange | Prefix | Exists
Filter = Leaf | And | Or | Not


def parse_filter(value: Any, depth: int = 0) -> Filter:
    """Parse a filter; raise FilterError if it is invalid."""
    if not isinstance(value, Mapping) or not value:
        raise FilterError(
            "filter: no conditions", given=to_short_json(value), expected=f"an object such as {EXAMPLE}", hint=HINT
        )
    if depth > MAX_DEPTH:
        raise _make_depth_error()
    return And(tuple(_parse_entry(name, operand, depth) for name, operand in value.items()))


def list_attribute_names(expression: Filter) -> set[str]:
    """Return the names of the attributes in a filter."""
    if isinstance(expression, Leaf):
        return {expression.name}
    parts = (expression.part,) if isinstance(expression, Not) else expression.parts
    return {name for part in parts for name in list_attribute_names(part)}


def measure_filter(value: Any) -> tuple[int, int]:
    """Count the conditions (including "and", "or", "not") and the values of a filter that may be invalid."""
    conditions, values, stack = 0, 0, [value]
    while stack:
        node = stack.pop()
        if not isinstance(node, Mapping):
            values += 1
            continue
        conditions += len(node)
        for name, operand in node.items():
            if name in COMBINING:
                stack += operand if isinstance(operand, list | tuple) else [operand]
                continue
            operands = [operand]
            while operands:  # operators nest by "not"
                item = operands.pop()
                if isinstance(item, Mapping):
                    operands += item.values()
                    conditions += "not" in item
                else:
                    values += len(item) if isinstance(item, list | tuple) else 1
    return conditions, values


def parse_filter_json(text: str) -> Any:
    """Parse the JSON of --filter."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f'--filter: {text!r} is not JSON ({error}); expected an object such as \'{{"lang": "en"}}\''
        ) from error


def _parse_entry(name: Any, value: Any, depth: int) -> Filter:
    if not isinstance(name, str):
        raise FilterError("filter: invalid attribute name", given=to_short_json(name), expected="a string", hint=HINT)
    if not is_unicode(name):
        raise _make_unicode_error("an attribute name", name)
    if name == "not":
        return Not(parse_filter(value, depth + 1))
    if name in COMBINING:
        if not isinstance(value, list | tuple) or not value:
            raise FilterError(
                f"filter: {to_short_json(name)} without filters",
                given=to_short_json(value),
                expected=f"a list of filters such as [{EXAMPLE}]",
                hint=HINT,
            )
        parts = tuple(parse_filter(part, depth + 1) for part in value)
        return And(parts) if name == "and" else Or(parts)
    return _parse_operand(name, value, depth)


def _parse_operand(name: str, value: Any, depth: int) -> Filter:
    """Parse what an attribute is compared with: a value, null, or conditions by operator."""
    if depth > MAX_DEPTH:
        raise _make_depth_error()
    if value is None:
        return Not(Exists(name))
    if not isinstance(value, Mapping):
        return Condition(name, any=(_parse_scalar(name, value),))
    if not value or not set(value) <= set(OPERATORS):
        raise _make_condition_error(name, value)
    parts = tuple(_parse_operators(name, value, depth))
    return parts[0] if len(parts) == 1 else And(parts)


def _parse_operators(name: str, operands: Mapping[str, Any], depth: int) -> Iterator[Filter]:
    """Yield the conditions on an attribute."""
    bounds = {key: bound for key, bound in operands.items() if key in RANGES}
    if bounds:
        yield _parse_range(name, bounds)
    for key, operand in operands.items():
        if key in ("any", "all"):
            if not isinstance(operand, list | tuple) or not operand:
                raise _make_condition_error(name, operands)
            if key == "all":
                yield And(tuple(Condition(name, any=(_parse_scalar(name, item),)) for item in operand))
                continue
            matching = Condition(name, any=tuple(_parse_scalar(name, item) for item in operand if item is not None))
            choices = (matching,) if matching.any else ()
            yield Or((*choices, Not(Exists(name)))) if None in operand else matching
        elif key == "exists":
            if not isinstance(operand, bool):
                raise _make_condition_error(name, operands)
            yield Exists(name) if operand else Not(Exists(name))
        elif key == "prefix":
            if not isinstance(operand, str):
                raise _make_condition_error(name, operands)
            yield Prefix(name, str(_parse_scalar(name, operand)))
        elif key == "not":
            yield Not(_parse_operand(name, operand, depth + 1))


def _parse_range(name: str, operands: Mapping[str, Any]) -> Filter:
    """Parse a range of numbers, of strings, or of times if all bounds are such."""
    bounds = tuple((key, _parse_scalar(name, bound)) for key, bound in operands.items())
    if len({isinstance(bound, str) for _, bound in bounds}) > 1 or any(isinstance(bound, bool) for _, bound in bounds):
        raise FilterError(
            f"filter: invalid range of {to_short_json(name)}",
            given=to_short_json(operands),
            expected="bounds that are all numbers or all strings",
            hint="leave one bound out, or give both the same type",
        )
    low, high = -MAX_TIME, MAX_TIME
    for key, bound in bounds:
        time = parse_time(bound) if isinstance(bound, str) else None
        if time is None:
            return Condition(name, bounds=bounds)
        if key in ("gt", "gte"):
            low = max(low, time + 1 if key == "gt" else time)
        else:
            high = min(high, time - 1 if key == "lt" else time)
    return TimeRange(name, low, high)


def _make_condition_error(name: str, value: Any) -> FilterError:
    return FilterError(
        f"filter: invalid condition on {to_short_json(name)}",
        given=to_short_json(value),
        expected='a value, null, {"any": [values]}, {"all": [values]}, {"prefix": "..."}, {"exists": true}, '
        f'{{"not": ...}}, or bounds by {", ".join(RANGES)}',
        hint=HINT,
    )


def _make_depth_error() -> FilterError:
    return FilterError(
        "filter: nested too deep",
        given=f"more than {MAX_DEPTH} levels",
        expected=f"up to {MAX_DEPTH}",
        hint="write it flatter",
    )


def _parse_scalar(name: str, value: Any) -> Scalar:
    value = to_python_scalar(value)
    if isinstance(value, datetime.date):  # datetimes too
        return value.isoformat()
    if isinstance(value, str) and not is_unicode(value):
        raise _make_unicode_error(f"the value of {name!a}", value)
    if isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise FilterError(
        f"filter: invalid value of {to_short_json(name)}",
        given=to_short_json(value),
        expected="a string, a finite number, true or false",
        hint='for one of several values write {"any": [values]}',
    )


def _make_unicode_error(what: str, value: str) -> FilterError:
    return FilterError(
        f"filter: {what}",
        given=format_value(value),
        expected="valid Unicode without lone surrogates",
        hint="write both halves of the surrogate pair; no document has such a value",
    )


def match_filter(expression: Filter, attributes: Attributes) -> bool:
    """Return whether the attributes of a document match."""
    if isinstance(expression, Leaf):
        value = attributes.get(expression.name)
        values = value if isinstance(value, list | tuple) else (value,)
        return any(_match_value(expression, item) for item in values if item is not None)
    if isinstance(expression, Not):
        return not match_filter(expression.part, attributes)
    combine = all if isinstance(expression, And) else any
    return combine(match_filter(part, attributes) for part in expression.parts)


def _match_value(condition: Leaf, value: Scalar) -> bool:
    if isinstance(condition, Exists):
        return True
    if isinstance(condition, Prefix):
        return isinstance(value, str) and value.startswith(condition.prefix)
    if isinstance(condition, TimeRange):
        time = parse_time(value) if isinstance(value, str) else None
        return time is not None and condition.low <= time <= condition.high
    if condition.any:
        return any(get_kind(value) == get_kind(item) and value == item for item in condition.any)
    return all(get_kind(value) == get_kind(bound) and RANGES[key](value, bound) for key, bound in condition.bounds)


def get_kind(value: Scalar) -> str:
    """Return the kind of a value; values of different kinds neither equal nor order each other."""
    if isinstance(value, bool):
        return "truth"
    return "word" if isinstance(value, str) else "number"
