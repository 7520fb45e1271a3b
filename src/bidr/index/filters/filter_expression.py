"""Filter expressions over attributes: parser, and evaluation on one document (columns: see `attribute_columns`).

{"lang": "en"}                       equals; for a list of strings: contains
{"year": {"gte": 2020, "lt": 2024}}  a range of numbers or of strings (gt, gte, lt, lte)
{"tag": {"any": ["a", "b"]}}         one of several
{"or": [{...}, {...}], "not": {...}} several keys are combined by "and"; "and", "or", "not" nest filters

A document without the attribute, or with a value of another kind, does not match.
"""

import json
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bidr.data.attribute_validation import COMBINING
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
MAX_DEPTH = 32
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


def parse_filter(value: Any, depth: int = 0) -> Filter:
    """Parse a filter; raise FilterError if it is invalid."""
    if not isinstance(value, Mapping) or not value:
        raise FilterError(
            "filter: no conditions", given=to_short_json(value), expected=f"an object such as {EXAMPLE}", hint=HINT
        )
    if depth > MAX_DEPTH:
        raise FilterError(
            "filter: nested too deep",
            given=f"more than {MAX_DEPTH} levels",
            expected=f"up to {MAX_DEPTH}",
            hint="write it flatter",
        )
    return And(tuple(_parse_entry(name, operand, depth) for name, operand in value.items()))


def list_attribute_names(expression: Filter) -> set[str]:
    """Return the names of the attributes in a filter."""
    if isinstance(expression, Condition):
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
            else:
                operands = list(operand.values()) if isinstance(operand, Mapping) else [operand]
                values += sum(len(item) if isinstance(item, list | tuple) else 1 for item in operands)
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
    if not isinstance(value, Mapping):
        return Condition(name, any=(_parse_scalar(name, value),))
    if set(value) == {"any"} and isinstance(value["any"], list | tuple) and value["any"]:
        return Condition(name, any=tuple(_parse_scalar(name, item) for item in value["any"]))
    if value and set(value) <= set(RANGES):
        bounds = tuple((key, _parse_scalar(name, bound)) for key, bound in value.items())
        if len({isinstance(bound, str) for _, bound in bounds}) > 1 or any(
            isinstance(bound, bool) for _, bound in bounds
        ):
            raise FilterError(
                f"filter: invalid range of {to_short_json(name)}",
                given=to_short_json(value),
                expected="bounds that are all numbers or all strings",
                hint="leave one bound out, or give both the same type",
            )
        return Condition(name, bounds=bounds)
    raise FilterError(
        f"filter: invalid condition on {to_short_json(name)}",
        given=to_short_json(value),
        expected=f'a value, {{"any": [values]}}, or bounds by {", ".join(RANGES)}',
        hint=HINT,
    )


def _parse_scalar(name: str, value: Any) -> Scalar:
    value = to_python_scalar(value)
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
    if isinstance(expression, Condition):
        value = attributes.get(expression.name)
        values = value if isinstance(value, list | tuple) else (value,)
        return any(_match_value(expression, item) for item in values if item is not None)
    if isinstance(expression, Not):
        return not match_filter(expression.part, attributes)
    combine = all if isinstance(expression, And) else any
    return combine(match_filter(part, attributes) for part in expression.parts)


def _match_value(condition: Condition, value: Scalar) -> bool:
    if condition.any:
        return any(get_kind(value) == get_kind(item) and value == item for item in condition.any)
    return all(get_kind(value) == get_kind(bound) and RANGES[key](value, bound) for key, bound in condition.bounds)


def get_kind(value: Scalar) -> str:
    """Return the kind of a value; values of different kinds neither equal nor order each other."""
    if isinstance(value, bool):
        return "truth"
    return "word" if isinstance(value, str) else "number"
