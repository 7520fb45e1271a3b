"""Reproducible matrix products: the result for a row depends on that row alone.

The summation order of BLAS depends on the number of rows, the place of a row among them and the number of threads, so
its results differ in the last bits from batch to batch. Results that are stored must not, because a resumed build
continues with other batches. Here every element is the sum over one row and one column, term by term.

The inner loop holds a tile of the result in registers, as BLAS does (Goto and van de Geijn, "Anatomy of
High-Performance Matrix Multiplication", 2008), and takes as long.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

from bidr.utils.cpu_and_heap import count_available_cpus
from bidr.utils.jit import njit_cached
from bidr.utils.prefetch import map_in_order

Floats = npt.NDArray[np.float32]

FLOAT, WORD, LONG = ir.FloatType(), ir.IntType(32), ir.IntType(64)
FLOAT_BYTES = 4


def _has_avx512() -> bool:
    """Tell whether numba compiles for a CPU with 512-bit vectors."""
    if config.CPU_NAME or config.CPU_FEATURES is not None:
        return "+avx512f" in (config.CPU_FEATURES or "")
    return bool(get_host_cpu_features().get("avx512f"))


# A tile of 6 rows and 2 vectors fills the AVX2 registers except those of the factors.
LANES, VECTORS, TILE_ROWS = 16 if _has_avx512() else 8, 2, 6
WIDTH = LANES * VECTORS
# Rows multiplied with all panels in turn; they stay in the L2 cache.
CACHED_ROWS = 96
# Rows per task of a thread.
TASK_ROWS = 1_536


def _make_tile_kernel(rows: int) -> Any:
    """Make an intrinsic that multiplies `rows` rows with a panel."""

    @intrinsic  # type: ignore[untyped-decorator]
    def multiply_tile(context: Any, row: Any, row_bytes: Any, panel: Any, depth: Any, out: Any, out_bytes: Any) -> Any:
        """Write the products. All arguments are addresses, for rows and result with the stride in bytes."""

        def generate(_context: Any, builder: ir.IRBuilder, _signature: Any, arguments: Any) -> Any:
            _Tile(builder, rows).emit(*arguments)
            return ir.Constant(LONG, 0)

        return types.int64(*[types.intp] * 6), generate

    return multiply_tile


class _Tile:
    """Emit the instructions of a tile kernel: two vectors of sums per row, in registers."""

    def __init__(self, builder: ir.IRBuilder, rows: int) -> None:
        self.builder, self.kind = builder, ir.VectorType(FLOAT, LANES)
        zero = ir.Constant(self.kind, [0.0] * LANES)
        places = [(row, vector) for row in range(rows) for vector in range(VECTORS)]
        self.sums = {place: cgutils.alloca_once(builder, self.kind) for place in places}
        for sums in self.sums.values():
            builder.store(zero, sums)

    def emit(self, row: Any, row_bytes: Any, panel: Any, depth: Any, out: Any, out_bytes: Any) -> None:
        builder = self.builder
        rows = {number: self._get_pointer(row, row_bytes, number) for number, _ in self.sums}
        columns = self._get_pointer(panel, LONG(0), 0)
        with cgutils.for_range(builder, depth) as loop:
            line = builder.mul(loop.index, LONG(WIDTH))
            loaded = [self._load(builder.gep(columns, [builder.add(line, LONG(LANES * at))])) for at in range(VECTORS)]
            factors = {number: self._broadcast(builder.gep(start, [loop.index])) for number, start in rows.items()}
            for (number, vector), sums in self.sums.items():
                builder.store(self._multiply_add(factors[number], loaded[vector], builder.load(sums)), sums)
        for (number, vector), sums in self.sums.items():
            to = builder.gep(self._get_pointer(out, out_bytes, number), [LONG(LANES * vector)])
            builder.store(builder.load(sums), builder.bitcast(to, self.kind.as_pointer())).align = FLOAT_BYTES

    def _get_pointer(self, address: Any, step: Any, number: int) -> Any:
        builder = self.builder
        return builder.inttoptr(builder.add(address, builder.mul(step, LONG(number))), FLOAT.as_pointer())

    def _load(self, pointer: Any) -> Any:
        loaded = self.builder.load(self.builder.bitcast(pointer, self.kind.as_pointer()))
        loaded.align = FLOAT_BYTES
        return loaded

    def _broadcast(self, pointer: Any) -> Any:
        """Broadcast a number to all lanes."""
        builder = self.builder
        lane = builder.insert_element(ir.Constant(self.kind, ir.Undefined), builder.load(pointer), WORD(0))
        return builder.shuffle_vector(lane, lane, ir.Constant(ir.VectorType(WORD, LANES), [0] * LANES))

    def _multiply_add(self, factor: Any, column: Any, total: Any) -> Any:
        function = cgutils.get_or_insert_function(
            self.builder.module, ir.FunctionType(self.kind, [self.kind] * 3), f"llvm.fmuladd.v{LANES}f32"
        )
        return self.builder.call(function, [factor, column, total])


_multiply_tile, _multiply_row = _make_tile_kernel(TILE_ROWS), _make_tile_kernel(1)


class ColumnPanels:
    """A matrix (count, depth) whose rows are the columns of products, packed into panels."""

    def __init__(self, matrix: npt.ArrayLike) -> None:
        rows = np.asarray(matrix, dtype=np.float32)
        self.count, self.depth = rows.shape
        self.panels = pack_panels(rows[None])[0]

    @property
    def nbytes(self) -> int:
        return int(self.panels.nbytes)


def pack_panels(matrices: Floats) -> Floats:
    """Pack matrices (n, count, depth) into panels (n, panels, depth, WIDTH); zeros pad the last panel."""
    number, count, depth = matrices.shape
    filled = -(-count // WIDTH) * WIDTH
    padded = np.zeros((number, depth, filled), dtype=np.float32)
    padded[:, :, :count] = matrices.transpose(0, 2, 1)
    return np.ascontiguousarray(padded.reshape(number, depth, -1, WIDTH).transpose(0, 2, 1, 3))


def multiply(rows: npt.ArrayLike, columns: ColumnPanels, *, threads: int | None = None) -> Floats:
    """Compute rows @ columns.T, (n, count)."""
    matrix: Floats = np.ascontiguousarray(rows, dtype=np.float32)
    out = np.empty((len(matrix), columns.count), dtype=np.float32)
    if len(matrix) <= TASK_ROWS:  # for a single query threads would cost as much as the product
        multiply_rows(matrix, 0, columns.panels, out)
        return out

    def work(part: slice) -> None:
        multiply_rows(matrix[part], 0, columns.panels, out[part])

    run_in_parts(work, len(matrix), threads)
    return out


def matmul_transposed(rows: npt.ArrayLike, others: npt.ArrayLike) -> Floats:
    """Compute rows @ others.T, for a matrix that is used once."""
    return multiply(rows, ColumnPanels(others))


def run_in_parts(work: Callable[[slice], None], count: int, threads: int | None = None) -> None:
    """Call `work` with slices of up to TASK_ROWS that cover `count` rows, on several threads if there are many."""
    parts = [slice(start, start + TASK_ROWS) for start in range(0, count, TASK_ROWS)]
    threads = min(threads or count_available_cpus(), len(parts))
    for _ in map(work, parts) if threads < 2 else map_in_order(work, parts, threads):
        pass


@njit_cached()
def multiply_rows(rows: Any, first: int, panels: Any, out: Any) -> None:
    """Fill `out` (n, count) with products of rows (`depth` numbers from `first` on) and the columns in panels."""
    count, (wide, depth, width) = out.shape[1], panels.shape
    row_bytes, out_bytes, panel_bytes = rows.strides[0], out.strides[0], FLOAT_BYTES * depth * width
    base, edge = rows.ctypes.data + FLOAT_BYTES * first, np.empty((TILE_ROWS, width), dtype=np.float32)
    for start in range(0, len(rows), CACHED_ROWS):
        stop = min(start + CACHED_ROWS, len(rows))
        for panel in range(wide):
            source, at = panels.ctypes.data + panel * panel_bytes, panel * width
            filled = min(width, count - at)
            row = start
            while row < stop:
                source_row, tile = base + row * row_bytes, TILE_ROWS if row + TILE_ROWS <= stop else 1
                inside = filled == width
                to = out.ctypes.data + row * out_bytes + FLOAT_BYTES * at if inside else edge.ctypes.data
                step = out_bytes if inside else FLOAT_BYTES * width
                if tile == TILE_ROWS:
                    _multiply_tile(source_row, row_bytes, source, depth, to, step)
                else:
                    _multiply_row(source_row, row_bytes, source, depth, to, step)
                if not inside:
                    out[row : row + tile, at : at + filled] = edge[:tile, :filled]
                row += tile
