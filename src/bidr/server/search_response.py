"""Render search responses as JSON from columns, in half the time of a dictionary per hit (100 hits)."""

from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from bidr.server.document_lookup import DocumentColumns
from bidr.server.json_encoding import dump_json
from bidr.utils.array_types import Floats, Rows

DEFAULTS = {"word_rank": b"0"}


class HitColumns(NamedTuple):
    """DocumentColumns of the hits of a query, best first; `word_ranks` is None without lexical search."""

    scores: Floats
    candidate_ranks: Rows
    candidate_scores: Floats
    word_ranks: Rows | None
    rerank_scores: Floats | None = None


def render_body(results: list[bytes], generation: int) -> bytes:
    """Join the results of all queries into a response body."""
    return b'{"results":[%b],"generation":%d}' % (b",".join(results), generation)


def render_result(
    numbers: HitColumns, documents: DocumentColumns, timings: dict[str, float], disk: dict[str, float]
) -> bytes:
    """Render the hits of one query, its timings and its reads."""
    hits = _render_hits(numbers, documents) if documents[0] else b""
    return b'{"answers":[%b],"timings":%b,"disk":%b}' % (hits, orjson.dumps(timings), orjson.dumps(disk))


def _render_hits(numbers: HitColumns, documents: DocumentColumns) -> bytes:
    scores, ranks, code_scores, word_ranks, rerank_scores = numbers
    ids, titles, texts, attributes = documents
    columns = {
        "score": _dump_numbers(scores.astype("f8")),  # with all digits of 64 bits, as it was read from a float
        "candidate_rank": _dump_numbers(ranks),
        "candidate_score": _dump_numbers(code_scores.astype("f8")),
        "word_rank": None if word_ranks is None else _dump_numbers(word_ranks),
        "rerank_score": None if rerank_scores is None else _dump_numbers(rerank_scores.astype("f8")),
        "id": _dump_strings(ids),
        "title": None if titles is None else _dump_strings(titles),
        "text": None if texts is None else _dump_strings(texts),
        "attributes": None if attributes is None else [dump_json(value) for value in attributes],
    }
    present = {name: values for name, values in columns.items() if values is not None}
    pieces, stride = _make_template(len(ids), tuple(columns), tuple(present)).copy(), 2 * len(present) + 1
    for number, values in enumerate(present.values()):
        pieces[2 * number + 1 :: stride] = values
    return b"".join(pieces)


def _dump_numbers(column: Any) -> list[bytes]:
    return orjson.dumps(column, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")


def _dump_strings(column: list[str | None]) -> list[bytes]:
    """Dump one string per line and split at line breaks: JSON strings contain none."""
    return dump_json(column, orjson.OPT_INDENT_2)[4:-2].split(b",\n  ")


@lru_cache(maxsize=16)
def _make_template(count: int, names: tuple[str, ...], present: tuple[str, ...]) -> list[bytes]:
    """Return the constant pieces of `count` hits with empty slots for values; absent columns get their default."""
    pieces = [b""]
    for name in names:
        pieces[-1] += b',"%b":' % name.encode()
        if name in present:
            pieces += [b"", b""]
        else:
            pieces[-1] += DEFAULTS.get(name, b"null")
    first, *middle, last = pieces
    hits = [(b'{"rank":%d' % rank + first, *middle, last + b"},") for rank in range(1, count + 1)]
    hits[-1] = (*hits[-1][:-1], last + b"}")
    return [piece for hit in hits for piece in hit]
