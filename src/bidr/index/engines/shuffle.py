"""Scanning 4-bit codes 32 documents at a time: a table of 16 entries is looked up by one shuffle of bytes.

Where the processor has no AVX2 the same function is made of plain lookups. Which of the two is compiled depends on the
type of `shuffle`: a number for the shuffle, None for lookups.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import config, types
from numba.core import cgutils
from numba.cpython.unsafe.numbers import trailing_zeros
from numba.extending import intrinsic

from bidr.index.engines.compiled import compiled
from bidr.index.engines.keep import LAST_ROW, ROW_BITS, keep_from, with_room

BLOCK = 32
# Sums of so many books fit a byte before they are widened to 16 bits.
BYTE_SUMS = 4
PAIR_BYTES = 32
# A sample of the blocks tells which sums are worth keeping. Documents stand by cluster, so that good ones come many in
# a block: the number of them in a sample varies more than chance alone would have it.
SAMPLE_EVERY, SAMPLE_DEVIATIONS = 16, 10

BYTE, SHORT, WORD, LONG = (ir.IntType(bits) for bits in (8, 16, 32, 64))
BYTES, SHORTS = ir.VectorType(BYTE, 32), ir.VectorType(SHORT, 16)


def shuffle_here() -> int | None:
    """1 where numba compiles for a processor with AVX2, None elsewhere."""
    features = config.CPU_FEATURES
    if config.CPU_NAME or features is not None:
        return 1 if "+avx2" in (features or "") else None
    return 1 if get_host_cpu_features().get("avx2") else None


@intrinsic  # type: ignore[untyped-decorator]
def _sum_block(context: Any, codes: Any, table: Any, pairs: Any, sums: Any, least: Any, shuffle: Any) -> Any:
    """Sum the table entries of a block's 32 documents into `sums`; a bit for each that reaches `least`.

    codes, table, sums: addresses. A pair of books takes 32 bytes of codes: 16 of the one book, 16 of the other, each
    with document j in the low and document j + 16 in the high half. The table has 16 entries a book in the same order.
    """
    signature = types.uint32(types.intp, types.intp, types.intp, types.intp, types.uint16, shuffle)
    native = not isinstance(shuffle, types.NoneType)

    def generate(_context: Any, builder: ir.IRBuilder, _signature: Any, given: Any) -> Any:
        return _SumBlock(builder, native).emit(*given[:5])

    return signature, generate


class _SumBlock:
    """The instructions of `_sum_block`."""

    def __init__(self, builder: ir.IRBuilder, native: bool) -> None:
        self.builder, self.native = builder, native

    def emit(self, codes: Any, table: Any, pairs: Any, sums: Any, least: Any) -> Any:
        builder = self.builder
        self.codes, self.table = (builder.inttoptr(address, BYTE.as_pointer()) for address in (codes, table))
        self.sums = [cgutils.alloca_once_value(builder, _all(SHORTS, 0)) for _ in range(4)]
        whole = builder.and_(pairs, ir.Constant(LONG, -BYTE_SUMS))
        for start, stop, step in ((ir.Constant(LONG, 0), whole, BYTE_SUMS), (whole, pairs, 1)):
            with cgutils.for_range_slice(builder, start, stop, ir.Constant(LONG, step)) as (pair, _):
                self._add_pairs(pair, step)
        halves = [self._documents(first) for first in (0, 2)]
        found = builder.shuffle_vector(*halves, _places(range(32)))
        address = builder.inttoptr(sums, found.type.as_pointer())
        builder.store(found, address).align = 1
        lane = builder.insert_element(ir.Constant(found.type, ir.Undefined), least, ir.Constant(WORD, 0))
        bound = builder.shuffle_vector(lane, lane, _places([0] * 32))
        return builder.bitcast(builder.icmp_unsigned(">=", found, bound), WORD)

    def _add_pairs(self, pair: Any, count: int) -> None:
        builder = self.builder
        low = high = None
        for number in range(count):
            at = builder.mul(builder.add(pair, ir.Constant(LONG, number)), ir.Constant(LONG, PAIR_BYTES))
            codes, table = self._load(self.codes, at), builder.gep(self.table, [at])
            upper = builder.bitcast(builder.lshr(builder.bitcast(codes, SHORTS), _all(SHORTS, 4)), BYTES)
            first, second = (self._look_up(table, builder.and_(half, _all(BYTES, 15))) for half in (codes, upper))
            low = first if low is None else builder.add(low, first)
            high = second if high is None else builder.add(high, second)
        for place, both in ((0, low), (2, high)):
            shorts = builder.bitcast(both, SHORTS)
            # Even bytes arrive with the odd ones above them, which `_documents` takes off again.
            for number, part in ((place, shorts), (place + 1, builder.lshr(shorts, _all(SHORTS, 8)))):
                builder.store(builder.add(builder.load(self.sums[number]), part), self.sums[number])

    def _load(self, base: Any, at: Any) -> Any:
        loaded = self.builder.load(self.builder.bitcast(self.builder.gep(base, [at]), BYTES.as_pointer()))
        loaded.align = 1
        return loaded

    def _look_up(self, table: Any, places: Any) -> Any:
        builder = self.builder
        if self.native:
            kind = ir.FunctionType(BYTES, [BYTES, BYTES])
            function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx2.pshuf.b")
            return builder.call(function, [self._load(table, ir.Constant(LONG, 0)), places])
        found = ir.Constant(BYTES, ir.Undefined)
        for lane in range(32):
            place = builder.zext(builder.extract_element(places, ir.Constant(WORD, lane)), LONG)
            if lane >= 16:
                place = builder.add(place, ir.Constant(LONG, 16))
            found = builder.insert_element(found, builder.load(builder.gep(table, [place])), ir.Constant(WORD, lane))
        return found

    def _documents(self, first: int) -> Any:
        """Sums of 16 documents in order: even and odd bytes woven, the two books of a pair added."""
        builder = self.builder
        mixed, odd = (builder.load(self.sums[number]) for number in (first, first + 1))
        even = builder.sub(mixed, builder.shl(odd, _all(SHORTS, 8)))
        parts = []
        for shorts in (even, odd):
            lower, upper = (builder.shuffle_vector(shorts, shorts, _places(range(at, at + 8))) for at in (0, 8))
            parts.append(builder.add(lower, upper))
        return builder.shuffle_vector(*parts, _places([place for pair in range(8) for place in (pair, pair + 8)]))


def _all(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * kind.count)


def _places(places: Any) -> Any:
    numbers = list(places)
    return ir.Constant(ir.VectorType(WORD, len(numbers)), numbers)


@compiled
def near_keys(blocks: Any, table: Any, starts: Any, stops: Any, allowed: Any, k: int, margin: int, shuffle: Any) -> Any:
    """Keys of rows in the given ranges whose sum is at most `margin` below the k-th largest: unsorted.

    blocks:  (blocks, pairs, 32) uint8; table: (pairs, 32) uint8.
    allowed: a bit a row, as uint32 words; empty: every row.
    """
    least = _first_guess(blocks, table, starts, stops, allowed, k, margin, shuffle)
    keys = _reaching(blocks, table, starts, stops, allowed, k, margin, least, shuffle)
    bound = kth_sum(keys, len(keys), k) - margin if len(keys) > k else 0
    if bound < least:  # the guess was too high
        keys = _reaching(blocks, table, starts, stops, allowed, k, margin, 0, shuffle)
        bound = kth_sum(keys, len(keys), k) - margin if len(keys) > k else 0
    return keys[: keep_from(keys, len(keys), _from_sum(bound))]


@compiled
def _first_guess(
    blocks: Any, table: Any, starts: Any, stops: Any, allowed: Any, k: int, margin: int, shuffle: Any
) -> int:
    """A sum that the k best are likely to reach and few others, from every so many blocks; 0: cannot tell."""
    total = 0
    for part in range(len(starts)):
        total += stops[part] - starts[part]
    if total < 4 * SAMPLE_EVERY * k // 3:
        return 0
    pairs = blocks.shape[1]
    size, base, entries = pairs * PAIR_BYTES, blocks.ctypes.data, table.ctypes.data
    sums = np.empty(BLOCK, dtype=np.uint16)
    keys, count, number = np.empty(total // SAMPLE_EVERY + (len(starts) + 2) * BLOCK, dtype=np.uint64), 0, 0
    for part in range(len(starts)):
        for block in range(starts[part] // BLOCK, (stops[part] + BLOCK - 1) // BLOCK):
            number += 1
            if number % SAMPLE_EVERY:
                continue
            wanted = _wanted(block, starts[part], stops[part], allowed)
            if wanted:
                _sum_block(base + block * size, entries, pairs, sums.ctypes.data, np.uint16(0), shuffle)
            while wanted:
                keys[count] = np.uint64(sums[trailing_zeros(wanted)]) << ROW_BITS
                wanted &= wanted - np.uint32(1)
                count += 1
    expected = k / SAMPLE_EVERY
    rank = int(expected + SAMPLE_DEVIATIONS * expected**0.5) + 1
    if rank > count:
        return 0
    return max(kth_sum(keys, count, rank) - margin, 0)


@compiled
def _reaching(
    blocks: Any, table: Any, starts: Any, stops: Any, allowed: Any, k: int, margin: int, least: int, shuffle: Any
) -> Any:
    """Keys of rows whose sum reaches `least`; where these are many, of the better ones as `near_keys` wants them."""
    pairs = blocks.shape[1]
    size, base, entries = pairs * PAIR_BYTES, blocks.ctypes.data, table.ctypes.data
    sums, bound = np.empty(BLOCK, dtype=np.uint16), np.uint16(least)
    keys, count = np.empty(4 * k + 4 * BLOCK, dtype=np.uint64), 0
    for part in range(len(starts)):
        for block in range(starts[part] // BLOCK, (stops[part] + BLOCK - 1) // BLOCK):
            wanted = _wanted(block, starts[part], stops[part], allowed)
            if not wanted:
                continue
            reached = wanted & _sum_block(base + block * size, entries, pairs, sums.ctypes.data, bound, shuffle)
            while reached:
                place = trailing_zeros(reached)
                reached &= reached - np.uint32(1)
                row = np.uint64(block * BLOCK + place)
                keys[count] = (np.uint64(sums[place]) << ROW_BITS) | (LAST_ROW - row)
                count += 1
            if count + BLOCK > len(keys):
                least = max(least, kth_sum(keys, count, k) - margin)
                bound, count = np.uint16(least), keep_from(keys, count, _from_sum(least))
                keys = with_room(keys, count)
    return keys[:count]


@compiled
def _wanted(block: int, start: int, stop: int, allowed: Any) -> Any:
    """Which of a block's documents are in a range and allowed: a bit each."""
    wanted, first = np.uint32(0xFFFFFFFF), block * BLOCK
    if first < start:
        wanted &= np.uint32(0xFFFFFFFF) << np.uint32(start - first)
    if first + BLOCK > stop:
        wanted &= np.uint32(0xFFFFFFFF) >> np.uint32(first + BLOCK - stop)
    if len(allowed):
        wanted &= allowed[block]
    return wanted


@compiled
def kth_sum(keys: Any, count: int, k: int) -> int:
    """The k-th largest sum of the first `count` keys, by counting how often each occurs."""
    low = high = np.int64(keys[0] >> ROW_BITS)
    for place in range(count):
        here = np.int64(keys[place] >> ROW_BITS)
        low, high = min(low, here), max(high, here)
    often = np.zeros(high - low + 1, dtype=np.int32)
    for place in range(count):
        often[np.int64(keys[place] >> ROW_BITS) - low] += 1
    missing = k
    for place in range(len(often) - 1, -1, -1):
        missing -= often[place]
        if missing <= 0:
            return int(low + place)
    return int(low)


@compiled
def _from_sum(least: int) -> Any:
    return np.uint64(max(least, 0)) << ROW_BITS
