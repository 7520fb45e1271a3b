"""Input validation of ids and texts: safe conversions are made, other values are a DataError.

Ids and texts are stored, hashed, tokenized and sent as UTF-8, which cannot encode half of a surrogate pair. Input that
the caller can fix is refused; in the texts of corpus files it is replaced with U+FFFD and counted.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, NoReturn

import numpy as np

from bidr.errors import MAX_VALUE_CHARS, AttributesError, DataError

_PANDAS_MISSING = ("NAType", "NaTType")
_NUMBERS = (int, float, bool)
_UNICODE_HINT = "write the character whole, or leave it out"


def is_unicode(text: str) -> bool:
    """Return whether a string can be encoded: it has no half of a surrogate pair."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def replace_surrogates(text: str) -> str:
    """Replace each half of a surrogate pair with U+FFFD; matching halves are joined to one character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, or pandas' NA or NaT."""
    if value is None:
        return True
    if isinstance(value, float | np.floating):
        return math.isnan(value)
    return type(value).__name__ in _PANDAS_MISSING


def format_value(value: Any) -> str:
    """Format a value and its type on one line, for error messages."""
    text = " ".join((ascii(value) if isinstance(value, str) else repr(value)).split())
    text = text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 3] + "..."
    return text if value is None else f"{text} ({type(value).__name__})"


def coerce_id(value: Any, place: str) -> str:
    """Convert an id to a string; DataError unless it is a non-empty string or an integer."""
    if isinstance(value, bool) or not isinstance(value, str | int | np.integer):
        _refuse(value, "id", place, "a string or a whole number")
    name = str(value) if isinstance(value, str) else str(int(value))
    if not name:
        raise DataError(f"{place}: the id is '', expected a string that is not empty; give every record one")
    return check_unicode(name, "id", place)


def coerce_title(value: Any, place: str) -> str:
    """Convert a title to a string; a missing one becomes empty."""
    return "" if is_missing(value) else coerce_text(value, place, "title")


def coerce_text(value: Any, place: str, field: str = "text") -> str:
    """Validate a text; DataError unless it is a string."""
    if not isinstance(value, str):
        _refuse(value, field, place, "a string, which may be empty")
    return check_unicode(str(value), field, place)


def check_unicode(text: str, field: str, place: str) -> str:
    """Raise DataError for half of a surrogate pair."""
    if not is_unicode(text):
        raise DataError(f"{place}: {field} {format_value(text)} holds half of a surrogate pair; {_UNICODE_HINT}")
    return text


def check_attribute_strings(attributes: Mapping[Any, Any], what: str) -> None:
    """Raise AttributesError for half of a surrogate pair in a name or value."""
    for name, value in attributes.items():
        if type(name) is str and name.isascii():  # fast path
            kind = type(value)
            if (kind is str and value.isascii()) or kind in _NUMBERS:
                continue
        for item in (name, *value) if isinstance(value, list | tuple) else (name, value):
            if isinstance(item, str) and not is_unicode(item):
                raise AttributesError(
                    f"{what}: attribute {name!a}",
                    given=format_value(item),
                    expected="no half of a surrogate pair",
                    hint=_UNICODE_HINT,
                )


def coerce_ids(values: Iterable[Any], what: str) -> Iterator[str]:
    """Yield ids as strings; errors name the row."""
    for row, value in enumerate(values):
        if type(value) is str and value.isascii() and value:
            yield value
        else:
            yield coerce_id(value, f"{what}: row {row:,}")


def validate_query_texts(texts: Iterable[Any]) -> list[str]:
    """Return query texts as a list of strings."""
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
