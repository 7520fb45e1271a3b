"""Choosing the links of a graph over codes, in two passes of some hundred documents at a time.

Links lead to groups of documents; two groups side by side, a node, have theirs together. First each document chooses
from its nearest by inner product those that no chosen one is much nearer to. Then a node links to the groups of these,
to the groups that chose one of its own, and where there is room to those of the nearest. Both passes give the same
wherever they begin, so that a build can go on where it stopped.
"""

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from bidr.index.builder.cluster_input import in_query_space
from bidr.index.builder.reorder import GROUP, PIECE
from bidr.index.engines.graph.adjacency import compute_max_links, count_link_bits, write_links
from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Codes, Floats
from bidr.utils.jit import njit_cached
from bidr.utils.matmul import ColumnPanels, multiply

LinkCandidates = npt.NDArray[np.int32]
Links = npt.NDArray[np.uint64]

# Groups whose links are one list, a node. Of a million's top 100 lists of one document left .058 unfound at efSearch
# 200, of four .021, of eight .016.
GROUPS_PER_NODE = 2
NODE = GROUPS_PER_NODE * GROUP
# Bytes of links for a document, with a code of 16 bytes 98 in all; a node's are words of 64 bits: some 670 links.
LINK_BYTES = 82
LINK_WORDS = NODE * LINK_BYTES // 8
MAX_LINKS = compute_max_links(LINK_WORDS)
# Documents that are compared at once, with those of the pieces nearest to a piece of theirs.
ROWS_PER_RANGE = 128
# The nearest are looked for among so many times as many.
POOL_FACTOR = 100
# A document is not chosen where its product with one that is exceeds so many times that with the one that chooses. At
# 1.1 each chooses 45 of 250, at 1 27; such links alone left .0097 and .0149 of a scan's top 100 unfound (250,000).
DIVERSITY_FACTOR = 1.1
MAX_CHOSEN = 64
# What the first pass notes for a group: the groups that its documents chose, some 140, at most 256 (whose ranks are
# bytes), then those that are near besides, as -1 - group.
MAX_CANDIDATES = 320
# To find the nearest: one score in so many is looked at first, and the guess allows for so many deviations.
SAMPLE_EVERY, SAMPLE_DEVIATIONS = 16, 4
EMPTY = np.iinfo(np.int32).min

Decode = Callable[[Any], Floats]


def make_decoder(codebooks: Codebooks, codes: Codes) -> Decode:
    """Documents by place as vectors whose inner products are those of their codes; good until the next are asked for.

    They are tens of megabytes at a time: new memory for them would cost as much as filling it.
    """
    if len(codebooks.rotation) > codebooks.dim:
        return lambda places: np.ascontiguousarray(in_query_space(codebooks, codes[places]), dtype=np.float32)
    words, room = np.ascontiguousarray(codebooks.centroids, dtype=np.float32), [np.empty((0, 0), dtype=np.float32)]

    def decode(places: Any) -> Floats:
        wanted = np.ascontiguousarray(codes[places])
        if len(room[0]) < len(wanted):
            room[0] = np.empty((len(wanted), len(codebooks.rotation)), dtype=np.float32)
        return cast(Floats, _decode(words, wanted, room[0]))

    return decode


def choose_links(codebooks: Codebooks, codes: Codes, near: int, first: int = 0) -> Iterator[LinkCandidates]:
    """What each group would link to, (some, NOTED); codes stand by place.

    near:  how many nearest documents each document chooses from.
    first: the group to begin with, which a range of documents begins with.
    """
    decode, count = make_decoder(codebooks, codes), len(codes)
    means = np.stack([decode(slice(start, start + PIECE)).mean(axis=0) for start in range(0, count, PIECE)])
    visited = min(-(-POOL_FACTOR * near // PIECE), len(means))
    for start in range(GROUP * first, count, ROWS_PER_RANGE):
        own = np.arange(start, min(start + ROWS_PER_RANGE, count))
        pieces = select_pieces(means, np.arange(start // PIECE, own[-1] // PIECE + 1), visited)
        places = (PIECE * pieces[:, None] + np.arange(PIECE)).ravel()
        places = places[places < count]
        vectors = decode(places)
        at = np.searchsorted(places, own)
        scores = np.ascontiguousarray(multiply(vectors, ColumnPanels(vectors[at])).T)
        scores[np.arange(len(own)), at] = -np.inf
        best = _select_best(scores, min(near, len(places) - 1))
        noted = np.full((count_groups(len(own)), MAX_CANDIDATES), EMPTY, dtype=np.int32)
        _record_candidates(
            places[::GROUP] // GROUP, at[::GROUP] // GROUP, best, _choose_diverse(vectors, scores, best), noted
        )
        yield noted


def select_pieces(means: Floats, mine: Any, count: int) -> Any:
    """So many pieces, ascending, nearest to one of some, which are among them."""
    nearness = multiply(means, ColumnPanels(means[mine])).max(axis=1)
    nearness[mine] = np.inf
    return np.sort(np.argpartition(-nearness, count - 1)[:count])


def count_groups(count: int) -> int:
    """How many groups so many documents are."""
    return -(-count // GROUP)


def count_nodes(count: int) -> int:
    """How many lists of links so many documents have."""
    return -(-count // NODE)


@njit_cached()
def _decode(words: Any, codes: Any, room: Any) -> Any:
    books, _, width = words.shape
    for row in range(len(codes)):
        for book in range(books):
            word = words[book, codes[row, book]]
            for place in range(width):
                room[row, book * width + place] = word[place]
    return room[: len(codes)]


@njit_cached()
def _select_best(scores: Any, count: int) -> Any:
    """Where the largest of each row are, best first, of equal ones the first.

    A sample tells what they are likely to reach: only those that do are sorted.
    """
    best, likely = np.empty((len(scores), count), dtype=np.int64), np.empty(scores.shape[1], dtype=np.int64)
    expected = count / SAMPLE_EVERY
    rank = int(expected + SAMPLE_DEVIATIONS * expected**0.5) + 1
    for row in range(len(scores)):
        sample = scores[row, ::SAMPLE_EVERY].copy()
        least = np.partition(sample, len(sample) - rank)[len(sample) - rank] if rank < len(sample) else -np.inf
        found = _collect_above(scores[row], least, likely)
        if found < count:
            found = _collect_above(scores[row], -np.inf, likely)
        order = np.argsort(-scores[row][likely[:found]], kind="mergesort")
        best[row] = likely[order[:count]]
    return best


@njit_cached()
def _collect_above(scores: Any, least: Any, places: Any) -> int:
    """Put where scores reach the least among the places; how many do."""
    found = 0
    for place in range(len(scores)):
        places[found] = place
        found += scores[place] >= least
    return found


@njit_cached(reorder_sums=True)
def _compute_product(vectors: Any, one: int, other: int) -> Any:
    total = np.float32(0)
    for place in range(vectors.shape[1]):
        total += vectors[one, place] * vectors[other, place]
    return total


@njit_cached()
def _choose_diverse(vectors: Any, scores: Any, best: Any) -> Any:
    """Which of its nearest each document chooses, best first, and -1 where there are no more."""
    chosen = np.full((len(best), MAX_CHOSEN), -1, dtype=np.int64)
    for own in range(len(best)):
        count = 0
        for row in best[own]:
            if count == MAX_CHOSEN:
                break
            if _is_new(vectors, chosen[own], count, row, np.float32(DIVERSITY_FACTOR) * scores[own, row]):
                chosen[own, count] = row
                count += 1
    return chosen


@njit_cached()
def _is_new(vectors: Any, chosen: Any, count: int, row: int, most: Any) -> bool:
    """Whether a document's product with no chosen one exceeds the most that is allowed."""
    for place in range(count):  # noqa: SIM110 - numba is slower at generators
        if _compute_product(vectors, chosen[place], row) > most:
            return False
    return True


@njit_cached()
def _record_candidates(numbers: Any, own: Any, best: Any, chosen: Any, noted: Any) -> None:
    """Put down what the documents of each group chose, in turn, then what is near to them.

    numbers: of the groups in which the documents that were looked at stand; own: which of these are noted for.
    """
    noted_for = np.full(len(numbers), -1, dtype=np.int64)
    for group in range(len(own)):
        noted_for[own[group]] = group
        mine = slice(GROUP * group, GROUP * group + GROUP)
        count = _record_new(numbers, noted_for, group, chosen[mine], False, noted[group], 0)
        _record_new(numbers, noted_for, group, best[mine], True, noted[group], count)


@njit_cached()
def _record_new(numbers: Any, noted_for: Any, group: int, rows: Any, besides: bool, noted: Any, count: int) -> int:
    for rank in range(rows.shape[1]):
        for row in rows[:, rank]:
            if row < 0 or noted_for[row // GROUP] == group:
                continue
            if count == len(noted):
                return count
            noted_for[row // GROUP] = group
            number = numbers[row // GROUP]
            noted[count] = -1 - number if besides else number
            count += 1
    return count


def pack_links(noted: LinkCandidates, first: int = 0) -> Iterator[Links]:
    """The links of each node, (some, LINK_WORDS), from one on, as `packed` writes them. noted: what `choose` gave."""
    starts, choosers, ranks = _collect_choosers(noted)
    for start in range(GROUPS_PER_NODE * first, len(noted), ROWS_PER_RANGE):
        stop = min(start + ROWS_PER_RANGE, len(noted))
        mine = slice(starts[start], starts[stop])
        packed = np.zeros((-(-(stop - start) // GROUPS_PER_NODE), LINK_WORDS), dtype=np.uint64)
        here = np.asarray(noted[start:stop])
        _pack(
            start // GROUPS_PER_NODE,
            here,
            starts[start : stop + 1] - starts[start],
            choosers[mine],
            ranks[mine],
            packed,
        )
        yield packed


@njit_cached()
def _collect_choosers(noted: Any) -> Any:
    """Who chose each group: where they begin, their numbers, and how soon they chose it."""
    starts = np.zeros(len(noted) + 1, dtype=np.int64)
    for group in range(len(noted)):
        for other in noted[group]:
            if other < 0:
                break
            starts[other + 1] += 1
    starts = np.cumsum(starts)
    choosers, at = np.empty(starts[-1], dtype=np.int32), starts[:-1].copy()
    ranks = np.empty(starts[-1], dtype=np.uint8)
    for group in range(len(noted)):
        for rank in range(noted.shape[1]):
            other = noted[group, rank]
            if other < 0:
                break
            choosers[at[other]], ranks[at[other]] = group, rank
            at[other] += 1
    return starts, choosers, ranks


@njit_cached()
def _pack(first: int, noted: Any, starts: Any, choosers: Any, ranks: Any, packed: Any) -> None:
    groups = np.empty(MAX_LINKS, dtype=np.int64)
    for number in range(len(packed)):
        own, used, size = first + number, 0, 0
        start, stop = GROUPS_PER_NODE * number, min(GROUPS_PER_NODE * number + GROUPS_PER_NODE, len(noted))
        for rank in range(noted.shape[1]):
            for other in noted[start:stop, rank]:
                if other >= 0:
                    used, size = _add(groups, used, size, other, own)
        back = slice(starts[start], starts[stop])
        for place in np.argsort(ranks[back], kind="mergesort"):
            used, size = _add(groups, used, size, choosers[back][place], own)
        for rank in range(noted.shape[1]):
            for other in noted[start:stop, rank]:
                if other < 0 and other != EMPTY:
                    used, size = _add(groups, used, size, -1 - other, own)
        write_links(groups[:used], packed[number])


@njit_cached()
def _add(groups: Any, count: int, size: int, group: int, own: int) -> tuple[int, int]:
    """Put a group among the ascending ones if it is new and there is room; how many they are, and their bits."""
    at = np.searchsorted(groups[:count], group)
    if group // GROUPS_PER_NODE == own or (at < count and groups[at] == group):
        return count, size
    before = groups[at - 1] if at else -1
    more = count_link_bits(group - before)
    if at < count:
        more += count_link_bits(groups[at] - group) - count_link_bits(groups[at] - before)
    if size + more > 64 * LINK_WORDS:
        return count, size
    for place in range(count, at, -1):
        groups[place] = groups[place - 1]
    groups[at] = group
    return count + 1, size + more
