"""Readers of .gz, .xz and .zst files with memory bounded by the window size, also for malicious files.

Truncated files and trailing garbage are errors; concatenated streams are one file, as for `gzip`, `xz` and `zstd`.
"""

import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from bidr.data.remote_path import is_remote
from bidr.errors import DataError, MissingExtraError

MAX_WINDOW_BYTES = 128 << 20
"""Maximum decompression window: the limit of `zstd` without --long; `xz -9` needs half of it."""
CHUNK_BYTES = 1 << 17
DAMAGE_ERRORS = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)
"""Exceptions for truncated or damaged files."""

_ZSTD_FRAME = 0xFD2FB528
_ZSTD_SKIPPABLE_FRAMES = range(0x184D2A50, 0x184D2A60)
_ZSTD_MAX_BLOCK = 1 << 17
_ZSTD_RLE = 1
_XZ_PADDING = 4


def open_compressed(path: Path) -> IO[bytes]:
    """Open a file for reading, decompressing it according to its suffix."""
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path.open("rb") if is_remote(path) else path, "rb"))
    if path.suffix == ".xz":
        return _buffer(_XzFile(path.open("rb"), path))
    if path.suffix == ".zst":
        try:
            import zstandard
        except ImportError as error:
            raise MissingExtraError(f"reading {path.name}", "zstandard", extra="data") from error
        return _buffer(_ZstdFile(path.open("rb"), path, zstandard))
    return path.open("rb") if is_remote(path) else path.open("rb", buffering=CHUNK_BYTES)


def _buffer(raw: io.RawIOBase) -> IO[bytes]:
    return cast(IO[bytes], io.BufferedReader(raw, CHUNK_BYTES))


def _make_window_error(path: Path, command: str) -> DataError:
    return DataError(
        f"{path}: needs a window above {MAX_WINDOW_BYTES:,} bytes to be decompressed, which is the limit; "
        f"compress it again: {command}"
    )


class _DecompressedFile(io.RawIOBase):
    """Decompressed bytes of a file, produced in pieces of bounded size."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._pieces = self._iter_pieces()
        self._piece = memoryview(b"")

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while not self._piece:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._piece = memoryview(piece)
        count = min(len(buffer), len(self._piece))
        buffer[:count] = self._piece[:count]
        self._piece = self._piece[count:]
        return count

    def _iter_pieces(self) -> Iterator[bytes]:
        raise NotImplementedError


class _XzFile(_DecompressedFile):
    """An .xz file. lzma.LZMAFile silently ignores trailing garbage."""

    def _iter_pieces(self) -> Iterator[bytes]:
        format, content = lzma.FORMAT_AUTO, self._file.read(CHUNK_BYTES)
        while content:
            stream = lzma.LZMADecompressor(format, memlimit=MAX_WINDOW_BYTES + CHUNK_BYTES)
            while not stream.eof:
                if stream.needs_input and not content:
                    raise EOFError("the last stream is incomplete")
                yield self._decompress(stream, content, format == lzma.FORMAT_XZ)
                content = self._file.read(CHUNK_BYTES) if stream.needs_input and not stream.eof else b""
            format, content = lzma.FORMAT_XZ, self._skip_padding(stream.unused_data)

    def _decompress(self, stream: lzma.LZMADecompressor, content: bytes, is_later: bool) -> bytes:
        try:
            return stream.decompress(content, CHUNK_BYTES)
        except lzma.LZMAError as error:
            if "Memory usage limit" in str(error):
                raise _make_window_error(self._path, f"xz -dc {self._path.name} | xz -9 > NEW.xz") from error
            if is_later and "format not supported" in str(error):
                raise self._make_trailing_error() from error
            raise

    def _make_trailing_error(self) -> EOFError:
        command = f"xz -dc --single-stream {self._path.name} | xz > NEW.xz"
        return EOFError(f"the bytes after its end are not an .xz stream; to cut them off: {command}")

    def _skip_padding(self, content: bytes) -> bytes:
        """Return the bytes after the stream padding (a multiple of four zero bytes), b"" at the end of the file."""
        padding = 0
        while True:
            content = content or self._file.read(CHUNK_BYTES)
            rest = content.lstrip(b"\0")
            padding += len(content) - len(rest)
            if rest or not content:
                if padding % _XZ_PADDING:
                    raise self._make_trailing_error()
                return rest
            content = b""


class _ZstdFile(_DecompressedFile):
    """A .zst file, decompressed block by block.

    The reader of `zstandard` does not detect truncation, and its decompressor returns the whole output of its input at
    once: up to 4 GiB for 128 KiB. One block expands to at most 128 KiB.
    """

    def __init__(self, file: BinaryIO, path: Path, package: Any) -> None:
        super().__init__(file, path)
        self._package = package

    def _iter_pieces(self) -> Iterator[bytes]:
        while start := self._file.read(4):
            magic = int.from_bytes(start, "little")
            if len(start) == 4 and magic in _ZSTD_SKIPPABLE_FRAMES:
                self._skip(int.from_bytes(self._read(4), "little"))
            elif len(start) == 4 and magic == _ZSTD_FRAME:
                yield from self._iter_frame(start)
            else:
                raise EOFError("bytes that are not a zstd frame")

    def _iter_frame(self, magic: bytes) -> Iterator[bytes]:
        """Yield the decompressed blocks of one frame (RFC 8878, section 3.1.1)."""
        frame = self._package.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj()
        descriptor = self._read(1)
        flags = descriptor[0]
        single_segment, has_checksum = bool(flags & 0x20), bool(flags & 0x04)
        dictionary_bytes = (0, 1, 2, 4)[flags & 0x03]
        content_size_bytes = (1 if single_segment else 0, 2, 4, 8)[flags >> 6]
        header = self._read((0 if single_segment else 1) + dictionary_bytes + content_size_bytes)
        yield self._decompress(frame, magic + descriptor + header)
        last = False
        while not last:
            block = self._read(3)
            header_bits = int.from_bytes(block, "little")
            last, kind, size = bool(header_bits & 1), header_bits >> 1 & 3, header_bits >> 3
            if kind != _ZSTD_RLE and size > _ZSTD_MAX_BLOCK:
                raise EOFError("a block exceeds the maximum block size")
            block += self._read(1 if kind == _ZSTD_RLE else size)
            if last and has_checksum:
                block += self._read(4)
            yield self._decompress(frame, block)
        if not frame.eof:
            raise EOFError("the last frame is incomplete")

    def _decompress(self, frame: Any, content: bytes) -> bytes:
        try:
            return bytes(frame.decompress(content))
        except self._package.ZstdError as error:
            if "too much memory" in str(error):
                command = f"zstd -dc --long=31 {self._path.name} | zstd > NEW.zst"
                raise _make_window_error(self._path, command) from error
            raise EOFError(str(error)) from error

    def _read(self, size: int) -> bytes:
        content = self._file.read(size)
        if len(content) < size:
            raise EOFError("the last frame is incomplete")
        return content

    def _skip(self, size: int) -> None:
        while size:
            size -= len(self._read(min(size, CHUNK_BYTES)))
