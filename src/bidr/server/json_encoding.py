"""JSON of what an index holds, whatever it holds."""

from collections.abc import Callable
from typing import Any

import orjson

from bidr.data.validation import replace_surrogates


def dump_json(value: Any, option: int = 0, default: Callable[[Any], Any] | None = None) -> bytes:
    """A value as JSON. Half of a surrogate pair, which an index may hold of old, is shown as U+FFFD."""
    try:
        return orjson.dumps(value, default=default, option=option)
    except TypeError:
        return orjson.dumps(_replaced(value), default=default, option=option)


def _replaced(value: Any) -> Any:
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, dict):
        return {_replaced(name): _replaced(each) for name, each in value.items()}
    return [_replaced(each) for each in value] if isinstance(value, list | tuple) else value
