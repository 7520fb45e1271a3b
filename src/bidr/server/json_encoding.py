"""JSON serialization of values from an index."""

from collections.abc import Callable
from typing import Any

import orjson

from bidr.data.validation import replace_surrogates


def dump_json(value: Any, option: int = 0, default: Callable[[Any], Any] | None = None) -> bytes:
    """Serialize a value; lone surrogates, which older indexes may contain, become U+FFFD."""
    try:
        return orjson.dumps(value, default=default, option=option)
    except TypeError:
        return orjson.dumps(_replace_surrogates(value), default=default, option=option)


def _replace_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, dict):
        return {_replace_surrogates(name): _replace_surrogates(item) for name, item in value.items()}
    return [_replace_surrogates(item) for item in value] if isinstance(value, list | tuple) else value
