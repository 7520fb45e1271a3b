"""Line reader for plain and compressed text files with bounded memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bidr.data.compressed_file import DAMAGE_ERRORS, open_compressed
from bidr.data.remote_path import remote_errors
from bidr.errors import DataError

COMPRESSIONS = (".gz", ".xz", ".zst")
MAX_LINE_BYTES = 64 << 20
"""Longer lines are refused: a line is held in memory, and a small compressed file can expand to any length."""
_BYTE_ORDER_MARK = "\ufeff"


def find_file(folder: Path, name: str) -> Path | None:
    """Find `name` in a folder, plain or with the suffix .gz, .xz or .zst; None when it is missing."""
    for suffix in ("", *COMPRESSIONS):
        path = folder / (name + suffix)
        if path.is_file():
            return path
    return None


def strip_compression_suffix(path: Path) -> str:
    """Return the file name without .gz, .xz or .zst."""
    return path.name.removesuffix(path.suffix) if path.suffix in COMPRESSIONS else path.name


def format_file_variants(name: str) -> str:
    """Format the name of a possibly compressed file for error messages."""
    return f"{name}[.gz|.xz|.zst]"


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and text of the lines of a UTF-8 file, without line ends; blank lines are skipped.

    Raises:
        DataError: The file is missing, damaged or not UTF-8, or a line is longer than MAX_LINE_BYTES.
    """
    number = 0
    with file_errors(path, lambda: number), open_compressed(path) as file:
        for number, line in enumerate(iter(partial(file.readline, MAX_LINE_BYTES + 1), b""), start=1):
            if len(line) > MAX_LINE_BYTES:
                raise DataError(
                    f"{path} line {number}: longer than {MAX_LINE_BYTES:,} bytes, expected one record a line, none "
                    "longer than that; split it, or check that the file has line ends"
                )
            text = line.decode("utf-8").rstrip("\r\n")
            if number == 1:
                text = text.removeprefix(_BYTE_ORDER_MARK)
            if text and not text.isspace():
                yield number, text


@contextmanager
def file_errors(path: Path, get_line: Callable[[], int]) -> Iterator[None]:
    """Raise errors of reading a UTF-8 file as DataError. get_line: the number of the last line read."""
    try:
        with remote_errors(path):
            yield
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} line {get_line()}: byte {error.object[error.start]:#04x} is not UTF-8; convert the file to UTF-8"
        ) from error
    except DAMAGE_ERRORS as error:
        raise DataError(
            f"{path} is truncated or damaged after line {get_line()} ({error}); copy or download it again"
        ) from error
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; check the path") from error
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror or error}; check the file and its permissions"
        ) from error
