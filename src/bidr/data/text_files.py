"""Text files, plain or compressed, read line by line in memory that does not grow with the file."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bidr.data.compressed_file import DAMAGE, open_compressed
from bidr.errors import DataError

COMPRESSIONS = (".gz", ".xz", ".zst")
MAX_LINE_BYTES = 64 << 20
"""A longer line is refused: it must be in memory whole, and a small compressed file can hold one of any length."""
_BYTE_ORDER_MARK = "\ufeff"


def find(folder: Path, name: str) -> Path | None:
    """The file `name` in a folder, plain or with .gz, .xz or .zst after it; None when there is none."""
    for suffix in ("", *COMPRESSIONS):
        path = folder / (name + suffix)
        if path.is_file():
            return path
    return None


def plain_name(path: Path) -> str:
    """The name of a file without the suffix of its compression."""
    return path.name.removesuffix(path.suffix) if path.suffix in COMPRESSIONS else path.name


def variants(name: str) -> str:
    """How an error message names a file that may be compressed."""
    return f"{name}[.gz|.xz|.zst]"


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file with their numbers from 1, without line ends; blank lines are left out.

    Raises DataError, naming the file and the line, when the file is missing, damaged or not UTF-8, or a line is longer
    than MAX_LINE_BYTES.
    """
    number = 0
    try:
        with open_compressed(path) as file:
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
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} line {number}: byte {error.object[error.start]:#04x} is not UTF-8; convert the file to UTF-8"
        ) from error
    except DAMAGE as error:
        raise DataError(
            f"{path} is truncated or damaged after line {number} ({error}); copy or download it again"
        ) from error
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; check the path") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}; check the file and its rights") from error
