"""Answers as JSON, put together from columns: a hundred take half of the time of a dictionary for each."""

from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from bidr.server.document_lookup import Columns
from bidr.server.json_encoding import dump_json
from bidr.utils.array_types import Floats, Rows

NOT_GIVEN = {"word_rank": b"0"}


class HitColumns(NamedTuple):
    """What is known of the answers to a query, best first; the words' ranks are None where they were not asked."""

    scores: Floats
    candidate_ranks: Rows
    candidate_scores: Floats
    word_ranks: Rows | None


def render_body(results: list[bytes], generation: int) -> bytes:
    """The answer to a request, of the results of its queries."""
    return b'{"results":[%b],"generation":%d}' % (b",".join(results), generation)


def render_result(numbers: HitColumns, documents: Columns, timings: dict[str, float]) -> bytes:
    """The result of one query."""
    answers = _answers(numbers, documents) if documents[0] else b""
    return b'{"answers":[%b],"timings":%b}' % (answers, orjson.dumps(timings))


def _answers(numbers: HitColumns, documents: Columns) -> bytes:
    scores, ranks, code_scores, word_ranks = numbers
    ids, titles, texts, attributes = documents
    columns = {
        "score": _numbers(scores.astype("f8")),  # with all digits of 64 bits, as it was read from a float
        "candidate_rank": _numbers(ranks),
        "candidate_score": _numbers(code_scores.astype("f8")),
        "word_rank": None if word_ranks is None else _numbers(word_ranks),
        "id": _strings(ids),
        "title": None if titles is None else _strings(titles),
        "text": None if texts is None else _strings(texts),
        "attributes": None if attributes is None else [dump_json(each) for each in attributes],
    }
    given = {name: values for name, values in columns.items() if values is not None}
    parts, each = _frame(len(ids), tuple(columns), tuple(given)).copy(), 2 * len(given) + 1
    for number, values in enumerate(given.values()):
        parts[2 * number + 1 :: each] = values
    return b"".join(parts)


def _numbers(column: Any) -> list[bytes]:
    return orjson.dumps(column, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")


def _strings(column: list[str | None]) -> list[bytes]:
    """Each on a line of its own, to be parted there: within a string of JSON there is no line break."""
    return dump_json(column, orjson.OPT_INDENT_2)[4:-2].split(b",\n  ")


@lru_cache(maxsize=16)
def _frame(count: int, names: tuple[str, ...], given: tuple[str, ...]) -> list[bytes]:
    """What stands before and behind the values of so many answers, and room for these; what is not given is filled."""
    pieces = [b""]
    for name in names:
        pieces[-1] += b',"%b":' % name.encode()
        if name in given:
            pieces += [b"", b""]
        else:
            pieces[-1] += NOT_GIVEN.get(name, b"null")
    first, *middle, last = pieces
    frame = [(b'{"rank":%d' % rank + first, *middle, last + b"},") for rank in range(1, count + 1)]
    frame[-1] = (*frame[-1][:-1], last + b"}")
    return [piece for each in frame for piece in each]
