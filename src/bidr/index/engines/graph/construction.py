"""Choose the links of a graph over codes, in two passes over ranges of some hundred documents.

Links lead to groups of documents; two adjacent groups, a node, share one list. First each document chooses, of its
nearest by inner product, those that no chosen one is much nearer to. Then a node links to the groups of these, to the
groups that chose one of its own, and where there is space to the groups of the nearest. Both passes give the same
results wherever they start, so that a build can resume.
"""

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from bidr.index.builder.clustering_vectors import decode_to_query_space
from bidr.index.builder.reorder import GROUP, PIECE
from bidr.index.engines.graph.adjacency import compute_max_links, count_link_bits, write_links
from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Codes, Floats
from bidr.utils.jit import njit_cached
from bidr.utils.reproducible_matmul import ColumnPanels, multiply

LinkCandidates = npt.NDArray[np.int32]
Links = npt.NDArray[np.uint64]

# Groups per node, which share one list of links. At a million documents and ef_search 200, lists per document missed
# .058 of the top 100, lists per four documents .021, per eight .016.
GROUPS_PER_NODE = 2
NODE = GROUPS_PER_NODE * GROUP
# Bytes of links per document, 98 with a 16-byte code; those of a node are 64-bit words: some 670 links.
LINK_BYTES = 82
LINK_WORDS = NODE * LINK_BYTES // 8
MAX_LINKS = compute_max_links(LINK_WORDS)
# Documents per range; they are compared with the pieces nearest to a piece of theirs.
ROWS_PER_RANGE = 128
# The nearest are selected from this many times as many documents.
POOL_FACTOR = 100
# A document is skipped if its product with a chosen one exceeds this many times its product with the chooser. At 1.1
# each document chooses 45 of 250, at 1 27; such links alone missed .0097 and .0149 of a scan's top 100 (250,000).
DIVERSITY_FACTOR = 1.1
MAX_CHOSEN = 64
# Candidates per group: the groups that its documents chose, some 140 and at most 256 (ranks are bytes), then other near
# groups, as -1 - group.
MAX_CANDIDATES = 320
# Sampling to estimate the threshold of the nearest: every SAMPLE_EVERY-th score, with a margin in deviations.
SAMPLE_EVERY, SAMPLE_DEVIATIONS = 16, 4
EMPTY = np.iinfo(np.int32).min

Decode = Callable[[Any], Floats]


def make_decoder(codebooks: Codebooks, codes: Codes) -> Decode:
    """Return a function that decodes documents by position to vectors with the inner products of their codes.

    The result is valid until the next call: tens of megabytes, whose allocation would cost as much as filling them.
    """
    if len(codebooks.rotation) > codebooks.dim:
        return lambda positions: np.ascontiguousarray(
            decode_to_query_space(codebooks, codes[positions]), dtype=np.float32
        )
    codewords, buffer = (
        np.ascontiguousarray(codebooks.centroids, dtype=np.float32),
        [np.empty((0, 0), dtype=np.float32)],
    )

    def decode(positions: Any) -> Floats:
        selected = np.ascontiguousarray(codes[positions])
        if len(buffer[0]) < len(selected):
            buffer[0] = np.empty((len(selected), len(codebooks.rotation)), dtype=np.float32)
        return cast(Floats, _decode(codewords, selected, buffer[0]))

    return decode


def choose_links(codebooks: Codebooks, codes: Codes, neighbors: int, first_group: int = 0) -> Iterator[LinkCandidates]:
    """Yield the link candidates of each group, (groups, MAX_CANDIDATES); codes are in index order.

    Args:
        neighbors: How many nearest documents each document chooses from.
        first_group: The group to start with, the first of a range.
    """
    decode, count = make_decoder(codebooks, codes), len(codes)
    means = np.stack([decode(slice(start, start + PIECE)).mean(axis=0) for start in range(0, count, PIECE)])
    piece_count = min(-(-POOL_FACTOR * neighbors // PIECE), len(means))
    for start in range(GROUP * first_group, count, ROWS_PER_RANGE):
        rows = np.arange(start, min(start + ROWS_PER_RANGE, count))
        pieces = select_pieces(means, np.arange(start // PIECE, rows[-1] // PIECE + 1), piece_count)
        positions = (PIECE * pieces[:, None] + np.arange(PIECE)).ravel()
        positions = positions[positions < count]
        vectors = decode(positions)
        own_places = np.searchsorted(positions, rows)
        scores = np.ascontiguousarray(multiply(vectors, ColumnPanels(vectors[own_places])).T)
        scores[np.arange(len(rows)), own_places] = -np.inf
        nearest = _select_best(scores, min(neighbors, len(positions) - 1))
        candidates = np.full((count_groups(len(rows)), MAX_CANDIDATES), EMPTY, dtype=np.int32)
        _record_candidates(
            positions[::GROUP] // GROUP,
            own_places[::GROUP] // GROUP,
            nearest,
            _choose_diverse(vectors, scores, nearest),
            candidates,
        )
        yield candidates


def select_pieces(means: Floats, own_pieces: Any, count: int) -> Any:
    """Select the `count` pieces nearest to any of the own pieces, which are included, ascending."""
    scores = multiply(means, ColumnPanels(means[own_pieces])).max(axis=1)
    scores[own_pieces] = np.inf
    return np.sort(np.argpartition(-scores, count - 1)[:count])


def count_groups(count: int) -> int:
    """Return the number of groups of `count` documents."""
    return -(-count // GROUP)


def count_nodes(count: int) -> int:
    """Return the number of adjacency lists of `count` documents."""
    return -(-count // NODE)


@njit_cached()
def _decode(codewords: Any, codes: Any, buffer: Any) -> Any:
    books, _, width = codewords.shape
    for row in range(len(codes)):
        for book in range(books):
            codeword = codewords[book, codes[row, book]]
            for place in range(width):
                buffer[row, book * width + place] = codeword[place]
    return buffer[: len(codes)]


@njit_cached()
def _select_best(scores: Any, k: int) -> Any:
    """Select the k largest scores of each row, best first, ties by place.

    A sample estimates a threshold: only scores that reach it are sorted.
    """
    best, likely = np.empty((len(scores), k), dtype=np.int64), np.empty(scores.shape[1], dtype=np.int64)
    expected = k / SAMPLE_EVERY
    rank = int(expected + SAMPLE_DEVIATIONS * expected**0.5) + 1
    for row in range(len(scores)):
        sample = scores[row, ::SAMPLE_EVERY].copy()
        threshold = np.partition(sample, len(sample) - rank)[len(sample) - rank] if rank < len(sample) else -np.inf
        count = _collect_above(scores[row], threshold, likely)
        if count < k:
            count = _collect_above(scores[row], -np.inf, likely)
        order = np.argsort(-scores[row][likely[:count]], kind="mergesort")
        best[row] = likely[order[:k]]
    return best


@njit_cached()
def _collect_above(scores: Any, threshold: Any, places: Any) -> int:
    """Collect the places of scores that reach the threshold; returns their number."""
    size = 0
    for place in range(len(scores)):
        places[size] = place
        size += scores[place] >= threshold
    return size


@njit_cached(reorder_sums=True)
def _compute_product(vectors: Any, first: int, second: int) -> Any:
    total = np.float32(0)
    for place in range(vectors.shape[1]):
        total += vectors[first, place] * vectors[second, place]
    return total


@njit_cached()
def _choose_diverse(vectors: Any, scores: Any, nearest: Any) -> Any:
    """Choose diverse neighbors of each document, best first; -1 fills the rest."""
    chosen = np.full((len(nearest), MAX_CHOSEN), -1, dtype=np.int64)
    for document in range(len(nearest)):
        count = 0
        for row in nearest[document]:
            if count == MAX_CHOSEN:
                break
            if _is_new(vectors, chosen[document], count, row, np.float32(DIVERSITY_FACTOR) * scores[document, row]):
                chosen[document, count] = row
                count += 1
    return chosen


@njit_cached()
def _is_new(vectors: Any, chosen: Any, count: int, row: int, limit: Any) -> bool:
    """Tell whether a document's products with all chosen ones are within the limit."""
    for place in range(count):  # noqa: SIM110 - numba is slower at generators
        if _compute_product(vectors, chosen[place], row) > limit:
            return False
    return True


@njit_cached()
def _record_candidates(group_numbers: Any, places: Any, nearest: Any, chosen: Any, candidates: Any) -> None:
    """Record the groups that the documents of each group chose, in turn, then the groups of their nearest.

    group_numbers: groups of the compared documents; places: which of these groups candidates are recorded for.
    """
    recorded_by = np.full(len(group_numbers), -1, dtype=np.int64)
    for group in range(len(places)):
        recorded_by[places[group]] = group
        members = slice(GROUP * group, GROUP * group + GROUP)
        count = _record_new(group_numbers, recorded_by, group, chosen[members], False, candidates[group], 0)
        _record_new(group_numbers, recorded_by, group, nearest[members], True, candidates[group], count)


@njit_cached()
def _record_new(
    group_numbers: Any, recorded_by: Any, group: int, rows: Any, is_extra: bool, candidates: Any, count: int
) -> int:
    for rank in range(rows.shape[1]):
        for row in rows[:, rank]:
            if row < 0 or recorded_by[row // GROUP] == group:
                continue
            if count == len(candidates):
                return count
            recorded_by[row // GROUP] = group
            number = group_numbers[row // GROUP]
            candidates[count] = -1 - number if is_extra else number
            count += 1
    return count


def pack_links(candidates: LinkCandidates, first_node: int = 0) -> Iterator[Links]:
    """Yield the packed links of each node, (nodes, LINK_WORDS), from candidates as `choose_links` yields them."""
    starts, choosers, ranks = _collect_choosers(candidates)
    for start in range(GROUPS_PER_NODE * first_node, len(candidates), ROWS_PER_RANGE):
        stop = min(start + ROWS_PER_RANGE, len(candidates))
        chosen_by = slice(starts[start], starts[stop])
        packed = np.zeros((-(-(stop - start) // GROUPS_PER_NODE), LINK_WORDS), dtype=np.uint64)
        part = np.asarray(candidates[start:stop])
        _pack(
            start // GROUPS_PER_NODE,
            part,
            starts[start : stop + 1] - starts[start],
            choosers[chosen_by],
            ranks[chosen_by],
            packed,
        )
        yield packed


@njit_cached()
def _collect_choosers(candidates: Any) -> Any:
    """Invert the choices: for each group the offset of its choosers, their numbers, and the rank of the choice."""
    starts = np.zeros(len(candidates) + 1, dtype=np.int64)
    for group in range(len(candidates)):
        for other in candidates[group]:
            if other < 0:
                break
            starts[other + 1] += 1
    starts = np.cumsum(starts)
    choosers, at = np.empty(starts[-1], dtype=np.int32), starts[:-1].copy()
    ranks = np.empty(starts[-1], dtype=np.uint8)
    for group in range(len(candidates)):
        for rank in range(candidates.shape[1]):
            other = candidates[group, rank]
            if other < 0:
                break
            choosers[at[other]], ranks[at[other]] = group, rank
            at[other] += 1
    return starts, choosers, ranks


@njit_cached()
def _pack(first_node: int, candidates: Any, starts: Any, choosers: Any, ranks: Any, packed: Any) -> None:
    groups = np.empty(MAX_LINKS, dtype=np.int64)
    for number in range(len(packed)):
        node, count, size = first_node + number, 0, 0
        start, stop = GROUPS_PER_NODE * number, min(GROUPS_PER_NODE * number + GROUPS_PER_NODE, len(candidates))
        for rank in range(candidates.shape[1]):
            for other in candidates[start:stop, rank]:
                if other >= 0:
                    count, size = _add(groups, count, size, other, node)
        chosen_by = slice(starts[start], starts[stop])
        for place in np.argsort(ranks[chosen_by], kind="mergesort"):
            count, size = _add(groups, count, size, choosers[chosen_by][place], node)
        for rank in range(candidates.shape[1]):
            for other in candidates[start:stop, rank]:
                if other < 0 and other != EMPTY:
                    count, size = _add(groups, count, size, -1 - other, node)
        write_links(groups[:count], packed[number])


@njit_cached()
def _add(groups: Any, count: int, size: int, group: int, node: int) -> tuple[int, int]:
    """Insert a group into ascending ones if it is new and fits; returns their number and their bits."""
    slot = np.searchsorted(groups[:count], group)
    if group // GROUPS_PER_NODE == node or (slot < count and groups[slot] == group):
        return count, size
    previous = groups[slot - 1] if slot else -1
    extra = count_link_bits(group - previous)
    if slot < count:
        extra += count_link_bits(groups[slot] - group) - count_link_bits(groups[slot] - previous)
    if size + extra > 64 * LINK_WORDS:
        return count, size
    for place in range(count, slot, -1):
        groups[place] = groups[place - 1]
    groups[slot] = group
    return count + 1, size + extra
