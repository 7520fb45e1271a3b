"""Addresses of data: local paths, globs, and fsspec addresses such as s3://bucket/folder."""

import glob
import lzma
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from bidr.errors import BidrError, DataError, MissingExtraError

_SCHEME = re.compile(r"^([a-z][a-z0-9+.-]*)(::|://)", re.IGNORECASE)
_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "hf": "huggingface_hub",
}


def is_address(source: object) -> bool:
    """Return whether a source is an fsspec address, "scheme://..."."""
    return isinstance(source, str) and _SCHEME.match(source) is not None


def is_remote(path: object) -> bool:
    """Return whether a path is not on a local disk."""
    return not isinstance(path, Path)


def open_path(source: str | Path) -> Path:
    """Return a local path, or a universal_pathlib path of an fsspec address, which has the methods of Path.

    Raises:
        MissingExtraError: universal_pathlib is not installed.
        DataError: The file system of the address is unknown, or its package is not installed.
    """
    if not isinstance(source, str) or not is_address(source):
        return Path(source)
    if source.startswith("file://"):
        return Path(source.removeprefix("file://"))
    try:
        from upath import UPath
    except ImportError as error:
        raise MissingExtraError(f"reading {source}", "universal_pathlib", extra="remote") from error
    scheme = source.partition(":")[0].lower()
    try:
        path = UPath(source)
        path.fs  # noqa: B018 - imports the package of the file system
    except ImportError as error:
        package = _PACKAGES.get(scheme)
        hint = f"install it with: pip install {package}" if package else "install the package it names"
        raise DataError(f"{source}: the file system {scheme!r} needs another package ({error}); {hint}") from error
    except ValueError as error:
        raise DataError(
            f"{source}: {scheme!r} is not a file system that fsspec knows ({error}); expected s3://, gs://, https://, "
            "or a local path"
        ) from error
    return cast(Path, path)


@contextmanager
def remote_errors(path: object) -> Iterator[None]:
    """Raise errors of a remote file system, whose types are those of its package, as DataError."""
    if not is_remote(path):
        yield
        return
    try:
        yield
    except (BidrError, OSError, ValueError, EOFError, zlib.error, lzma.LZMAError):  # handled as for local files
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{path} cannot be read ({type(error).__name__}: {reason}); check the address, the connection and the "
            "credentials"
        ) from error


def describe_file_state(path: Path) -> str:
    """Describe name, size and time of change of a file, for fingerprints."""
    if not is_remote(path):
        state = path.stat()
        return f"{path.name} {state.st_size} {state.st_mtime_ns}"
    remote: Any = path
    with remote_errors(path):
        return f"{path} {remote.fs.info(remote.path).get('size')} {remote.fs.ukey(remote.path)}"


def is_glob(source: object) -> bool:
    """Return whether a local path is a pattern, and not the name of a file that exists."""
    if not isinstance(source, str | Path) or is_address(source):
        return False
    return glob.has_magic(str(source)) and not Path(source).exists()


def list_glob(pattern: str | Path) -> list[Path]:
    """List the files that match a pattern, in order of their names; "**" matches folders of any depth."""
    paths = [Path(name) for name in glob.glob(str(pattern), recursive=True)]
    files = sorted(path for path in paths if path.is_file())
    if not files:
        raise DataError(f"{pattern}: no file matches; check the folder and the pattern")
    return files


def get_glob_root(pattern: str | Path) -> Path:
    """Return the folder above the first part of a pattern that is not a plain name."""
    parts = Path(pattern).parts
    plain = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    return Path(*parts[:plain])
