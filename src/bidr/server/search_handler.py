"""Searching on threads: the event loop stays free, and a request whose time is over stops between its queries."""

import time
from typing import NamedTuple

import numpy as np

from bidr.search.types import QueryVectors, Timings
from bidr.server.errors import DEADLINE_MESSAGE, DeadlineExceeded
from bidr.server.index_holder import IndexSnapshot
from bidr.server.response import HitColumns, render_body, render_result
from bidr.server.search_request import SearchRequest
from bidr.utils.array_types import Floats, Rows
from bidr.utils.deadline import deadline_scope

AT_ONCE = 8


class SearchOutcome(NamedTuple):
    """A rendered answer, the milliseconds of each step, and how many vectors were read."""

    body: bytes
    steps: Timings
    reads: int


class BatchHits(NamedTuple):
    """Answers to some queries, (queries, k) each; the words' ranks are None where they were not asked."""

    rows: Rows
    scores: Floats
    candidate_ranks: Rows
    candidate_scores: Floats
    word_ranks: Rows | None
    timings: Timings
    reads: int = 0
    """Candidates that were ranked by their vectors."""


def search(
    serving: IndexSnapshot, asked: SearchRequest, queries: QueryVectors, deadline: float, encode: float
) -> SearchOutcome:
    """The answer to a request as bytes, and what it took. `deadline` is of time.monotonic(); times are milliseconds."""
    results: list[bytes] = []
    count, totals, vectors = asked.queries, Timings(encode), 0
    for start in range(0, count, AT_ONCE):
        if time.monotonic() > deadline:
            raise DeadlineExceeded(
                DEADLINE_MESSAGE,
                given=f"{count} queries",
                hint="ask fewer queries at once, with fewer candidates",
            )
        part = QueryVectors(queries.codes[start : start + AT_ONCE], queries.vectors[start : start + AT_ONCE])
        with deadline_scope(deadline):
            found = _found(serving, asked, part, asked.texts[start : start + AT_ONCE] if asked.texts else None)
        _, candidates, reads, ranking = found.timings
        totals = Timings(encode, totals.candidates + candidates, totals.reads + reads, totals.ranking + ranking)
        vectors += found.reads
        timings = _shares(encode / count, found.timings, len(part.codes))
        results += [_result(serving, asked, found, number, timings) for number in range(len(part.codes))]
    return SearchOutcome(render_body(results, serving.generation), totals, vectors)


def _shares(encode: float, steps: Timings, queries: int) -> dict[str, float]:
    """The times of one query out of several that were searched together."""
    _, candidates, reads, ranking = (step / queries for step in steps)
    return {
        "encode": round(encode, 4),
        "candidates": round(candidates, 4),
        "reads": round(reads, 4),
        "ranking": round(ranking, 4),
        "total": round(encode + candidates + reads + ranking, 4),
    }


def _found(serving: IndexSnapshot, asked: SearchRequest, queries: QueryVectors, words: list[str] | None) -> BatchHits:
    found = serving.searcher.search_vectors(
        queries,
        asked.k,
        asked.candidates,
        filter=asked.filter,
        words=words,
        codes_only=asked.codes_only,
        lexical=asked.lexical,
        lexical_weight=asked.lexical_weight,
    )
    ranks = found.candidate_ranks
    places = found.candidate_positions
    if asked.codes_only:
        reads = 0
    elif len(places) == 1 and places.size and places[0, -1] >= 0:  # those that were not found stand at the end
        reads = places.size
    else:
        reads = int(np.count_nonzero(places >= 0))
    return BatchHits(found.rows, found.scores, ranks, found.candidate_scores, found.word_ranks, found.timings, reads)


def _result(
    serving: IndexSnapshot, asked: SearchRequest, found: BatchHits, number: int, timings: dict[str, float]
) -> bytes:
    rows = found.rows[number]
    if len(rows) and rows[-1] < 0:
        rows = rows[rows >= 0]  # those that were not found stand at the end
    here = (number, slice(len(rows)))
    words = None if found.word_ranks is None else found.word_ranks[here]
    numbers = HitColumns(found.scores[here], found.candidate_ranks[here], found.candidate_scores[here], words)
    return render_result(numbers, serving.finder.columns(rows, texts=asked.text), timings)
