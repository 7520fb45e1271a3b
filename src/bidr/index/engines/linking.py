"""Choosing the links of a graph over codes, in two passes of some hundred documents at a time.

First each document chooses from its nearest by inner product those that no chosen one is nearer to. Then it chooses
again from these and from the documents that chose it, and what room is left is filled with the nearest. Both passes
give the same for a document wherever they begin, so that a build can go on where it stopped.
"""

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from bidr.codes.codebooks import Codebooks, Codes, Floats
from bidr.compiled import compiled
from bidr.index.engines.arrange import GROUP, PIECE
from bidr.index.engines.clusters import in_query_space

Chosen = npt.NDArray[np.int32]
Links = npt.NDArray[np.uint8]

# Bytes for a document's links: some 60 of them, 240 documents. With a code of 16 bytes 98 bytes a document.
LINK_BYTES = 82
# Documents that are compared at once, with those of the pieces nearest to a piece of theirs.
RANGE = 128
# The nearest are looked for among so many times as many.
AMONG = 100
# What the first pass notes for a document: those that it chose, then one of each group that is near besides, as
# -1 - place.
NOTED = 64
# To find the nearest: one score in so many is looked at first, and the guess allows for so many deviations.
SAMPLE_EVERY, SAMPLE_DEVIATIONS = 16, 4
NOBODY = np.iinfo(np.int32).min

Decode = Callable[[Any], Floats]


def decoder(codebooks: Codebooks, codes: Codes) -> Decode:
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


def choose(codebooks: Codebooks, codes: Codes, near: int, first: int = 0) -> Iterator[Chosen]:
    """What each document would link to, (some, NOTED), from a multiple of RANGE on; codes stand by place.

    near: how many nearest documents are chosen from.
    """
    decode, count = decoder(codebooks, codes), len(codes)
    means = np.stack([decode(slice(start, start + PIECE)).mean(axis=0) for start in range(0, count, PIECE)])
    visited = min(-(-AMONG * near // PIECE), len(means))
    for start in range(first, count, RANGE):
        own = np.arange(start, min(start + RANGE, count))
        mine = np.arange(start // PIECE, own[-1] // PIECE + 1)
        nearness = (means[mine] @ means.T).max(axis=0)
        nearness[mine] = np.inf
        pieces = np.sort(np.argpartition(-nearness, visited - 1)[:visited])
        places = (PIECE * pieces[:, None] + np.arange(PIECE)).ravel()
        places = places[places < count]
        vectors = decode(places)
        at = np.searchsorted(places, own)
        scores = vectors[at] @ vectors.T
        scores[np.arange(len(own)), at] = -np.inf
        best = _best(scores, min(near, len(places) - 1))
        noted = np.full((len(own), NOTED), NOBODY, dtype=np.int32)
        if best.shape[1]:
            _choose(vectors, places, scores, best, noted)
        yield noted


@compiled()
def _decode(words: Any, codes: Any, room: Any) -> Any:
    books, _, width = words.shape
    for row in range(len(codes)):
        for book in range(books):
            word = words[book, codes[row, book]]
            for place in range(width):
                room[row, book * width + place] = word[place]
    return room[: len(codes)]


@compiled()
def _best(scores: Any, count: int) -> Any:
    """Where the largest of each row are, best first, of equal ones the first.

    A sample tells what they are likely to reach: only those that do are sorted.
    """
    best, likely = np.empty((len(scores), count), dtype=np.int64), np.empty(scores.shape[1], dtype=np.int64)
    expected = count / SAMPLE_EVERY
    rank = int(expected + SAMPLE_DEVIATIONS * expected**0.5) + 1
    for row in range(len(scores)):
        sample = scores[row, ::SAMPLE_EVERY].copy()
        least = np.partition(sample, len(sample) - rank)[len(sample) - rank] if rank < len(sample) else -np.inf
        found = _reaching(scores[row], least, likely)
        if found < count:
            found = _reaching(scores[row], -np.inf, likely)
        order = np.argsort(-scores[row][likely[:found]], kind="mergesort")
        best[row] = likely[order[:count]]
    return best


@compiled()
def _reaching(scores: Any, least: Any, places: Any) -> int:
    """Put where scores reach the least among the places; how many do."""
    found = 0
    for place in range(len(scores)):
        places[found] = place
        found += scores[place] >= least
    return found


@compiled(loose_sums=True)
def _product(vectors: Any, one: int, other: int) -> Any:
    total = np.float32(0)
    for place in range(vectors.shape[1]):
        total += vectors[one, place] * vectors[other, place]
    return total


@compiled()
def _is_new(vectors: Any, chosen: Any, count: int, row: int, score: Any) -> bool:
    """Whether no chosen one is nearer to a document than the one that chooses."""
    for place in range(count):  # noqa: SIM110 - numba is slower at generators
        if _product(vectors, chosen[place], row) > score:
            return False
    return True


@compiled()
def _choose(vectors: Any, places: Any, scores: Any, best: Any, noted: Any) -> None:
    chosen = np.empty(noted.shape[1], dtype=np.int64)
    for own in range(len(best)):
        count = 0
        for row in best[own]:
            if count == len(chosen):
                break
            if _is_new(vectors, chosen, count, row, scores[own, row]):
                chosen[count], noted[own, count] = row, places[row]
                count += 1
        for row in best[own]:
            if count == len(chosen):
                break
            if not _has_group(noted[own], count, places[row]):
                noted[own, count] = -1 - places[row]
                count += 1


@compiled()
def _has_group(noted: Any, count: int, here: int) -> bool:
    for place in range(count):  # noqa: SIM110 - numba is slower at generators
        if max(noted[place], -1 - noted[place]) // GROUP == here // GROUP:
            return True
    return False


def pack_links(codebooks: Codebooks, codes: Codes, noted: Chosen, first: int = 0) -> Iterator[Links]:
    """The links of each document, (some, LINK_BYTES): ascending numbers of groups as the differences between them.

    A difference is 7 bits a byte, low ones first, with the highest bit set where more follow; the first is from -1, and
    a 0 ends them. noted: what `choose` gave for all.
    """
    decode, count = decoder(codebooks, codes), len(codes)
    starts, choosers = _choosers(noted)
    for start in range(first, count, RANGE):
        own = np.arange(start, min(start + RANGE, count))
        back = choosers[starts[own[0]] : starts[own[-1] + 1]]
        here = np.asarray(noted[own])
        places = np.unique(np.concatenate((own, here[here >= 0], back)))
        packed = np.zeros((len(own), LINK_BYTES), dtype=np.uint8)
        _pack(decode(places), places, own, here, starts[own[0] : own[-1] + 2] - starts[own[0]], back, packed)
        yield packed


@compiled()
def _choosers(noted: Any) -> Any:
    """Who chose each document: where they begin, and their places."""
    starts = np.zeros(len(noted) + 1, dtype=np.int64)
    for place in range(len(noted)):
        for other in noted[place]:
            if other < 0:
                break
            starts[other + 1] += 1
    starts = np.cumsum(starts)
    choosers, at = np.empty(starts[-1], dtype=np.int32), starts[:-1].copy()
    for place in range(len(noted)):
        for other in noted[place]:
            if other < 0:
                break
            choosers[at[other]] = place
            at[other] += 1
    return starts, choosers


@compiled()
def _pack(vectors: Any, places: Any, own: Any, noted: Any, starts: Any, choosers: Any, packed: Any) -> None:
    for number in range(len(own)):
        here = np.searchsorted(places, own[number])
        pool, count = np.empty(noted.shape[1] + starts[number + 1] - starts[number], dtype=np.int64), 0
        for other in noted[number]:
            if other < 0:
                break
            pool[count] = np.searchsorted(places, other)
            count += 1
        for other in choosers[starts[number] : starts[number + 1]]:
            pool[count] = np.searchsorted(places, other)
            count += 1
        pool = np.unique(pool[:count])
        scores = np.empty(len(pool), dtype=np.float32)
        for place in range(len(pool)):
            scores[place] = _product(vectors, here, pool[place])
        order = np.argsort(-scores, kind="mergesort")
        chosen, count, left, others = pool.copy(), 0, pool.copy(), 0
        for rank in order:
            if _is_new(vectors, chosen, count, pool[rank], scores[rank]):
                chosen[count] = pool[rank]
                count += 1
            else:
                left[others] = pool[rank]
                others += 1
        groups, used, size = np.empty(packed.shape[1], dtype=np.int64), 0, 0
        for place in range(count):
            used, size = _add(groups, used, size, places[chosen[place]] // GROUP, own[number] // GROUP)
        for place in range(others):
            used, size = _add(groups, used, size, places[left[place]] // GROUP, own[number] // GROUP)
        for other in noted[number]:
            if other < 0 and other != NOBODY:
                used, size = _add(groups, used, size, (-1 - other) // GROUP, own[number] // GROUP)
        _write(groups[:used], packed[number])


@compiled()
def _add(groups: Any, count: int, size: int, group: int, own: int) -> tuple[int, int]:
    """Put a group among the ascending ones if it is new and there is room; how many they are, and their bytes."""
    at = np.searchsorted(groups[:count], group)
    if group == own or (at < count and groups[at] == group):
        return count, size
    before = groups[at - 1] if at else -1
    more = _bytes_of(group - before)
    if at < count:
        more += _bytes_of(groups[at] - group) - _bytes_of(groups[at] - before)
    if size + more > len(groups):
        return count, size
    for place in range(count, at, -1):
        groups[place] = groups[place - 1]
    groups[at] = group
    return count + 1, size + more


@compiled()
def _bytes_of(difference: int) -> int:
    size = 1
    while difference >= 128:
        difference >>= 7
        size += 1
    return size


@compiled()
def _write(groups: Any, out: Any) -> None:
    before, place = -1, 0
    for group in groups:
        difference = group - before
        while difference >= 128:
            out[place] = np.uint8((difference & 127) | 128)
            difference >>= 7
            place += 1
        out[place] = np.uint8(difference)
        before, place = group, place + 1
