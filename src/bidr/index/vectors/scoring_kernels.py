"""Gather, decode and score rows in one pass, without an intermediate array."""

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

PREFETCH_ROWS = 8  # far enough for memory to answer, close enough for the cache to keep them
CACHE_LINE = 64
FIRST_FAULT_CHECK, FAULT_CHECK_INTERVAL = 8, 64
RUSAGE_THREAD = 1
MAJOR_FAULTS = 9  # index among the 8-byte fields of struct rusage
WORD, FLOAT = ir.IntType(32), ir.FloatType()

_getrusage = types.ExternalFunction("getrusage", types.int32(types.int32, types.intp))


def has_hardware_fp16() -> bool:
    """Tell whether the CPU converts fp16 to float32, and numba compiles for this CPU."""
    if numba.config.CPU_NAME is not None:
        return False
    return platform.machine() in ("aarch64", "arm64") or bool(llvmlite.binding.get_host_cpu_features().get("f16c"))


def _extend_half(builder: Any, value: Any) -> Any:
    return builder.fpext(builder.bitcast(value, ir.HalfType()), FLOAT)


def _compute_half(builder: Any, value: Any) -> Any:
    """Shift exponent and fraction into place and correct the bias by a multiplication: exact for all finite values."""
    wide = builder.zext(value, WORD)
    size = builder.shl(builder.and_(wide, WORD(0x7FFF)), WORD(13))
    number = builder.fmul(builder.bitcast(size, FLOAT), FLOAT(2.0**112))
    sign = builder.shl(builder.and_(wide, WORD(0x8000)), WORD(16))
    return builder.bitcast(builder.or_(builder.bitcast(number, WORD), sign), FLOAT)


def _make_decoder(hardware: bool) -> Any:
    def as_float(_: Any, stored: Any) -> Intrinsic:
        def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            if stored == types.int8:
                return builder.sitofp(arguments[0], FLOAT)
            return (_extend_half if hardware else _compute_half)(builder, arguments[0])

        return types.float32(stored), write

    return intrinsic(as_float)


as_float = _make_decoder(has_hardware_fp16())


def _prefetch(_: Any, array: Any, place: Any) -> Intrinsic:
    """Prefetch the cache line of array[place]."""

    def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(array)(context, builder, arguments[0]).data
        byte_pointer = ir.IntType(8).as_pointer()
        hint = get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [byte_pointer, WORD, WORD, WORD]), "llvm.prefetch.p0"
        )
        builder.call(
            hint, [builder.bitcast(builder.gep(data, [arguments[1]]), byte_pointer), WORD(0), WORD(3), WORD(1)]
        )
        return context.get_dummy_value()

    return types.void(array, place), write


prefetch = intrinsic(_prefetch)


def _read_scale(_: Any, array: Any, place: Any) -> Intrinsic:
    """Read the float32 scale that follows the values of an int8 row; 1 for fp16."""

    def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if array.dtype != types.int8:
            return FLOAT(1.0)
        data = context.make_array(array)(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), FLOAT.as_pointer())
        return builder.load(pointer, align=1)

    return types.float32(array, place), write


read_scale = intrinsic(_read_scale)


@njit_cached()
def count_major_faults(usage: Array) -> Any:
    """Count this thread's major page faults (getrusage)."""
    _getrusage(RUSAGE_THREAD, usage.ctypes.data)
    return usage[MAJOR_FAULTS]


@njit_cached(reorder_sums=True)
def compute_inner_product(stored: Array, start: Any, query: Array) -> Any:
    """Compute the inner product of a row and a query, summed in the same order for every row."""
    total = np.float32(0)
    for place in range(len(query)):
        total += as_float(stored[start + np.uint64(place)]) * query[place]
    return total * read_scale(stored, start + np.uint64(len(query)))


@njit_cached(reorder_sums=True)
def compute_negative_distance(stored: Array, start: Any, query: Array) -> Any:
    """Compute minus the squared Euclidean distance of a row and a query, summed in the same order for every row."""
    scale, total = read_scale(stored, start + np.uint64(len(query))), np.float32(0)
    for place in range(len(query)):
        difference = as_float(stored[start + np.uint64(place)]) * scale - query[place]
        total -= difference * difference
    return total


@njit_cached()
def score_row_at(stored: Array, start: Any, query: Array, by_distance: bool) -> Any:
    """Compute the score of the row that begins at `start`."""
    if by_distance:
        return compute_negative_distance(stored, start, query)
    return compute_inner_product(stored, start, query)


@njit_cached()
def score_rows(
    stored: Array,
    stride: int,
    rows: Array,
    query: Array,
    scores: Array,
    first: int,
    stop_on_fault: bool,
    by_distance: bool = False,
) -> int:
    """Fill scores[first:]; a row of -1 scores -inf. Returns how many scores are filled.

    With `stop_on_fault` it returns early after a major page fault, so that the caller requests all other rows at once.
    """
    step, count, values_per_line = np.uint64(stride), len(rows), CACHE_LINE // stored.itemsize
    usage = np.zeros(32, dtype=np.int64)
    initial_faults = count_major_faults(usage) if stop_on_fault else 0
    next_check = first + FIRST_FAULT_CHECK
    for number in range(first, count):
        if number + PREFETCH_ROWS < count and rows[number + PREFETCH_ROWS] >= 0:
            start = np.uint64(rows[number + PREFETCH_ROWS]) * step
            for place in range(0, stride, values_per_line):
                prefetch(stored, start + np.uint64(place))
        row = rows[number]
        scores[number] = score_row_at(stored, np.uint64(row) * step, query, by_distance) if row >= 0 else -np.inf
        if stop_on_fault and number == next_check:
            if count_major_faults(usage) > initial_faults:
                return number + 1
            next_check += FAULT_CHECK_INTERVAL
    return count


@njit_cached()
def decode_rows(stored: Array, stride: int, rows: Array, vectors: Array) -> None:
    """Decode rows to float32; a row of -1 is skipped."""
    dim = vectors.shape[1]
    for number in range(len(rows)):
        if rows[number] < 0:
            continue
        start = np.uint64(rows[number]) * np.uint64(stride)
        scale = read_scale(stored, start + np.uint64(dim))
        for place in range(dim):
            vectors[number, place] = as_float(stored[start + np.uint64(place)]) * scale
