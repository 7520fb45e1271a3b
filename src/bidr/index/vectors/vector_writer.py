"""Write vector files: a stream of rows, and the checksum of every block in a second file."""

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
    """Stream batches of rows into NAME.npy, and block checksums into NAME.checks.npy.

    Args:
        create: Creates a file by its name.
        count: Total number of rows.
        kind: "fp16", or "int8" (a byte per dimension and a scale per row).
        written: Rows that both files contain already, a multiple of WRITE_ROWS (which end with a block).
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
        self._files = ExitStack()

    def __enter__(self) -> Self:
        shape = (self.count, self.dim) if self.kind == "fp16" else (self.count,)
        # The first row starts a block: rows whose size divides the block size never lie in two blocks.
        header = format_npy_header(self._dtype, shape, align=BLOCK)
        row_bytes = self._dtype.itemsize * (self.dim if self.kind == "fp16" else 1)
        block_count = -(-(len(header) + self.count * row_bytes) // BLOCK)
        with ExitStack() as stack:
            out = stack.enter_context(self._create(f"{self._name}.npy"))
            checksums = stack.enter_context(self._create(f"{self._name}{CHECKSUM_SUFFIX}"))
            self._out = _ChecksumWriter(out, checksums)
            if not self.written:
                write_npy_header(checksums, CHECKSUM_DTYPE, (block_count,))
                self._out.write(header)
            self._files = stack.pop_all()
        return self

    def write(self, block: npt.NDArray[Any]) -> None:
        """Append rows; raise DataError with the row for a value that cannot be stored."""
        if block.ndim != 2 or block.shape[1] != self.dim:
            raise DataError(f"vectors: given a block of shape {block.shape}, expected (rows, {self.dim})")
        if self.written + len(block) > self.count:
            raise DataError(f"vectors: given more than the expected {self.count:,} rows, one per code")
        values, largest = np.asarray(block, dtype=np.float32), MAX_VALUES[self.kind]
        bad = ~(np.abs(values) <= largest).all(axis=1)
        if bad.any():
            row = int(bad.argmax())
            value = values[row][~(np.abs(values[row]) <= largest)][0]
            raise DataError(
                f"vectors: row {self.written + row:,} holds {value}, expected finite numbers up to {largest:g} "
                f"in size ({self.kind}); scale or normalize the vectors"
            )
        self._out.write(encode_rows(self.kind, values).view(np.uint8).data.cast("B"))
        self.written += len(block)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Raise DataError where fewer rows were written than the header states."""
        with self._files:
            if error is None and self.written != self.count:
                raise DataError(f"vectors: given {self.written:,} rows, expected {self.count:,}, one per code")
            if error is None:
                self._out.finish()


class _ChecksumWriter:
    """Write to a file and compute the checksums of its blocks."""

    def __init__(self, out: BinaryWriter, checksums: BinaryWriter) -> None:
        self._out, self._checksums, self._rest = out, checksums, b""

    def write(self, content: bytes | memoryview) -> None:
        self._out.write(content)
        pending = self._rest + bytes(content)
        end = len(pending) // BLOCK * BLOCK
        self._sum_blocks(pending[:end])
        self._rest = pending[end:]

    def finish(self) -> None:
        self._sum_blocks(self._rest)

    def _sum_blocks(self, content: bytes) -> None:
        from bidr.index.vectors.page_cache_io import compute_checksums

        padded = np.frombuffer(content + bytes(-len(content) % BLOCK), dtype="<u8")
        sums = compute_checksums(padded, np.empty(0, dtype=np.uint8), make_checksum_keys())
        self._checksums.write(sums.astype(CHECKSUM_DTYPE).tobytes())


def iter_blocks(vectors: npt.NDArray[Any]) -> Iterable[npt.NDArray[Any]]:
    """Yield the rows of an array or memmap in batches of WRITE_ROWS."""
    for start in range(0, len(vectors), WRITE_ROWS):
        yield vectors[start : start + WRITE_ROWS]
