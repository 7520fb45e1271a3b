"""Scan 4-bit codes 32 documents at a time: one byte shuffle (AVX2 vpshufb) looks up 32 table entries.

Without AVX2 the same function uses plain lookups. Which of the two is compiled depends on the type of `shuffle`: an
int for the shuffle, None for lookups.
"""

from typing import Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

BLOCK = 32
# Sums of this many books fit a byte; then they are widened to 16 bits.
BYTE_SUMS = 4
PAIR_BYTES = 32
CACHE_LINE = 64

BYTE, SHORT, WORD, LONG = (ir.IntType(bits) for bits in (8, 16, 32, 64))
BYTES, SHORTS = ir.VectorType(BYTE, 32), ir.VectorType(SHORT, 16)


def detect_pshufb() -> int | None:
    """Return 1 if numba compiles for a CPU with AVX2, otherwise None."""
    features = config.CPU_FEATURES
    if config.CPU_NAME or features is not None:
        return 1 if "+avx2" in (features or "") else None
    return 1 if get_host_cpu_features().get("avx2") else None


@intrinsic  # type: ignore[untyped-decorator]
def find_next_block(
    context: Any,
    codes: Any,
    table: Any,
    pairs: Any,
    block: Any,
    stop: Any,
    sums: Any,
    ahead: Any,
    threshold: Any,
    shuffle: Any,
) -> Any:
    """Find the first block in [block, stop) in which a sum of table entries reaches `threshold`.

    codes, table, sums: addresses. A pair of books takes 32 bytes of codes: 16 per book, each with document j in the low
    and document j + 16 in the high nibble. The table has 16 entries per book in the same order.
    ahead: prefetch distance in bytes.
    Returns the block in the high 32 bits and a mask of its 32 documents in the low ones, their sums in `sums`; mask 0:
    no block. The loop over blocks is in here because numba counts references in every iteration, a third of the time.
    """
    signature = types.uint64(*[types.intp] * 7, types.uint16, shuffle)
    native = not isinstance(shuffle, types.NoneType)

    def generate(_context: Any, builder: ir.IRBuilder, _signature: Any, arguments: Any) -> Any:
        return _FindNextBlock(builder, native).emit(*arguments[:8])

    return signature, generate


class _FindNextBlock:
    """Emit the instructions of `find_next_block`."""

    def __init__(self, builder: ir.IRBuilder, native: bool) -> None:
        self.builder, self.native = builder, native

    def emit(
        self, codes: Any, table: Any, pairs: Any, block: Any, stop: Any, sums: Any, ahead: Any, threshold: Any
    ) -> Any:
        builder, self.ahead = self.builder, ahead
        self.table = builder.inttoptr(table, BYTE.as_pointer())
        self.sums = [cgutils.alloca_once(builder, SHORTS) for _ in range(4)]
        answer = cgutils.alloca_once_value(builder, ir.Constant(LONG, 0))
        size = builder.mul(pairs, ir.Constant(LONG, PAIR_BYTES))
        body, end = builder.append_basic_block("turn"), builder.append_basic_block("end")
        at = cgutils.alloca_once_value(builder, block)
        builder.cbranch(builder.icmp_signed("<", block, stop), body, end)
        builder.position_at_end(body)
        block_number = builder.load(at)
        self.codes = builder.inttoptr(builder.add(codes, builder.mul(block_number, size)), BYTE.as_pointer())
        totals = self._sum(pairs)
        mask = self._compare(totals, threshold)
        reached = builder.icmp_unsigned("!=", mask, ir.Constant(WORD, 0))
        with builder.if_then(reached, likely=False):
            builder.store(totals, builder.inttoptr(sums, totals.type.as_pointer())).align = 1
            above = builder.shl(block_number, ir.Constant(LONG, 32))
            builder.store(builder.or_(above, builder.zext(mask, LONG)), answer)
        next_number = builder.add(block_number, ir.Constant(LONG, 1))
        builder.store(next_number, at)
        builder.cbranch(builder.or_(reached, builder.icmp_signed(">=", next_number, stop)), end, body)
        builder.position_at_end(end)
        return builder.load(answer)

    def _sum(self, pairs: Any) -> Any:
        """Emit the sums of 32 documents in order."""
        builder = self.builder
        for place in self.sums:
            builder.store(_make_constant(SHORTS, 0), place)
        unrolled = builder.and_(pairs, ir.Constant(LONG, -BYTE_SUMS))
        for start, stop, step in ((ir.Constant(LONG, 0), unrolled, BYTE_SUMS), (unrolled, pairs, 1)):
            with cgutils.for_range_slice(builder, start, stop, ir.Constant(LONG, step)) as (pair, _):
                self._add_pairs(pair, step)
        return builder.shuffle_vector(*(self._restore_order(first) for first in (0, 2)), _make_indices(range(32)))

    def _compare(self, totals: Any, threshold: Any) -> Any:
        builder = self.builder
        lane = builder.insert_element(ir.Constant(totals.type, ir.Undefined), threshold, ir.Constant(WORD, 0))
        bounds = builder.shuffle_vector(lane, lane, _make_indices([0] * 32))
        return builder.bitcast(builder.icmp_unsigned(">=", totals, bounds), WORD)

    def _add_pairs(self, pair: Any, count: int) -> None:
        builder = self.builder
        low = high = None
        self._prefetch(pair, count)
        for number in range(count):
            at = builder.mul(builder.add(pair, ir.Constant(LONG, number)), ir.Constant(LONG, PAIR_BYTES))
            codes, table = self._load(self.codes, at), builder.gep(self.table, [at])
            upper = builder.bitcast(builder.lshr(builder.bitcast(codes, SHORTS), _make_constant(SHORTS, 4)), BYTES)
            first, second = (
                self._look_up(table, builder.and_(half, _make_constant(BYTES, 15))) for half in (codes, upper)
            )
            low = first if low is None else builder.add(low, first)
            high = second if high is None else builder.add(high, second)
        for place, half_sums in ((0, low), (2, high)):
            shorts = builder.bitcast(half_sums, SHORTS)
            # Even bytes include the odd ones above them, which `_restore_order` subtracts.
            for number, part in ((place, shorts), (place + 1, builder.lshr(shorts, _make_constant(SHORTS, 8)))):
                builder.store(builder.add(builder.load(self.sums[number]), part), self.sums[number])

    def _prefetch(self, pair: Any, count: int) -> None:
        """Prefetch codes into the nearest cache only: the other levels keep their contents for after the scan."""
        builder = self.builder
        text = BYTE.as_pointer()
        hint = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [text, WORD, WORD, WORD]), "llvm.prefetch.p0"
        )
        for byte in range(0, count * PAIR_BYTES, CACHE_LINE):
            at = builder.add(builder.mul(pair, ir.Constant(LONG, PAIR_BYTES)), ir.Constant(LONG, byte))
            at = builder.add(at, self.ahead)
            builder.call(hint, [builder.gep(self.codes, [at]), WORD(0), WORD(0), WORD(1)])

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
        result = ir.Constant(BYTES, ir.Undefined)
        for lane in range(32):
            place = builder.zext(builder.extract_element(places, ir.Constant(WORD, lane)), LONG)
            if lane >= 16:
                place = builder.add(place, ir.Constant(LONG, 16))
            result = builder.insert_element(result, builder.load(builder.gep(table, [place])), ir.Constant(WORD, lane))
        return result

    def _restore_order(self, first: int) -> Any:
        """Interleave sums of even and odd bytes to 16 documents in order; add the two books of a pair."""
        builder = self.builder
        mixed, odd = (builder.load(self.sums[number]) for number in (first, first + 1))
        even = builder.sub(mixed, builder.shl(odd, _make_constant(SHORTS, 8)))
        parts = []
        for shorts in (even, odd):
            lower, upper = (builder.shuffle_vector(shorts, shorts, _make_indices(range(at, at + 8))) for at in (0, 8))
            parts.append(builder.add(lower, upper))
        return builder.shuffle_vector(*parts, _make_indices([place for pair in range(8) for place in (pair, pair + 8)]))


def _make_constant(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * kind.count)


def _make_indices(places: Any) -> Any:
    numbers = list(places)
    return ir.Constant(ir.VectorType(WORD, len(numbers)), numbers)
