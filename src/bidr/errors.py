"""The errors a user can cause: one line each, saying what is wrong, what was given and expected, what to do."""


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


class MissingExtra(BidrError):
    """A feature needs a package that is not installed."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        super().__init__(f"{feature} needs the package {package!r}; install it with: pip install 'bidr[{extra}]'")


class Stopped(BidrError):
    """The user or the system asked to stop; the work done so far is kept."""
