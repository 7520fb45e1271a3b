"""Executes search requests on worker threads, in batches, with a deadline check between batches."""

import time
from typing import NamedTuple

import numpy as np

from bidr.index.vectors import ReadStats
from bidr.search.types import QueryVectors, Timings
from bidr.server.errors import DEADLINE_MESSAGE, DeadlineExceeded
from bidr.server.index_holder import IndexSnapshot
from bidr.server.search_request import SearchRequest
from bidr.server.search_response import HitColumns, render_body, render_result
from bidr.utils.array_types import Floats, Rows
from bidr.utils.deadline import deadline_scope

QUERIES_PER_BATCH = 8


class SearchOutcome(NamedTuple):
    """A rendered response body, the milliseconds of each step, the number of vectors read, and what reading took."""

    body: bytes
    steps: Timings
    reads: int
    read_stats: ReadStats


class BatchHits(NamedTuple):
    """Hits of a batch of queries, (queries, k) each; `word_ranks` is None without lexical search."""

    rows: Rows
    scores: Floats
    candidate_ranks: Rows
    candidate_scores: Floats
    word_ranks: Rows | None
    timings: Timings
    reads: int = 0
    """Candidates that were ranked by their vectors."""
    read_stats: ReadStats = ReadStats()


def search(
    snapshot: IndexSnapshot, request: SearchRequest, queries: QueryVectors, deadline: float, encode_ms: float
) -> SearchOutcome:
    """Search and render the response body.

    Args:
        deadline: in time.monotonic(); raises DeadlineExceeded when it has passed.
        encode_ms: milliseconds that encoding the queries took, reported in the timings.
    """
    results: list[bytes] = []
    count, totals, vector_reads, read_stats = request.queries, Timings(encode_ms), 0, ReadStats()
    for start in range(0, count, QUERIES_PER_BATCH):
        if time.monotonic() > deadline:
            raise DeadlineExceeded(
                DEADLINE_MESSAGE,
                given=f"{count} queries",
                hint="send fewer queries at once, with fewer candidates",
            )
        batch = slice(start, start + QUERIES_PER_BATCH)
        batch_queries = QueryVectors(queries.codes[batch], queries.vectors[batch])
        with deadline_scope(deadline):
            hits = _search_batch(snapshot, request, batch_queries, request.texts[batch] if request.texts else None)
        _, candidates, reads, ranking = hits.timings
        totals = Timings(encode_ms, totals.candidates + candidates, totals.reads + reads, totals.ranking + ranking)
        vector_reads += hits.reads
        read_stats = read_stats.plus(hits.read_stats)
        timings = _divide_timings(encode_ms / count, hits.timings, len(batch_queries.codes))
        results += [
            _render_query(snapshot, request, hits, number, timings) for number in range(len(batch_queries.codes))
        ]
    return SearchOutcome(render_body(results, snapshot.generation), totals, vector_reads, read_stats)


def _divide_timings(encode_ms: float, steps: Timings, queries: int) -> dict[str, float]:
    """Divide the times of a batch evenly among its queries."""
    _, candidates, reads, ranking = (step / queries for step in steps)
    return {
        "encode": round(encode_ms, 4),
        "candidates": round(candidates, 4),
        "reads": round(reads, 4),
        "ranking": round(ranking, 4),
        "total": round(encode_ms + candidates + reads + ranking, 4),
    }


def _divide_reads(stats: ReadStats, queries: int) -> dict[str, float]:
    """Divide the reads of a batch evenly among its queries."""
    names = ("vectors", "hits", "reads", "bytes")
    return {name: round(count / queries, 1) for name, count in zip(names, stats, strict=True)}


def _search_batch(
    snapshot: IndexSnapshot, request: SearchRequest, queries: QueryVectors, texts: list[str] | None
) -> BatchHits:
    ranking = snapshot.searcher.search_vectors(
        queries,
        request.k,
        request.candidates,
        filter=request.filter,
        words=texts,
        codes_only=request.codes_only,
        lexical=request.lexical,
        lexical_weight=request.lexical_weight,
    )
    positions = ranking.candidate_positions
    if request.codes_only:
        reads = 0
    elif len(positions) == 1 and positions.size and positions[0, -1] >= 0:  # missing candidates (-1) are at the end
        reads = positions.size
    else:
        reads = int(np.count_nonzero(positions >= 0))
    return BatchHits(
        ranking.rows,
        ranking.scores,
        ranking.candidate_ranks,
        ranking.candidate_scores,
        ranking.word_ranks,
        ranking.timings,
        reads,
        ranking.read_stats,
    )


def _render_query(
    snapshot: IndexSnapshot, request: SearchRequest, hits: BatchHits, number: int, timings: dict[str, float]
) -> bytes:
    rows = hits.rows[number]
    if len(rows) and rows[-1] < 0:
        rows = rows[rows >= 0]  # missing hits (-1) are at the end
    cells = (number, slice(len(rows)))
    word_ranks = None if hits.word_ranks is None else hits.word_ranks[cells]
    columns = HitColumns(hits.scores[cells], hits.candidate_ranks[cells], hits.candidate_scores[cells], word_ranks)
    disk = _divide_reads(hits.read_stats, len(hits.rows))
    return render_result(columns, snapshot.lookup.get_columns(rows, texts=request.text), timings, disk)
