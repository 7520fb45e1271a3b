"""Writing vectors: one stream of rows, and beside it the checksum of every block."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from bidr.errors import DataError
from bidr.index.vectors.npy_header import BLOCK, BinaryWriter, format_npy_header, write_npy_header
from bidr.index.vectors.row_layout import (
    CHECKSUM_DTYPE,
    CHECKSUM_SUFFIX,
    MAX_VALUES,
    StorageKind,
    encode_rows,
    get_row_dtype,
    make_checksum_keys,
)

WRITE_ROWS = 8_192
FileCreator = Callable[[str], AbstractContextManager[BinaryWriter]]


class VectorWriter:
    """Streams blocks of rows into NAME.npy of a count known beforehand, and their checksums into NAME.checks.npy.

    create: opens a new file by its name.
    kind:   "fp16", or "int8": a byte a dimension and a scale a row.
    written: rows that both files hold already, a multiple of WRITE_ROWS (which end with a block): the rest follows.
    """

    def __init__(
        self,
        create: FileCreator,
        count: int,
        dim: int,
        kind: StorageKind = "fp16",
        name: str = "vectors",
        *,
        written: int = 0,
    ) -> None:
        self.count, self.dim, self.kind, self.written = count, dim, kind, written
        self._create, self._name, self._dtype = create, name, get_row_dtype(kind, dim)
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        shape = (self.count, self.dim) if self.kind == "fp16" else (self.count,)
        # Rows begin with a block: those whose size divides it never lie in two.
        header = format_npy_header(self._dtype, shape, align=BLOCK)
        row_bytes = self._dtype.itemsize * (self.dim if self.kind == "fp16" else 1)
        blocks = -(-(len(header) + self.count * row_bytes) // BLOCK)
        with ExitStack() as opened:
            out = opened.enter_context(self._create(f"{self._name}.npy"))
            checks = opened.enter_context(self._create(f"{self._name}{CHECKSUM_SUFFIX}"))
            self._out = _ChecksumWriter(out, checks)
            if not self.written:
                write_npy_header(checks, CHECKSUM_DTYPE, (blocks,))
                self._out.write(header)
            self._opened = opened.pop_all()
        return self

    def write(self, block: npt.NDArray[Any]) -> None:
        """Append rows; a value that cannot be held is refused, its row named."""
        if block.ndim != 2 or block.shape[1] != self.dim:
            raise DataError(f"vectors: a block of shape {block.shape} given, expected (rows, {self.dim})")
        if self.written + len(block) > self.count:
            raise DataError(f"vectors: more than the {self.count:,} rows announced; count codes and vectors again")
        values, largest = np.asarray(block, dtype=np.float32), MAX_VALUES[self.kind]
        bad = ~(np.abs(values) <= largest).all(axis=1)
        if bad.any():
            row = int(bad.argmax())
            value = values[row][~(np.abs(values[row]) <= largest)][0]
            raise DataError(
                f"vectors: row {self.written + row:,} holds {value}, expected finite numbers up to {largest:g} "
                f"in size ({self.kind}); scale or normalise the vectors"
            )
        self._out.write(encode_rows(self.kind, values).view(np.uint8).data.cast("B"))
        self.written += len(block)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Refuses a file that holds fewer rows than its header says."""
        with self._opened:
            if error is None and self.written != self.count:
                raise DataError(f"vectors: {self.written:,} rows given, expected {self.count:,}, one for every code")
            if error is None:
                self._out.finish()


class _ChecksumWriter:
    """A file whose blocks are summed on their way."""

    def __init__(self, out: BinaryWriter, checks: BinaryWriter) -> None:
        self._out, self._checks, self._rest = out, checks, b""

    def write(self, content: bytes | memoryview) -> None:
        self._out.write(content)
        whole = self._rest + bytes(content)
        end = len(whole) // BLOCK * BLOCK
        self._sum(whole[:end])
        self._rest = whole[end:]

    def finish(self) -> None:
        self._sum(self._rest)

    def _sum(self, content: bytes) -> None:
        from bidr.index.vectors.page_cache_io import compute_checksums

        filled = np.frombuffer(content + bytes(-len(content) % BLOCK), dtype="<u8")
        found = compute_checksums(filled, np.empty(0, dtype=np.uint8), make_checksum_keys())
        self._checks.write(found.astype(CHECKSUM_DTYPE).tobytes())


def iter_blocks(vectors: npt.NDArray[Any]) -> Iterable[npt.NDArray[Any]]:
    """Rows of an array or memmap, some at a time."""
    for start in range(0, len(vectors), WRITE_ROWS):
        yield vectors[start : start + WRITE_ROWS]
