"""The pass over rows, compiled: gathered, decoded and multiplied at once, without an array of rows in between."""

import platform
from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic

from bidr.utils.jit import njit_cached

Array = npt.NDArray[Any]
Intrinsic = tuple[Any, Callable[..., Any]]

PREFETCH_ROWS = 8  # rows: far enough for memory to answer, near enough for the cache to hold them until then
CACHE_LINE = 64
FIRST_FAULT_CHECK, FAULT_CHECK_INTERVAL = 8, 64
RUSAGE_THREAD = 1
MAJOR_FAULTS = 9  # its place among the 8-byte fields of struct rusage
WORD, FLOAT = ir.IntType(32), ir.FloatType()

_getrusage = types.ExternalFunction("getrusage", types.int32(types.int32, types.intp))


def has_hardware_fp16() -> bool:
    """Whether this processor turns fp16 into float32 by itself; asked of it only if numba compiles for it."""
    if numba.config.CPU_NAME is not None:
        return False
    return platform.machine() in ("aarch64", "arm64") or bool(llvmlite.binding.get_host_cpu_features().get("f16c"))


def _extend_half(builder: Any, value: Any) -> Any:
    return builder.fpext(builder.bitcast(value, ir.HalfType()), FLOAT)


def _compute_half(builder: Any, value: Any) -> Any:
    """Exponent and fraction moved to their places and the bias put right by a product: exact for all finite halves."""
    wide = builder.zext(value, WORD)
    size = builder.shl(builder.and_(wide, WORD(0x7FFF)), WORD(13))
    number = builder.fmul(builder.bitcast(size, FLOAT), FLOAT(2.0**112))
    sign = builder.shl(builder.and_(wide, WORD(0x8000)), WORD(16))
    return builder.bitcast(builder.or_(builder.bitcast(number, WORD), sign), FLOAT)


def _make_decoder(hardware: bool) -> Any:
    def as_float(_: Any, stored: Any) -> Intrinsic:
        def write(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            if stored == types.int8:
                return builder.sitofp(given[0], FLOAT)
            return (_extend_half if hardware else _compute_half)(builder, given[0])

        return types.float32(stored), write

    return intrinsic(as_float)


as_float = _make_decoder(has_hardware_fp16())


def _prefetch(_: Any, array: Any, place: Any) -> Intrinsic:
    """Ask memory for the line of array[place] without waiting for it."""

    def write(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        data = context.make_array(array)(context, builder, given[0]).data
        anything = ir.IntType(8).as_pointer()
        hint = get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [anything, WORD, WORD, WORD]), "llvm.prefetch.p0"
        )
        builder.call(hint, [builder.bitcast(builder.gep(data, [given[1]]), anything), WORD(0), WORD(3), WORD(1)])
        return context.get_dummy_value()

    return types.void(array, place), write


prefetch = intrinsic(_prefetch)


def _read_scale(_: Any, array: Any, place: Any) -> Intrinsic:
    """The float32 that stands behind the values of an int8 row; 1 for fp16, where there is none."""

    def write(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        if array.dtype != types.int8:
            return FLOAT(1.0)
        data = context.make_array(array)(context, builder, given[0]).data
        at = builder.bitcast(builder.gep(data, [given[1]]), FLOAT.as_pointer())
        return builder.load(at, align=1)

    return types.float32(array, place), write


read_scale = intrinsic(_read_scale)


@njit_cached()
def count_major_faults(usage: Array) -> Any:
    """How often this thread has waited for the disk at a page that was not in memory."""
    _getrusage(RUSAGE_THREAD, usage.ctypes.data)
    return usage[MAJOR_FAULTS]


@njit_cached(reorder_sums=True)
def compute_inner_product(stored: Array, start: Any, query: Array) -> Any:
    """Inner product of the row from `start` on with a query: the same sum in the same order for every row."""
    total = np.float32(0)
    for place in range(len(query)):
        total += as_float(stored[start + np.uint64(place)]) * query[place]
    return total * read_scale(stored, start + np.uint64(len(query)))


@njit_cached()
def score_rows(stored: Array, stride: int, rows: Array, query: Array, scores: Array, done: int, watch: bool) -> int:
    """Fill scores[done:]; a row of -1 scores -inf. Returns how many are filled.

    With `watch` it stops early once it had to wait for the disk, so that the caller can ask for all the rest at once.
    """
    step, count, each = np.uint64(stride), len(rows), CACHE_LINE // stored.itemsize
    usage = np.zeros(32, dtype=np.int64)
    before = count_major_faults(usage) if watch else 0
    until = done + FIRST_FAULT_CHECK
    for number in range(done, count):
        if number + PREFETCH_ROWS < count and rows[number + PREFETCH_ROWS] >= 0:
            start = np.uint64(rows[number + PREFETCH_ROWS]) * step
            for place in range(0, stride, each):
                prefetch(stored, start + np.uint64(place))
        row = rows[number]
        scores[number] = compute_inner_product(stored, np.uint64(row) * step, query) if row >= 0 else -np.inf
        if watch and number == until:
            if count_major_faults(usage) > before:
                return number + 1
            until += FAULT_CHECK_INTERVAL
    return count


@njit_cached()
def decode_rows(stored: Array, stride: int, rows: Array, vectors: Array) -> None:
    """Rows as float32; of a row of -1 nothing is touched."""
    dim = vectors.shape[1]
    for number in range(len(rows)):
        if rows[number] < 0:
            continue
        start = np.uint64(rows[number]) * np.uint64(stride)
        scale = read_scale(stored, start + np.uint64(dim))
        for place in range(dim):
            vectors[number, place] = as_float(stored[start + np.uint64(place)]) * scale
