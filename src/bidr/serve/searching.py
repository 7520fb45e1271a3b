"""Searching on threads: the event loop stays free, and a request whose time is over stops between its queries."""

import time
from typing import Any

import numpy as np
import orjson

from bidr.answers import STEPS, QueryVectors
from bidr.codes.codebooks import Floats
from bidr.index.candidates import Rows
from bidr.search import Searcher
from bidr.serve.asked import Asked
from bidr.serve.errors import Late
from bidr.serve.served import Serving

AT_ONCE = 8
RANKS = ("rank", "score", "candidate_rank", "candidate_score", "word_rank")
Found = tuple[Rows, Floats, Rows, Floats, Rows, dict[str, float]]


def search(serving: Serving, asked: Asked, queries: QueryVectors, deadline: float, encode: float) -> "Searched":
    """The answer to a request as bytes, and what it took. `deadline` is of time.monotonic(); times are milliseconds."""
    results: list[dict[str, Any]] = []
    totals = dict.fromkeys(STEPS, 0.0) | {"encode": encode}
    share = encode / asked.queries
    for start in range(0, asked.queries, AT_ONCE):
        if time.monotonic() > deadline:
            raise Late(
                "the time for this request is over",
                given=f"{asked.queries} queries",
                hint="ask fewer queries at once, with fewer candidates",
            )
        part = QueryVectors(*(side[start : start + AT_ONCE] for side in queries))
        if asked.codes_only:
            found = _by_codes(serving, asked, part)
        else:
            words = asked.texts[start : start + AT_ONCE] if asked.texts is not None else None
            found = _by_vectors(serving, asked, part, words)
        for step in STEPS[1:]:
            totals[step] += found[-1][step]
        timings = {step: round(took / len(part.codes), 4) for step, took in found[-1].items()}
        timings["encode"] = round(share, 4)
        timings["total"] = round(sum(timings.values()), 4)
        results += [_result(serving, asked, found, number, timings) for number in range(len(part.codes))]
    return Searched(orjson.dumps({"results": results, "generation": serving.generation}), totals)


class Searched:
    """A rendered answer, and the milliseconds of each step."""

    __slots__ = ("body", "steps")

    def __init__(self, body: bytes, steps: dict[str, float]) -> None:
        self.body, self.steps = body, steps


def _by_vectors(serving: Serving, asked: Asked, queries: QueryVectors, words: list[str] | None) -> Found:
    searcher = Searcher(serving.view, lexical=asked.lexical, lexical_weight=asked.lexical_weight)
    ranking = searcher.search_vectors(queries, asked.k, asked.candidates, filter=asked.filter, words=words)
    return (
        ranking.rows,
        ranking.scores,
        ranking.candidate_ranks,
        ranking.candidate_scores,
        np.zeros_like(ranking.rows) if ranking.word_ranks is None else ranking.word_ranks,
        ranking.timings._asdict(),
    )


def _by_codes(serving: Serving, asked: Asked, queries: QueryVectors) -> Found:
    """The codes' own ranking: nothing is read from disk."""
    started = time.perf_counter()
    view = serving.view
    engine = view.candidates if asked.filter is None else view.filtered(asked.filter)
    scores, places = engine.search(queries.codes, min(asked.k, engine.count))
    rows = view.rows_of(places)
    ranks = np.broadcast_to(np.arange(1, rows.shape[1] + 1), rows.shape)
    took = 1000 * (time.perf_counter() - started)
    return rows, scores, ranks, scores, np.zeros_like(rows), dict.fromkeys(STEPS, 0.0) | {"candidates": took}


def _result(serving: Serving, asked: Asked, found: Found, number: int, timings: dict[str, float]) -> dict[str, Any]:
    rows = found[0][number]
    there = rows[rows >= 0]
    numbers = zip(*(column[number].tolist() for column in found[1:5]), strict=True)
    documents = serving.finder.fields(there, texts=asked.text) if len(there) else []
    return {
        "answers": [
            dict(zip(RANKS, (rank, *own), strict=True)) | document
            for rank, (document, own) in enumerate(zip(documents, numbers, strict=False), 1)
        ],
        "timings": timings,
    }
