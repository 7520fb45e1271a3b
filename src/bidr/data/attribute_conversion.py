"""Conversion of table cells to attributes: numpy and pandas scalars, dates, decimals and missing values."""

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import singledispatch
from typing import Any, Final
from uuid import UUID

import numpy as np

from bidr.data.attribute_validation import COMBINING, LONGEST_NAME
from bidr.data.types import Value
from bidr.data.validation import is_missing, is_unicode

MAX_INTEGER = 1 << 63


class Unsupported:
    """A value that no attribute can hold."""


UNSUPPORTED: Final = Unsupported()
Converted = Value | Unsupported | None


def convert_attribute(value: Any) -> Converted:
    """Convert a cell to an attribute; None: missing, UNSUPPORTED: no attribute can hold it.

    Dates and times become ISO 8601 text, in UTC if they have a time zone: such text sorts by time, so that range
    filters work. Durations become seconds, decimals numbers, UUIDs text.
    """
    if type(value) is str:  # first, as most are
        return value if is_unicode(value) else UNSUPPORTED
    return None if is_missing(value) else _convert(value)


@singledispatch
def _convert(value: Any) -> Converted:
    return UNSUPPORTED


@_convert.register
def _(value: str) -> Converted:  # of a subclass, such as a member of an enumeration
    return convert_attribute(str.__str__(value))


@_convert.register
def _(value: int) -> Converted:
    return (bool if isinstance(value, bool) else int)(value) if -MAX_INTEGER <= value < MAX_INTEGER else UNSUPPORTED


@_convert.register
def _(value: float) -> Converted:
    return float(value) if math.isfinite(value) else UNSUPPORTED


@_convert.register
def _(value: np.generic) -> Converted:
    plain = value.item()
    return UNSUPPORTED if isinstance(plain, np.generic) else convert_attribute(plain)


@_convert.register(np.datetime64)
@_convert.register(np.timedelta64)
def _(value: Any) -> Converted:
    plain = value.item()
    if isinstance(plain, int):  # nanoseconds, which Python's types lack, are cut to microseconds
        plain = value.astype(f"{value.dtype.kind}8[us]").item()
    return convert_attribute(plain)


@_convert.register
def _(value: datetime) -> Converted:
    return (value if value.tzinfo is None else value.astimezone(UTC)).isoformat()


@_convert.register(date)
@_convert.register(time)
def _(value: date | time) -> Converted:
    return value.isoformat()


@_convert.register
def _(value: timedelta) -> Converted:
    return value.total_seconds()


@_convert.register
def _(value: UUID) -> Converted:
    return str(value)


@_convert.register
def _(value: Decimal) -> Converted:
    if value.is_nan():
        return None
    is_whole = value.is_finite() and value == value.to_integral_value()
    return convert_attribute(int(value) if is_whole else float(value))


@_convert.register(list)
@_convert.register(tuple)
@_convert.register(set)
@_convert.register(frozenset)
@_convert.register(np.ndarray)
def _(value: Any) -> Converted:
    items = list(value)
    if not items:
        return None
    if not all(isinstance(item, str) and is_unicode(item) for item in items):
        return UNSUPPORTED
    texts = [str(item) for item in items]
    return sorted(texts) if isinstance(value, set | frozenset) else texts


@_convert.register
def _(value: Mapping) -> Converted:  # type: ignore[type-arg]
    return None if not value else UNSUPPORTED


def is_attribute_name(name: Any) -> bool:
    """Return whether an attribute can have this name."""
    return isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name not in COMBINING and is_unicode(name)
