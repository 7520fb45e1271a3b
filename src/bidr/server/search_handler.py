"""Executes search requests on worker threads, in batches, with a deadline check between batches."""

import time
from typing import Any, NamedTuple

import numpy as np

from bidr.search.types import QueryVectors, Timings
from bidr.server.errors import DEADLINE_MESSAGE, DeadlineExceeded, NotFound
from bidr.server.index_holder import IndexSnapshot
from bidr.server.search_request import SearchRequest
from bidr.server.search_response import HitColumns, render_body, render_result
from bidr.utils.array_types import Floats, Rows
from bidr.utils.deadline import deadline_scope

QUERIES_PER_BATCH = 8


class SearchOutcome(NamedTuple):
    """A rendered response body, the milliseconds of each step, and the number of vectors read."""

    body: bytes
    steps: Timings
    reads: int


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


def search(
    snapshot: IndexSnapshot, request: SearchRequest, queries: QueryVectors, deadline: float, encode_ms: float
) -> SearchOutcome:
    """Search and render the response body.

    Args:
        deadline: in time.monotonic(); raises DeadlineExceeded when it has passed.
        encode_ms: milliseconds that encoding the queries took, reported in the timings.
    """
    results: list[bytes] = []
    count, totals, vector_reads = request.queries, Timings(encode_ms), 0
    step = count if request.is_combined else QUERIES_PER_BATCH
    for start in range(0, count, step):
        if time.monotonic() > deadline:
            raise DeadlineExceeded(
                DEADLINE_MESSAGE,
                given=f"{count} queries",
                hint="send fewer queries at once, with fewer candidates",
            )
        batch = slice(start, start + step)
        batch_queries = QueryVectors(queries.codes[batch], queries.vectors[batch])
        with deadline_scope(deadline):
            hits = _search_batch(snapshot, request, batch_queries, request.texts[batch] if request.texts else None)
        _, candidates, reads, ranking = hits.timings
        totals = Timings(encode_ms, totals.candidates + candidates, totals.reads + reads, totals.ranking + ranking)
        vector_reads += hits.reads
        timings = _divide_timings(encode_ms / count, hits.timings, len(hits.rows))
        results += [_render_query(snapshot, request, hits, number, timings) for number in range(len(hits.rows))]
    return SearchOutcome(render_body(results, snapshot.generation), totals, vector_reads)


def read_document_query(snapshot: IndexSnapshot, ids: list[str], deadline: float) -> QueryVectors:
    """Return the query for more documents like some, from their stored vectors."""
    from bidr.pipeline.open import read_query_vectors

    with deadline_scope(deadline):
        rows = snapshot.view.find_rows(ids)
        missing = [doc_id for doc_id in ids if doc_id not in rows]
        if missing:
            raise NotFound(
                "like: no such documents",
                given=", ".join(missing[:5]),
                expected="ids of documents in the index",
                hint="POST /v1/documents/list lists them",
            )
        return read_query_vectors(snapshot.view, np.fromiter(rows.values(), dtype=np.int64), snapshot.model)


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


def _search_batch(
    snapshot: IndexSnapshot, request: SearchRequest, queries: QueryVectors, texts: list[str] | None
) -> BatchHits:
    shaping = request.shaping._asdict() if request.shaping else {}
    ranking = snapshot.searcher.search_vectors(
        queries,
        request.k + len(request.like or ()),
        request.candidates,
        filter=request.filter,
        words=texts,
        codes_only=request.codes_only,
        lexical=request.lexical,
        lexical_weight=request.lexical_weight,
        **shaping,
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
    )


def _render_query(
    snapshot: IndexSnapshot, request: SearchRequest, hits: BatchHits, number: int, timings: dict[str, float]
) -> bytes:
    rows = hits.rows[number]
    if len(rows) and rows[-1] < 0:
        rows = rows[rows >= 0]  # missing hits (-1) are at the end
    columns_of_hits: Any = slice(len(rows))
    if request.like is not None:  # the documents themselves are no hits
        excluded = list(snapshot.view.find_rows(request.like).values())
        columns_of_hits = np.flatnonzero(~np.isin(rows, excluded))[: request.k]
        rows = rows[columns_of_hits]
    cells = (number, columns_of_hits)
    word_ranks = None if hits.word_ranks is None else hits.word_ranks[cells]
    columns = HitColumns(hits.scores[cells], hits.candidate_ranks[cells], hits.candidate_scores[cells], word_ranks)
    return render_result(columns, snapshot.lookup.get_columns(rows, texts=request.text), timings)
