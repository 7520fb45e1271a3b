"""Errors a user can cause. Each message is one line: what is wrong, given, expected, and what to do."""

import json
import warnings
from typing import Any

MAX_VALUE_CHARS = 80
REBUILD = "restore the folder from a copy, save what is intact (bidr repair INDEX --out NEW), or build the index again"


class BidrError(Exception):
    """Base of the errors that the CLI prints as one line, with exit code 2."""


class DataError(BidrError):
    """Input text, queries, judgments or vectors are missing or malformed."""


class ConfigError(BidrError):
    """An option has an invalid value."""


class ModelError(BidrError):
    """A model folder is missing, incomplete, or not the one an index was built with."""


class IndexFolderError(BidrError):
    """An index folder is missing, damaged, or built with another model."""


class StorageError(BidrError):
    """The disk is full, read-only, or failing."""


class ForkError(BidrError):
    """A writer was used in a forked child of the process that opened it."""


class SearchTimeoutError(BidrError):
    """A search exceeded its deadline."""


class DetailedError(BidrError):
    """An error whose parts are attributes, for interfaces that report them as separate fields."""

    def __init__(self, what: str, *, given: str, expected: str, hint: str) -> None:
        super().__init__(f"{what}: given {given}, expected {expected}; {hint}")
        self.what, self.given, self.expected, self.hint = what, given, expected, hint


class FilterError(DetailedError, ConfigError):
    """A filter is invalid."""


class AttributesError(DetailedError, DataError):
    """Attributes of a document cannot be stored."""


class MissingExtraError(BidrError, ImportError):
    """A feature requires a package that is not installed."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        super().__init__(f"{feature} needs the package {package!r}; in a checkout of bidr: pip install '.[{extra}]'")


# The extra that brings a package which the base install does not have.
EXTRAS = {
    "faiss": "faiss",
    "httptools": "serve",
    "ir_datasets": "data",
    "ir_measures": "evaluate",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "onnx",
    "opentelemetry": "traces",
    "orjson": "serve",
    "prometheus_client": "serve",
    "pyarrow": "data",
    "sentence_transformers": "transformers",
    "tensorboard": "logs",
    "torch": "train",
    "transformers": "transformers",
    "upath": "remote",
    "uvicorn": "serve",
    "uvloop": "serve",
    "zstandard": "data",
}


def name_missing_extra(feature: str, error: ImportError) -> MissingExtraError | None:
    """Return the error that names the extra to install, if the package that is missing belongs to one."""
    package = (error.name or "").partition(".")[0]
    return MissingExtraError(feature, package, EXTRAS[package]) if package in EXTRAS else None


class StoppedError(BidrError):
    """The user or the system requested a stop; finished work is kept."""


def to_short_json(value: Any, max_chars: int = MAX_VALUE_CHARS) -> str:
    """Return a value as JSON, truncated, for error messages."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (RecursionError, ValueError, TypeError):  # nested too deeply, circular, or with keys that JSON lacks
        text = "a value that JSON cannot represent, or nested too deeply"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= max_chars else text[: max_chars - 3] + "..."


_RENAMED = {
    "Explained": "DetailedError",
    "MissingExtra": "MissingExtraError",
    "OutOfTime": "SearchTimeoutError",
    "Stopped": "StoppedError",
}


def __getattr__(name: str) -> Any:
    if name not in _RENAMED:
        raise AttributeError(f"module 'bidr.errors' has no attribute {name!r}")
    message = f"bidr.errors.{name} is now {_RENAMED[name]}; the old name goes in version 0.3"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return globals()[_RENAMED[name]]
