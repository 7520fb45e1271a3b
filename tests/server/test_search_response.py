"""Answers put together from columns are the bytes that a dictionary for each would give."""

from typing import Any

import numpy as np
import orjson
import pytest

from bidr.server.search_response import HitColumns, render_body, render_result

HARD = ['",\n  "', "\\", "é\u2028", ",", "", "null", 'tab\tquote"', "]}"]


def as_dictionaries(numbers: HitColumns, documents: Any) -> list[dict[str, Any]]:
    scores, ranks, code_scores, word_ranks, rerank = (None if each is None else each.tolist() for each in numbers)
    ids, titles, texts, attributes = documents
    return [
        {
            "rank": place + 1,
            "score": scores[place],
            "candidate_rank": ranks[place],
            "candidate_score": code_scores[place],
            "word_rank": word_ranks[place] if word_ranks else 0,
            "rerank_score": rerank[place] if rerank else None,
            "id": ids[place],
            "title": titles[place] if titles else None,
            "text": texts[place] if texts else None,
            "attributes": attributes[place] if attributes else None,
        }
        for place in range(len(ids))
    ]


@pytest.mark.parametrize("count", [0, 1, 2, 8])
@pytest.mark.parametrize("given", range(0, 16, 3))
def test_the_same_bytes_as_dictionaries(count: int, given: int) -> None:
    random = np.random.default_rng(count)
    scores, code_scores = random.standard_normal((2, count)).astype(np.float32)
    words = random.integers(0, 9, count) if given & 1 else None
    rerank = random.standard_normal(count).astype(np.float32) if given & 8 else None
    numbers = HitColumns(scores, random.integers(1, 1_000, count), code_scores, words, rerank)
    texts = [None, *HARD][:count] if given & 2 else None
    attributes = [None, {"a": [1, "x,\n"], "b": {"c": 0.1}}, *HARD][:count] if given & 4 else None
    documents = (HARD[:count], texts, texts, attributes)
    timings = {"encode": 0.0, "total": 0.1234}
    body = render_body([render_result(numbers, documents, timings, {"reads": 2.5})] * 2, 7)
    one = {"answers": as_dictionaries(numbers, documents), "timings": timings, "disk": {"reads": 2.5}}
    assert body == orjson.dumps({"results": [one, one], "generation": 7})
