"""Validation of ids and texts where they come in: the obvious is converted, the rest is a DataError naming the value.

Ids and texts are stored, hashed, tokenised and sent as UTF-8, which half of a surrogate pair has no form in. It is
refused in whatever a caller can put right, and replaced by U+FFFD, and counted, in the texts of corpus files.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, NoReturn

import numpy as np

from bidr.errors import MAX_VALUE_CHARS, AttributesError, DataError

REPLACEMENT = "\ufffd"
_PANDAS_MISSING = ("NAType", "NaTType")
_NUMBERS = (int, float, bool)
_UNICODE_HINT = "write the character whole, or leave it out"


def is_unicode(text: str) -> bool:
    """Whether a string can be encoded: it can unless it holds half of a surrogate pair."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def replace_surrogates(text: str) -> str:
    """The text with each half of a surrogate pair replaced by U+FFFD; two halves that fit are one character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def is_missing(value: Any) -> bool:
    """Whether a value stands for none: None, or what tables hold in its place (NaN, NA, NaT)."""
    if value is None:
        return True
    if isinstance(value, float | np.floating):
        return math.isnan(value)
    return type(value).__name__ in _PANDAS_MISSING


def format_value(value: Any) -> str:
    """A value and its type on one line, for error messages."""
    shown = " ".join(ascii(value).split()) if isinstance(value, str) else " ".join(repr(value).split())
    shown = shown if len(shown) <= MAX_VALUE_CHARS else shown[: MAX_VALUE_CHARS - 3] + "..."
    return shown if value is None else f"{shown} ({type(value).__name__})"


def coerce_id(value: Any, place: str) -> str:
    """An id as a string. Whole numbers are written in digits; anything else but a string is refused."""
    if isinstance(value, bool) or not isinstance(value, str | int | np.integer):
        _refuse(value, "id", place, "a string or a whole number")
    name = str(value) if isinstance(value, str) else str(int(value))
    if not name:
        raise DataError(f"{place}: the id is '', expected a string that is not empty; give every record one")
    return check_unicode(name, "id", place)


def coerce_title(value: Any, place: str) -> str:
    """A title as a string; a missing one is empty."""
    return "" if is_missing(value) else coerce_text(value, place, "title")


def coerce_text(value: Any, place: str, field: str = "text") -> str:
    """A text as a string; anything else is refused, a missing one too."""
    if not isinstance(value, str):
        _refuse(value, field, place, "a string, which may be empty")
    return check_unicode(str(value), field, place)


def check_unicode(text: str, field: str, place: str) -> str:
    """Refuse half of a surrogate pair."""
    if not is_unicode(text):
        raise DataError(f"{place}: {field} {format_value(text)} holds half of a surrogate pair; {_UNICODE_HINT}")
    return text


def check_attribute_strings(attributes: Mapping[Any, Any], what: str) -> None:
    """Refuse half of a surrogate pair in names and values of attributes."""
    for name, value in attributes.items():
        if type(name) is str and name.isascii():  # as nearly all are
            kind = type(value)
            if (kind is str and value.isascii()) or kind in _NUMBERS:
                continue
        for each in (name, *value) if isinstance(value, list | tuple) else (name, value):
            if isinstance(each, str) and not is_unicode(each):
                raise AttributesError(
                    f"{what}: attribute {name!a}",
                    given=format_value(each),
                    expected="no half of a surrogate pair",
                    hint=_UNICODE_HINT,
                )


def coerce_ids(values: Iterable[Any], what: str) -> Iterator[str]:
    """Ids as strings, one after the other; errors call each by its row."""
    for row, value in enumerate(values):
        if type(value) is str and value.isascii() and value:
            yield value
        else:
            yield coerce_id(value, f"{what}: row {row:,}")


def check_queries(texts: Iterable[Any]) -> list[str]:
    """Questions as a list of strings."""
    if isinstance(texts, str | bytes | bytearray) or not isinstance(texts, Iterable):
        raise DataError(f"queries: given {format_value(texts)}, expected a string or a list of strings")
    queries = list(texts)
    for number, text in enumerate(queries):
        if type(text) is not str or not text.isascii():
            queries[number] = coerce_text(text, f"queries: number {number}")
    return queries


def _refuse(value: Any, field: str, place: str, expected: str) -> NoReturn:
    hint = "leave the record out, or give it one"
    if isinstance(value, bytes | bytearray):
        hint = "decode it, as value.decode()"
    elif isinstance(value, PurePath | int | float | np.generic) and not is_missing(value):
        hint = "write str(value) if that is meant"
    raise DataError(f"{place}: {field} is {format_value(value)}, expected {expected}; {hint}")
