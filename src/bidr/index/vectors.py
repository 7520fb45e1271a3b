"""Vectors on disk: a plain fp16 .npy file, written in one stream, read many random rows at a time."""

import math
import mmap
import os
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from bidr.codes.codebooks import Floats
from bidr.errors import DataError, IndexFolderError
from bidr.index.candidates import Rows
from bidr.index.folder import REBUILD

Halves = npt.NDArray[np.float16]

WRITE_ROWS = 8_192
HEADER_BYTES = 256
NPY_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(?P<descr>[<>|]\w+)', "
    rb"'fortran_order': False, 'shape': \((?P<shape>[\d, ]+)\), \} *\n",
    re.DOTALL,
)
HALF_MAX = 65_504.0


class Out(Protocol):
    """A file that is being written."""

    def write(self, content: bytes | memoryview) -> int: ...


class VectorWriter:
    """Streams blocks of rows into an .npy file of a count known beforehand."""

    def __init__(self, out: Out, count: int, dim: int) -> None:
        self.out, self.count, self.dim, self.written = out, count, dim, 0
        write_npy_header(out, np.dtype("<f2"), (count, dim))

    def write(self, block: npt.NDArray[Any]) -> None:
        """Append rows; a value that fp16 cannot hold is refused, its row named."""
        if block.ndim != 2 or block.shape[1] != self.dim:
            raise DataError(f"vectors: a block of shape {block.shape} given, expected (rows, {self.dim})")
        if self.written + len(block) > self.count:
            raise DataError(f"vectors: more than the {self.count:,} rows announced; count codes and vectors again")
        values = np.asarray(block, dtype=np.float32)
        bad = ~(np.abs(values) <= HALF_MAX).all(axis=1)
        if bad.any():
            row = int(bad.argmax())
            value = values[row][~(np.abs(values[row]) <= HALF_MAX)][0]
            raise DataError(
                f"vectors: row {self.written + row:,} holds {value}, expected finite numbers up to {HALF_MAX:,.0f} "
                "in size (fp16); scale or normalise the vectors"
            )
        self.out.write(np.ascontiguousarray(values, dtype="<f2").data.cast("B"))
        self.written += len(block)

    def finish(self) -> None:
        """Refuse a file that holds fewer rows than its header says."""
        if self.written != self.count:
            raise DataError(f"vectors: {self.written:,} rows given, expected {self.count:,}, one for every code")


class VectorFile:
    """Vectors that stay on disk: only the rows that are asked for are read."""

    def __init__(self, path: Path, count: int, dim: int, start: int) -> None:
        self.path, self.count, self.dim = path, count, dim
        self._start, self._row_bytes = start, 2 * dim
        with path.open("rb") as opened:
            self._handle = os.dup(opened.fileno())
        self._map = mmap.mmap(self._handle, 0, prot=mmap.PROT_READ)
        # Without this every fault reads a large piece around the row: 1,000 cold rows take 2,000 ms instead of 60.
        self._map.madvise(mmap.MADV_RANDOM)
        size = count * dim
        self._rows = np.frombuffer(self._map, dtype="<u2", count=size, offset=start).reshape(count, dim)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open an .npy file of fp16 rows."""
        shape, start = read_npy_header(path, np.dtype("<f2"), dimensions=2)
        return cls(path, shape[0], shape[1], start)

    def prefetch(self, rows: Rows) -> None:
        """Ask the system for rows without waiting, so that many reads are in flight before the first is needed."""
        advise, size = os.posix_fadvise, self._row_bytes
        for offset in (rows * size + self._start).tolist():
            advise(self._handle, offset, size, os.POSIX_FADV_WILLNEED)

    def read_halves(self, rows: Rows, *, prefetched: bool = False) -> Halves:
        """Rows as stored, in the order asked for: (rows, dim) fp16."""
        order = np.argsort(rows)
        ordered = rows[order]
        if len(rows) and (ordered[0] < 0 or ordered[-1] >= self.count):
            raise DataError(f"rows {ordered[0]} to {ordered[-1]} asked for, expected 0 to {self.count - 1}")
        if not prefetched:
            self.prefetch(ordered)
        halves = np.empty((len(rows), self.dim), dtype="<u2")
        halves[order] = np.take(self._rows, ordered, axis=0)
        return halves.view("<f2")

    def read(self, rows: Rows) -> Floats:
        """Rows as float32, in the order asked for: (rows, dim)."""
        return to_floats(self.read_halves(rows))

    def score(self, rows: Rows, query: Floats) -> Floats:
        """Inner product of a query with each of the rows."""
        return inner_products(self.read(rows), query)

    def close(self) -> None:
        """Give file and address space back; the object is of no use afterwards."""
        if self._handle >= 0:
            self._rows = np.empty((0, self.dim), dtype="<u2")
            self._map.close()
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def to_floats(halves: Halves) -> Floats:
    """fp16 to float32 through a table of all 65,536 values: twice as fast as the cast of numpy."""
    return np.take(_half_values(), halves.view("<u2"))


def inner_products(vectors: Floats, query: Floats) -> Floats:
    """One number a row that depends on that row and the query alone, so equal vectors tie wherever they are.

    A matrix product would sum in another order at the edges of its blocks.
    """
    scores: Floats = np.vecdot(vectors, np.ascontiguousarray(query, dtype=np.float32))
    return scores


def blocks(vectors: npt.NDArray[Any]) -> Iterable[npt.NDArray[Any]]:
    """Rows of an array or memmap, some at a time."""
    for start in range(0, len(vectors), WRITE_ROWS):
        yield vectors[start : start + WRITE_ROWS]


def write_npy_header(out: Out, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """The head of an .npy file of known shape, for rows that follow in a stream."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, header)


def read_npy_header(path: Path, dtype: np.dtype[Any], dimensions: int) -> tuple[tuple[int, ...], int]:
    """Shape of an .npy file and where its content starts, with type, order and size checked.

    Not by numpy: its parser evaluates the header as Python and fails on a damaged one in many ways.
    """
    try:
        with path.open("rb") as opened:
            head, size = opened.read(HEADER_BYTES), os.fstat(opened.fileno()).st_size
    except OSError as error:
        raise IndexFolderError(f"{path}: cannot be read ({error.strerror}); {REBUILD}") from error
    match = NPY_HEADER.match(head)
    if match is None or match["descr"].decode() != dtype.str:
        raise IndexFolderError(f"{path}: not an .npy file of {dtype} in rows, it begins with {head[:70]!r}; {REBUILD}")
    shape = tuple(int(number) for number in match["shape"].split(b",") if number.strip())
    expected = match.end() + math.prod(shape) * dtype.itemsize
    if len(shape) != dimensions or 0 in shape or size != expected:
        raise IndexFolderError(f"{path}: {size:,} bytes for the shape {shape}, expected {expected:,}; {REBUILD}")
    return shape, match.end()


@cache
def _half_values() -> Floats:
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
