"""BM25 over postings: one range of places after the other, so that what a query holds in RAM stays the same size."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.index.lexical.analyzer import K1, B
from bidr.index.lexical.postings import U8, U32, Postings
from bidr.utils.array_types import Bitmap, Floats, Rows
from bidr.utils.jit import njit_cached

RANGE = 16_384
SPARE = 4_096


class WeightedTerms(NamedTuple):
    """The words of a query: where their postings are, and what each weighs (its idf, as often as it is asked)."""

    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    weights: Floats


def compute_idf(documents: int, holding: npt.NDArray[np.int64]) -> Floats:
    """How much a word tells that so many documents hold (Lucene's formula)."""
    return np.log1p((documents - holding + 0.5) / (holding + 0.5)).astype(np.float32)


def search_postings(
    postings: Postings, query: WeightedTerms, mean_length: float, k: int, allowed: Bitmap | None, wanted: Rows
) -> tuple[Floats, Rows, Floats] | None:
    """Scores and places of the k best documents or fewer, best first, equal ones by place; scores of `wanted` places.

    allowed: a bit for each place that may be found; None: all. None is returned where the postings are damaged.
    """
    bits = np.zeros(0, dtype=np.uint8) if allowed is None else allowed
    ascending = np.argsort(wanted)
    slope, base = np.float32(K1 * B / mean_length), np.float32(K1 * (1 - B))
    arrays = (postings.places, postings.counts, postings.lengths)
    scores, places, own, whole = _best(*arrays, *query, slope, base, bits, wanted[ascending], k)
    if not whole:
        return None
    of_wanted = np.empty(len(wanted), dtype=np.float32)
    of_wanted[ascending] = own
    return scores, places, of_wanted


@njit_cached()
def _best(
    places: U32,
    counts: U8,
    lengths: U32,
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    weights: Floats,
    slope: np.float32,
    base: np.float32,
    allowed: Bitmap,
    wanted: Rows,
    k: int,
) -> tuple[Floats, Rows, Floats, bool]:
    count, cursors = len(lengths), starts.copy()
    sums, met = np.zeros(RANGE, np.float32), np.empty(RANGE, np.int64)
    scores, found = np.empty(k + SPARE + RANGE, np.float32), np.empty(k + SPARE + RANGE, np.int64)
    own, asked, held, least = np.zeros(len(wanted), np.float32), 0, 0, np.float32(0)
    for first in range(0, count, RANGE):
        last = min(first + RANGE, count)
        touched = _add_up(places, counts, lengths, cursors, ends, weights, slope, base, first, last, sums, met)
        if touched < 0:
            return scores[:0], found[:0], own, False
        while asked < len(wanted) and wanted[asked] < last:
            own[asked] = sums[wanted[asked] - first]
            asked += 1
        held = _take(met[:touched], first, sums, allowed, least, scores, found, held)
        if held > k + SPARE:
            held = _keep_best(scores, found, held, k)
            least = scores[held - 1]
    if (cursors < ends).any():
        return scores[:0], found[:0], own, False
    held = _keep_best(scores, found, held, k)
    return scores[:held].copy(), found[:held].copy(), own, True


@njit_cached()
def _add_up(
    places: U32,
    counts: U8,
    lengths: U32,
    cursors: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    weights: Floats,
    slope: np.float32,
    base: np.float32,
    first: int,
    last: int,
    sums: Floats,
    met: Rows,
) -> int:
    """Add what every word gives to the places of a range, and move its cursor behind them.

    Returns how many places were met, which `met` then holds; -1 where the postings are damaged.
    """
    touched = 0
    for term in range(len(cursors)):
        at = cursors[term]
        while at < ends[term] and places[at] < last:
            place, often = np.int64(places[at]), np.float32(counts[at])
            # A damaged file must not lead outside of the arrays.
            if place < first or often == 0:
                return -1
            if sums[place - first] == 0:
                if touched == len(met):
                    return -1
                met[touched] = place
                touched += 1
            sums[place - first] += weights[term] * often / (often + base + slope * np.float32(lengths[place]))
            at += 1
        cursors[term] = at
    return touched


@njit_cached()
def _take(
    met: Rows, first: int, sums: Floats, allowed: Bitmap, least: np.float32, scores: Floats, found: Rows, held: int
) -> int:
    """Clear the sums of the places that were met; those that may be found and could count go behind what is held."""
    for place in met:
        score = sums[place - first]
        sums[place - first] = 0
        if score > least and (len(allowed) == 0 or allowed[place >> 3] >> (place & 7) & 1):
            scores[held], found[held] = score, place
            held += 1
    return held


@njit_cached()
def _keep_best(scores: Floats, places: Rows, held: int, k: int) -> int:
    """Move the k best to the front, best first, equal ones by place. Only those are sorted: a full sort is dear."""
    if held > k:
        least = np.partition(scores[:held], held - k)[held - k]
        equal = np.sort(places[:held][scores[:held] == least])
        kept = 0
        for number in range(held):
            if scores[number] > least:
                scores[kept], places[kept] = scores[number], places[number]
                kept += 1
        scores[kept:k] = least
        places[kept:k] = equal[: k - kept]
        held = k
    by_place = np.argsort(places[:held])
    order = by_place[np.argsort(-scores[by_place], kind="mergesort")]
    scores[:held], places[:held] = scores[order], places[order]
    return held
