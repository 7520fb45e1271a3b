"""The errors a user can cause: one line each, saying what is wrong, what was given and expected, what to do."""

import json
from typing import Any

LONGEST = 80
REBUILD = "restore the folder from a copy, save what is whole (bidr repair INDEX --out NEW), or build the index again"


class BidrError(Exception):
    """Base of every error that is shown to a person as one line, with exit code 2."""


class DataError(BidrError):
    """Input text, queries, judgements or vectors are missing or malformed."""


class ConfigError(BidrError):
    """An option has a value that cannot work."""


class ModelError(BidrError):
    """A model folder is missing, incomplete, or not the one that is needed."""


class IndexFolderError(BidrError):
    """An index folder is missing, damaged, or made by another model."""


class StorageError(BidrError):
    """The disk refused: full, read-only, or failing."""


class ForkError(BidrError):
    """A writer was used in a forked child of the process that opened it."""


class OutOfTime(BidrError):
    """A search had to end by a certain time, and did not."""


class Explained(BidrError):
    """An error whose parts are known apart, for those who pass them on in another form than a line."""

    def __init__(self, what: str, *, given: str, expected: str, hint: str) -> None:
        super().__init__(f"{what}: given {given}, expected {expected}; {hint}")
        self.what, self.given, self.expected, self.hint = what, given, expected, hint


class FilterError(Explained, ConfigError):
    """A filter that cannot be meant."""


class AttributesError(Explained, DataError):
    """Attributes of a document that cannot be stored."""


class MissingExtra(BidrError):
    """A feature needs a package that is not installed."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        super().__init__(f"{feature} needs the package {package!r}; install it with: pip install 'bidr[{extra}]'")


class Stopped(BidrError):
    """The user or the system asked to stop; the work done so far is kept."""


def written(value: Any, longest: int = LONGEST) -> str:
    """A value as JSON writes it, cut where it is long: for errors about what came, or could have come, as JSON."""
    try:
        shown = json.dumps(value, ensure_ascii=False, default=str)
    except (RecursionError, ValueError, TypeError):  # nested too deep, in itself, or by keys that JSON has not
        shown = "a value that JSON cannot show, or nested too deep"
    shown = shown.encode("utf-8", "backslashreplace").decode()
    return shown if len(shown) <= longest else shown[: longest - 3] + "..."
