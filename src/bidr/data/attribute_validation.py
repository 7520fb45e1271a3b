"""Validate the attributes of documents."""

import datetime
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from bidr.data.types import Value, to_python_scalar
from bidr.data.validation import check_attribute_strings
from bidr.errors import AttributesError, to_short_json

COMBINING = ("and", "or", "not")
LEAVE_OUT = "write it so, or leave it out"
LONGEST_NAME = 200


def check_attributes(attributes: Any, what: str) -> dict[str, Value]:
    """Validate attributes and convert numpy scalars; AttributesError for values that cannot be stored."""
    checked = check_stored_attributes(attributes, what)
    check_attribute_strings(checked, what)
    return checked


def check_stored_attributes(attributes: Any, what: str) -> dict[str, Value]:
    """Like `check_attributes`, but accept half of a surrogate pair, which old indexes may contain."""
    if not isinstance(attributes, Mapping):
        raise AttributesError(
            f"{what}: attributes",
            given=to_short_json(attributes),
            expected="an object of values by name",
            hint=LEAVE_OUT,
        )
    checked: dict[str, Value] = {}
    for name, value in attributes.items():
        if not isinstance(name, str) or not name or name in COMBINING or len(name) > LONGEST_NAME:
            raise AttributesError(
                f"{what}: an attribute's name",
                given=to_short_json(name),
                expected=f'a string of 1 to {LONGEST_NAME} characters, not "and", "or" or "not"',
                hint="give it another name",
            )
        checked[name] = value if type(value) is str else _convert_value(value, name, what)
    return checked


def _convert_value(value: Any, name: str, what: str) -> Value:
    """Convert a value to its stored type."""
    plain: Any = value.tolist() if isinstance(value, np.ndarray) and value.ndim == 1 else to_python_scalar(value)
    if isinstance(plain, list | tuple) and all(isinstance(item, str) for item in plain):
        return [str(item) for item in plain]
    if isinstance(plain, datetime.date):  # datetimes too
        return plain.isoformat()
    is_int64 = isinstance(plain, int) and abs(plain) < 1 << 63
    if is_int64 or isinstance(plain, str) or (isinstance(plain, float) and math.isfinite(plain)):
        stored: Value = plain
        return stored
    raise AttributesError(
        f"{what}: attribute {to_short_json(name)}",
        given=to_short_json(value),
        expected="a string, a finite number of 64 bits, true or false, or a list of strings",
        hint=LEAVE_OUT,
    )
