"""Words over all parts of an index: BM25 whose document frequencies and lengths are those of the parts together."""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from bidr.data.dataset import compose_text
from bidr.data.validation import validate_query_texts
from bidr.errors import REBUILD, ConfigError, IndexFolderError
from bidr.index.documents.id_index import hash_string
from bidr.index.filters.filter_expression import Filter
from bidr.index.lexical.analyzer import tokenize_texts
from bidr.index.lexical.bm25 import WeightedTerms, compute_idf, search_postings
from bidr.index.lexical.candidate_union import CandidateUnion, unite_candidates
from bidr.index.lexical.postings import Postings, TermCounts, concat_term_counts, count_terms
from bidr.index.live.view import LiveCandidates, LiveView
from bidr.index.reader import IndexReader
from bidr.index.types import search_each
from bidr.utils.array_types import Bitmap, Floats, Rows
from bidr.utils.system import available_cpus

KEPT_TEXTS = 8_192
Lists = list[Rows]


class FoundByWords(NamedTuple):
    """The best by words: (queries, k) each, -1 and -inf where fewer share a word; scores of the places wanted."""

    scores: Floats
    places: Rows
    wanted: list[Floats]


class _Part(NamedTuple):
    postings: Postings
    start: int
    allowed: Bitmap | None
    where: Any


class LiveWords:
    """What finds documents by their words, among those that pass a filter and are not deleted."""

    def __init__(self, view: LiveView, asked: Filter | None = None) -> None:
        self.view, self.asked = view, asked
        self.threads = available_cpus()

    @cached_property
    def _parts(self) -> list[_Part]:
        view, parts = self.view, []
        for part in view.parts:
            reader = part.open.reader
            if reader.words is None:
                raise ConfigError(
                    f"{view.folder}: built without an index of words, so nothing lexical can be asked of it; "
                    "build it again with --lexical (lexical=True), or leave lexical out"
                )
            parts.append(_Part(reader.words.postings, part.start, _bits(part.allowed(self.asked)), reader.generation))
        if view.memory.documents:
            allowed = _bits(view.memory.allowed(self.asked))
            parts.append(_Part(log_postings(view), view.start, allowed, view.generation))
        return parts

    def search(self, texts: Sequence[str], k: int, wanted: Lists | None = None) -> FoundByWords:
        """The k best places for each question; with `wanted` also what BM25 gives these places of each."""
        parts, asked = self._parts, [_hashed(text) for text in tokenize_texts(list(texts))]
        wanted = wanted or [np.empty(0, dtype=np.int64)] * len(asked)
        own = [np.zeros(len(places), dtype=np.float32) for places in wanted]

        def one(number: int) -> tuple[Floats, Rows]:
            return _best(parts, asked[number], k, wanted[number], own[number])

        return FoundByWords(*search_each(len(asked), k, one, self.threads), own)


def with_words(
    code_scores: Floats,
    places: Rows,
    view: IndexReader | LiveView,
    engine: Any,
    asked: Sequence[str] | None,
    count: int,
    weight: float = 0.0,
) -> CandidateUnion:
    """The codes' candidates joined by the `count` best of each question by words, of those that the engine may find.

    weight: of BM25's score, as a share of the question's best, in what is added to the score of each.
    """
    asked = None if asked is None else validate_query_texts(asked)
    if asked is None or len(asked) != len(places):
        raise ConfigError("lexical: given vectors without words, expected the questions in words too (words=...)")
    wanted = [row[row >= 0] for row in places] if weight else None
    by_words = words_of(view, engine).search(asked, min(count, engine.count), wanted)
    found = unite_candidates(code_scores, places, by_words.places)
    for number, own in enumerate(by_words.wanted if weight else ()):
        listed, share = found.word_ranks[number] > 0, found.added[number]
        share[: len(own)] = own
        share[listed] = by_words.scores[number, found.word_ranks[number, listed] - 1]
        share *= weight / max(float(by_words.scores[number].max(initial=0)), 1e-9)
    return found


def words_of(view: IndexReader | LiveView, engine: Any) -> LiveWords:
    """What finds documents of a view by words, among those that its candidate engine may find."""
    if not isinstance(engine, LiveCandidates):
        assert isinstance(view, IndexReader)
        return LiveWords(LiveView.of(view))
    # An engine without a filter lasts as long as its view: which documents are deleted is then told once.
    made: LiveWords = engine.__dict__.setdefault("_words", LiveWords(engine.view, engine.asked))
    return made


def log_postings(view: LiveView) -> Postings:
    """The words of the documents in the log, counted once a text."""
    made: Postings | None = view.__dict__.get("_log_postings")
    if made is None:
        first = view.parts[0].open.reader.words
        assert first is not None
        texts = [compose_text(document, first.titles) for document in view.memory.documents]
        made = view.__dict__["_log_postings"] = Postings.from_counts(
            concat_term_counts([_counted(text) for text in texts])
        )
    return made


def _bits(allowed: Any) -> Bitmap | None:
    return None if allowed is None else np.packbits(allowed, bitorder="little")


@lru_cache(maxsize=KEPT_TEXTS)
def _counted(text: str) -> TermCounts:
    return count_terms([text])


def _hashed(asked: list[str]) -> tuple[Any, Floats]:
    """Words of a question, each once, and how often it is asked for."""
    times = Counter(map(hash_string, asked))
    return np.array(list(times), dtype=np.uint64), np.array(list(times.values()), dtype=np.float32)


def _best(parts: list[_Part], asked: tuple[Any, Floats], k: int, wanted: Rows, own: Floats) -> tuple[Floats, Rows]:
    hashes, times = asked
    documents = sum(len(part.postings.lengths) for part in parts)
    mean_length = max(sum(part.postings.total_terms for part in parts) / documents, 1e-9)
    where = [part.postings.find(hashes) for part in parts]
    for part, (starts, ends) in zip(parts, where, strict=True):
        if not part.postings.check_ranges(starts, ends):
            raise _no_writers(part)
    weights = times * compute_idf(documents, np.sum([ends - starts for starts, ends in where], axis=0))
    scores, places = [np.full(k, -np.inf, np.float32)], [np.full(k, -1, np.int64)]
    for part, (starts, ends) in zip(parts, where, strict=True):
        here = (wanted >= part.start) & (wanted < part.start + len(part.postings.lengths))
        query = WeightedTerms(starts, ends, weights)
        found = search_postings(part.postings, query, mean_length, k, part.allowed, wanted[here] - part.start)
        if not found:
            raise _no_writers(part)
        scores.append(found[0])
        places.append(found[1] + part.start)
        own[here] = found[2]
    every, names = np.concatenate(scores), np.concatenate(places)
    best = np.lexsort((names, -every))[:k]
    return every[best], names[best]


def _no_writers(part: _Part) -> IndexFolderError:
    return IndexFolderError(f"{part.where}: postings of words that no writer made; damaged; {REBUILD}")
