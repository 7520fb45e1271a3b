"""Searching on threads: the event loop stays free, and a request whose time is over stops between its queries."""

import time
from typing import Any

import numpy as np
import orjson

from bidr.codes.codebooks import Floats
from bidr.index.candidates import Rows
from bidr.search import STEPS, QueryVectors, Searcher
from bidr.serve.asked import Asked
from bidr.serve.errors import Late
from bidr.serve.served import Serving

AT_ONCE = 8
Found = tuple[Rows, Floats, Rows, Floats, dict[str, float]]


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
        found = _by_codes(serving, asked, part) if asked.codes_only else _by_vectors(serving, asked, part)
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


def _by_vectors(serving: Serving, asked: Asked, queries: QueryVectors) -> Found:
    ranking = Searcher(serving.view).search_vectors(queries, asked.k, asked.candidates, filter=asked.filter)
    return (
        ranking.rows,
        ranking.scores,
        ranking.candidate_ranks,
        ranking.candidate_scores,
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
    return rows, scores, ranks, scores, dict.fromkeys(STEPS, 0.0) | {"candidates": took}


def _result(serving: Serving, asked: Asked, found: Found, number: int, timings: dict[str, float]) -> dict[str, Any]:
    rows = found[0][number]
    there = rows[rows >= 0]
    numbers = zip(*(column[number].tolist() for column in found[1:4]), strict=True)
    documents = serving.finder.fields(there, texts=asked.text) if len(there) else []
    return {
        "answers": [
            {"rank": rank, "score": score, "candidate_rank": candidate, "candidate_score": by_codes, **document}
            for rank, (document, (score, candidate, by_codes)) in enumerate(zip(documents, numbers, strict=False), 1)
        ],
        "timings": timings,
    }
