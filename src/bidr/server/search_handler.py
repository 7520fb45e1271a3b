"""Executes search requests on worker threads, in batches, with a deadline check between batches."""

import time
from typing import Any, NamedTuple

import numpy as np

from bidr.index.vectors import ReadStats
from bidr.search.cross_encoder import CrossEncoder, compose_passage, order_by_scores
from bidr.search.types import QueryVectors, Timings
from bidr.server.errors import DEADLINE_MESSAGE, DeadlineExceeded, InvalidRequest, NotFound
from bidr.server.index_holder import IndexSnapshot
from bidr.server.search_request import SearchRequest
from bidr.server.search_response import HitColumns, render_body, render_result
from bidr.utils.array_types import Floats, Rows
from bidr.utils.deadline import deadline_scope

QUERIES_PER_BATCH = 8
RERANK_SHARE = 0.8
"""Share of the time that a request has left which the cross-encoder may take."""


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
    snapshot: IndexSnapshot,
    request: SearchRequest,
    queries: QueryVectors,
    deadline: float,
    encode_ms: float,
    reranker: CrossEncoder | None = None,
) -> SearchOutcome:
    """Search and render the response body.

    Args:
        deadline: in time.monotonic(); raises DeadlineExceeded when it has passed.
        encode_ms: milliseconds that encoding the queries took, reported in the timings.
        reranker: orders hits if the request says so.
    """
    results: list[bytes] = []
    count, totals, vector_reads, read_stats = request.queries, Timings(encode_ms), 0, ReadStats()
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
        read_stats = read_stats.plus(hits.read_stats)
        timings = _divide_timings(encode_ms / count, hits.timings, len(hits.rows))
        if request.rerank and reranker is not None and request.texts is not None:
            results += [
                _render_reranked(snapshot, request, hits, number, timings, reranker, text, deadline)
                for number, text in enumerate(request.texts[batch])
            ]
            continue
        results += [_render_query(snapshot, request, hits, number, timings) for number in range(len(hits.rows))]
    return SearchOutcome(render_body(results, snapshot.generation), totals, vector_reads, read_stats)


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


def _divide_reads(stats: ReadStats, queries: int) -> dict[str, float]:
    """Divide the reads of a batch evenly among its queries."""
    names = ("vectors", "hits", "reads", "bytes")
    return {name: round(count / queries, 1) for name, count in zip(names, stats, strict=True)}


def _search_batch(
    snapshot: IndexSnapshot, request: SearchRequest, queries: QueryVectors, texts: list[str] | None
) -> BatchHits:
    shaping, k = request.shaping._asdict() if request.shaping else {}, request.k + len(request.like or ())
    if request.rerank:
        k = request.end
        shaping.pop("offset", None)  # of what the cross-encoder has ordered
    ranking = snapshot.searcher.search_vectors(
        queries,
        k,
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
        ranking.read_stats,
    )


def _render_reranked(
    snapshot: IndexSnapshot,
    request: SearchRequest,
    hits: BatchHits,
    number: int,
    timings: dict[str, float],
    reranker: CrossEncoder,
    query: str,
    deadline: float,
) -> bytes:
    """Order the best hits by a cross-encoder for most of the time that is left, and render the page."""
    rows = hits.rows[number]
    rows = rows[rows >= 0]
    started = time.monotonic()
    documents = snapshot.lookup.get_columns(rows[: request.rerank], texts=True)
    if documents[1] is None and documents[2] is None and len(rows):
        raise InvalidRequest(
            "rerank: the index has no texts", given=request.rerank, expected="0", hint="leave it out, or store texts"
        )
    titles, texts = (column or [None] * len(documents[0]) for column in documents[1:3])
    passages = [compose_passage(title, text) for title, text in zip(titles, texts, strict=True)]
    scores = reranker.score(query, passages, started + RERANK_SHARE * (deadline - started))
    order = np.array(order_by_scores(scores)[0] + list(range(len(passages), len(rows))), dtype=np.int64)
    offset = request.shaping.offset if request.shaping else 0
    page = order[offset : offset + request.k]
    rerank_scores = np.append(scores, np.full(len(rows) - len(scores), np.nan, np.float32))[page]
    word_ranks = None if hits.word_ranks is None else hits.word_ranks[number, page]
    cells = (number, page)
    columns = HitColumns(
        hits.scores[cells], hits.candidate_ranks[cells], hits.candidate_scores[cells], word_ranks, rerank_scores
    )
    timings = timings | {"rerank": round(1000 * (time.monotonic() - started), 4)}
    disk = _divide_reads(hits.read_stats, len(hits.rows))
    return render_result(columns, snapshot.lookup.get_columns(rows[page], texts=request.text), timings, disk)


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
    disk = _divide_reads(hits.read_stats, len(hits.rows))
    return render_result(columns, snapshot.lookup.get_columns(rows, texts=request.text), timings, disk)
