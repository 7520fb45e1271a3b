"""Text files, plain or compressed, read line by line in memory that does not grow with the file."""

import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from bidr.errors import DataError, MissingExtra

COMPRESSIONS = (".gz", ".xz", ".zst")
_DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)
_CHUNK = 1 << 17
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


class _ZstdFile(io.RawIOBase):
    """A Zstandard file that, unlike the package's own reader, fails when it ends in the middle of a frame."""

    def __init__(self, file: BinaryIO, package: Any) -> None:
        self._file, self._package = file, package
        self._frame: Any = None
        self._ready = b""

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            chunk = self._file.read(_CHUNK)
            if not chunk:
                if self._frame is not None:
                    raise EOFError("the last frame is incomplete")
                return 0
            self._ready = self._decompress(chunk)
        taken = self._ready[: len(buffer)]
        self._ready = self._ready[len(taken) :]
        buffer[: len(taken)] = taken
        return len(taken)

    def _decompress(self, chunk: bytes) -> bytes:
        parts = []
        while chunk:
            if self._frame is None:
                # Archives made with --long need the larger window.
                self._frame = self._package.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
            try:
                parts.append(self._frame.decompress(chunk))
            except self._package.ZstdError as error:
                raise EOFError(str(error)) from error
            chunk = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = None
        return b"".join(parts)


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    if path.suffix == ".xz":
        return cast(IO[bytes], lzma.open(path, "rb"))
    if path.suffix == ".zst":
        try:
            import zstandard
        except ImportError as error:
            raise MissingExtra(f"reading {path.name}", "zstandard", extra="data") from error
        return io.BufferedReader(_ZstdFile(path.open("rb"), zstandard), _CHUNK)
    return path.open("rb", buffering=_CHUNK)


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file with their numbers from 1, without line ends; blank lines are left out.

    Raises DataError, naming the file and the line, when the file is missing, damaged or not UTF-8.
    """
    number = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(file, start=1):
                text = line.decode("utf-8").rstrip("\r\n")
                if number == 1:
                    text = text.removeprefix(_BYTE_ORDER_MARK)
                if text and not text.isspace():
                    yield number, text
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} line {number}: byte {error.object[error.start]:#04x} is not UTF-8; convert the file to UTF-8"
        ) from error
    except _DAMAGE as error:
        raise DataError(
            f"{path} is truncated or damaged after line {number} ({error}); copy or download it again"
        ) from error
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; check the path") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}; check the file and its rights") from error
