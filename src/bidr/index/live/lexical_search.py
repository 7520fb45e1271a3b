"""BM25 search over all segments and the memtable of an index."""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bidr.data.dataset import compose_text
from bidr.data.validation import validate_query_texts
from bidr.errors import REBUILD, ConfigError, IndexFolderError
from bidr.index.candidate_source import search_each
from bidr.index.filters.filter_expression import Filter
from bidr.index.lexical.analyzer import tokenize_texts
from bidr.index.lexical.bm25 import WeightedTerms, compute_idf, search_postings
from bidr.index.lexical.candidate_union import CandidateUnion, unite_candidates
from bidr.index.lexical.postings import Postings, TermCounts, concat_term_counts, count_terms, hash_terms
from bidr.index.live.view import LiveCandidates, LiveView
from bidr.index.reader import IndexReader
from bidr.utils.array_types import Bitmap, Floats, Rows
from bidr.utils.cpu_and_heap import count_available_cpus

CACHED_TEXTS = 8_192


def has_lexical_index(view: LiveView) -> bool:
    """Return whether all segments have a BM25 index."""
    return all(segment.reader.words is not None for segment in view.segments)


class LexicalHits(NamedTuple):
    """BM25 results: scores and positions of the top k, (queries, k), padded with -inf and -1.

    candidate_scores: scores of the candidates that the caller gave, by query.
    """

    scores: Floats
    places: Rows
    candidate_scores: list[Floats]


class _SegmentPostings(NamedTuple):
    postings: Postings
    start: int
    allowed: Bitmap | None
    folder: Path


class LiveLexicalSearcher:
    """BM25 search over all segments, among documents that match a filter and are not deleted.

    Document frequencies and lengths are those of all segments together.
    """

    def __init__(self, view: LiveView, condition: Filter | None = None) -> None:
        self.view, self.condition = view, condition
        self.threads = count_available_cpus()

    @cached_property
    def _segments(self) -> list[_SegmentPostings]:
        view, segments = self.view, []
        for segment in view.segments:
            reader = segment.reader
            if reader.words is None:
                raise ConfigError(
                    f"{view.folder}: built without lexical index, so lexical search is not possible; "
                    "build it again with --lexical (lexical=True), or leave lexical out"
                )
            allowed = _pack_allowed(segment.get_mask(self.condition))
            segments.append(_SegmentPostings(reader.words.postings, segment.start, allowed, reader.generation))
        if view.memtable.documents:
            allowed = _pack_allowed(view.memtable.get_mask(self.condition))
            segments.append(
                _SegmentPostings(build_memtable_postings(view), view.memtable_start, allowed, view.generation)
            )
        return segments

    def search(self, texts: Sequence[str], k: int, candidates: Sequence[Rows] | None = None) -> LexicalHits:
        """Return the top `k` of each query, and the scores of its `candidates` (positions) if given."""
        segments, queries = self._segments, [hash_terms(terms) for terms in tokenize_texts(list(texts))]
        candidates = candidates or [np.empty(0, dtype=np.int64)] * len(queries)
        candidate_scores = [np.zeros(len(places), dtype=np.float32) for places in candidates]

        def search_one(number: int) -> tuple[Floats, Rows]:
            return _search_query(segments, queries[number], k, candidates[number], candidate_scores[number])

        return LexicalHits(*search_each(len(queries), k, search_one, self.threads), candidate_scores)


class MemoryLexicalSearcher(LiveLexicalSearcher):
    """BM25 search over postings in RAM."""

    def __init__(self, postings: Postings) -> None:
        self._postings = postings
        self.threads = count_available_cpus()

    @cached_property
    def _segments(self) -> list[_SegmentPostings]:
        return [_SegmentPostings(self._postings, 0, None, Path("postings in RAM"))]


def add_lexical_candidates(
    code_scores: Floats,
    places: Rows,
    view: IndexReader | LiveView,
    engine: Any,
    texts: Sequence[str] | None,
    count: int,
    weight: float = 0.0,
) -> CandidateUnion:
    """Unite candidates with the BM25 top `count` of each query, among documents that the engine may return.

    weight: weight of the BM25 score, relative to the best of the query, in the added score.
    """
    texts = None if texts is None else validate_query_texts(texts)
    if texts is None or len(texts) != len(places):
        raise ConfigError("lexical: given vectors without words, expected the questions in words too (words=...)")
    candidates = [row[row >= 0] for row in places] if weight else None
    hits = get_lexical_searcher(view, engine).search(texts, min(count, engine.count), candidates)
    return unite_lexical_hits(code_scores, places, hits, weight)


def unite_lexical_hits(code_scores: Floats, places: Rows, hits: LexicalHits, weight: float) -> CandidateUnion:
    """Unite candidates with BM25 hits, which hold the scores of the candidates unless the weight is 0."""
    union = unite_candidates(code_scores, places, hits.places)
    for number, scores in enumerate(hits.candidate_scores if weight else ()):
        is_hit, added = union.word_ranks[number] > 0, union.added[number]
        added[: len(scores)] = scores
        added[is_hit] = hits.scores[number, union.word_ranks[number, is_hit] - 1]
        added *= weight / max(float(hits.scores[number].max(initial=0)), 1e-9)
    return union


def get_lexical_searcher(view: IndexReader | LiveView, engine: Any) -> LiveLexicalSearcher:
    """Return the lexical searcher over the documents that a candidate engine may return."""
    if not isinstance(engine, LiveCandidates):
        assert isinstance(view, IndexReader)
        return LiveLexicalSearcher(LiveView.from_reader(view))
    # Kept on the engine: deleted documents are looked up once for all searches of it.
    searcher: LiveLexicalSearcher = engine.__dict__.setdefault(
        "_lexical_searcher", LiveLexicalSearcher(engine.view, engine.condition)
    )
    return searcher


def build_memtable_postings(view: LiveView) -> Postings:
    """Build postings of the memtable; cached by view, and term counts by text."""
    postings: Postings | None = view.__dict__.get("_memtable_postings")
    if postings is None:
        lexical = view.segments[0].reader.words
        assert lexical is not None
        texts = [compose_text(document, lexical.titles) for document in view.memtable.documents]
        postings = view.__dict__["_memtable_postings"] = Postings.from_counts(
            concat_term_counts([_count_terms(text) for text in texts])
        )
    return postings


def _pack_allowed(allowed: Any) -> Bitmap | None:
    return None if allowed is None else np.packbits(allowed, bitorder="little")


@lru_cache(maxsize=CACHED_TEXTS)
def _count_terms(text: str) -> TermCounts:
    return count_terms([text])


def _search_query(
    segments: list[_SegmentPostings],
    query: tuple[Any, Floats],
    k: int,
    candidates: Rows,
    candidate_scores: Floats,
) -> tuple[Floats, Rows]:
    """Return the top `k` of one query; write the scores of `candidates` to `candidate_scores`."""
    hashes, frequencies = query
    document_count = sum(len(segment.postings.lengths) for segment in segments)
    mean_length = max(sum(segment.postings.total_terms for segment in segments) / document_count, 1e-9)
    ranges = [segment.postings.find(hashes) for segment in segments]
    for segment, (starts, ends) in zip(segments, ranges, strict=True):
        if not segment.postings.check_ranges(starts, ends):
            raise _make_postings_error(segment)
    weights = frequencies * compute_idf(document_count, np.sum([ends - starts for starts, ends in ranges], axis=0))
    scores, places = [np.full(k, -np.inf, np.float32)], [np.full(k, -1, np.int64)]
    for segment, (starts, ends) in zip(segments, ranges, strict=True):
        first, last = segment.start, segment.start + len(segment.postings.lengths)
        in_segment = (candidates >= first) & (candidates < last)
        terms = WeightedTerms(starts, ends, weights)
        local_candidates = candidates[in_segment] - first
        hits = search_postings(segment.postings, terms, mean_length, k, segment.allowed, local_candidates)
        if not hits:
            raise _make_postings_error(segment)
        scores.append(hits[0])
        places.append(hits[1] + first)
        candidate_scores[in_segment] = hits[2]
    all_scores, all_places = np.concatenate(scores), np.concatenate(places)
    top = np.lexsort((all_places, -all_scores))[:k]
    return all_scores[top], all_places[top]


def _make_postings_error(segment: _SegmentPostings) -> IndexFolderError:
    return IndexFolderError(f"{segment.folder}: invalid postings; damaged; {REBUILD}")
