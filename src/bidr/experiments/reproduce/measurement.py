"""Measurements of a row: ranks of the relevant documents, time and memory."""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.data.positives import Positives
from bidr.errors import MissingExtraError
from bidr.experiments.reproduce.row_files import ABSENT, RelevantRanks, rank_relevant
from bidr.quantization.exact_search import search_codes, search_vectors
from bidr.search.evaluation import QUERIES_PER_BATCH, time_queries
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors
from bidr.utils.array_types import Floats, Rows
from bidr.utils.faiss_loader import load_faiss
from bidr.utils.progress import show_progress

ANSWERS = 100
"""Results of a query that are ranked; the deepest cut-off of the paper's tables."""
TIMED_QUERIES = 100
DEPTHS = (100, 200, 300, 500, 1_000, 2_000, 3_000, 5_000, 10_000)
SIZE_FACTOR, MIN_DOCUMENTS = 4, 1_000
ROWS_PER_READ = 65_536
HNSW_LINKS, EF_CONSTRUCTION, EF_SEARCH = 32, 200, 512


class JudgedTexts(NamedTuple):
    """Queries of a split and the corpus rows of their relevant documents."""

    texts: list[str]
    pairs: Positives

    def take_first(self, count: int) -> "JudgedTexts":
        """Return the first `count` queries."""
        starts = self.pairs.starts[: count + 1]
        return JudgedTexts(self.texts[:count], Positives(starts, self.pairs.rows[: starts[-1]]))


class Measures(NamedTuple):
    """What was measured of an index."""

    ranks: dict[str, RelevantRanks]
    values: dict[str, float]
    ram: dict[str, float]


def measure_ranks(searcher: Searcher, judged: JudgedTexts, candidates: int) -> dict[str, RelevantRanks]:
    """Rank the relevant documents among the answers and among the candidates."""
    answers, codes = [], []
    for batch, pairs in iter_batches(searcher, judged, candidates):
        answers.append(rank_relevant(batch.rows[:, :ANSWERS], pairs))
        codes.append(rank_relevant(batch.candidate_rows, pairs))
    names = {"answers": answers, "candidates": codes}
    return {name: RelevantRanks.from_pairs(judged.pairs, np.concatenate(parts)) for name, parts in names.items()}


def iter_batches(searcher: Searcher, judged: JudgedTexts, candidates: int) -> Any:
    """Yield the ranking of all candidates, batch by batch, with the positives of the batch's queries."""
    count = len(judged.texts)
    bounds = [*range(0, count, QUERIES_PER_BATCH), count]
    with show_progress("search", count, "queries") as advance:
        for start, stop in pairwise(bounds):
            texts = judged.texts[start:stop]
            queries, _ = searcher.encode(texts)
            starts = judged.pairs.starts[start : stop + 1]
            pairs = Positives(starts - starts[0], judged.pairs.rows[starts[0] : starts[-1]])
            yield searcher.search_vectors(queries, candidates, candidates, words=texts), pairs
            advance(stop - start)


def measure_index(searcher: Searcher, judged: JudgedTexts, candidates: int) -> Measures:
    """Measure an index: ranks, milliseconds of a query alone, bytes of RAM a document."""
    ranks = measure_ranks(searcher, judged, candidates)
    timed = judged.texts[:TIMED_QUERIES]
    milliseconds = np.median(time_queries(searcher, timed, min(ANSWERS, candidates), candidates), axis=0)
    ram = {name: float(size) for name, size in describe_ram(searcher).items()}
    return Measures(ranks, {"ms_per_query": float(milliseconds[-1]), "ms_encode": float(milliseconds[0])}, ram)


def describe_ram(searcher: Searcher) -> dict[str, float]:
    """Return the bytes of RAM a document by part, and their total: everything that the index counts."""
    reader: Any = searcher.reader
    parts: dict[str, float] = reader.describe()["ram_bytes_per_document"]
    return parts


def measure_depths(
    searcher: Searcher, judged: JudgedTexts, deepest: int
) -> tuple[RelevantRanks, list[dict[str, float]]]:
    """Measure recall and time by the number of candidates: one search of the deepest, and a timing of each."""
    depths = [depth for depth in DEPTHS if depth < deepest] + [deepest]
    answers: dict[int, list[Rows]] = {depth: [] for depth in depths}
    candidates = []
    for batch, pairs in iter_batches(searcher, judged, deepest):
        candidates.append(rank_relevant(batch.candidate_rows, pairs))
        positions = rank_relevant(batch.rows, pairs)
        for depth in depths:
            answers[depth].append(rank_at_depth(positions, batch.candidate_ranks, pairs, depth))
    curve = []
    for depth in depths:
        ranks = RelevantRanks.from_pairs(judged.pairs, np.concatenate(answers[depth]))
        times = time_queries(searcher, judged.texts[:TIMED_QUERIES], min(ANSWERS, depth), depth)
        recalls = {f"R@{cutoff}": ranks.compute_recall(cutoff) for cutoff in (10, ANSWERS)}
        search_ms = [total - encode for encode, *_, total in times]
        curve.append({"candidates": float(depth), **recalls, "ms": median(search_ms)})
    return RelevantRanks.from_pairs(judged.pairs, np.concatenate(candidates)), curve


def rank_at_depth(positions: Rows, candidate_ranks: Rows, pairs: Positives, depth: int) -> Rows:
    """Rank the positives as if only the first `depth` candidates had been read.

    Args:
        positions: rank of each positive among all candidates that were read; ABSENT where it is none.
        candidate_ranks: (queries, candidates) rank by the codes of each result.
    """
    queries, _ = pairs.list_edges(np.arange(len(pairs)))
    places = np.maximum(positions - 1, 0)
    within = np.cumsum(candidate_ranks <= depth, axis=1)
    is_read = (positions != ABSENT) & (candidate_ranks[queries, places] <= depth)
    return np.where(is_read, within[queries, places], ABSENT)


def read_vectors(searcher: Searcher) -> Floats:
    """Read all vectors of an index as float32, in the order of the corpus."""
    reader = get_reader(searcher)
    vectors = np.empty((reader.count, reader.manifest.stored_dim), dtype=np.float32)
    for start in range(0, reader.count, ROWS_PER_READ):
        positions = np.arange(start, min(start + ROWS_PER_READ, reader.count))
        vectors[reader.rows_of(positions)] = reader.vectors.read(positions)
    return vectors


def get_reader(searcher: Searcher) -> Any:
    """Return the reader of the one segment of a freshly built index."""
    view: Any = searcher.reader.latest()
    return view.get_unchanged("be measured").reader


def encode_queries(searcher: Searcher, texts: Sequence[str]) -> QueryVectors:
    """Encode many queries, batch by batch."""
    blocks = [
        searcher.encode(texts[start : start + QUERIES_PER_BATCH])[0]
        for start in range(0, len(texts), QUERIES_PER_BATCH)
    ]
    return QueryVectors(*(np.concatenate(parts) for parts in zip(*blocks, strict=True)))


class VectorIndex(NamedTuple):
    """Full vectors in RAM: `search` returns rows (queries, k)."""

    search: Callable[[Floats, int], Rows]
    ram: dict[str, float]
    note: str


def build_vector_index(vectors: Floats) -> VectorIndex:
    """Index full vectors in RAM: HNSW of Faiss, or exact search where Faiss is not installed."""
    count, dim = vectors.shape
    try:
        faiss = load_faiss()
    except MissingExtraError:

        def search_exactly(queries: Floats, k: int) -> Rows:
            return search_vectors(queries, vectors, k).rows

        return VectorIndex(search_exactly, {"vectors": 4.0 * dim}, "exact search: faiss is not installed")
    index = faiss.IndexHNSWFlat(dim, HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = EF_CONSTRUCTION, EF_SEARCH
    with show_progress("HNSW over full vectors", count, "documents") as advance:
        for start in range(0, count, ROWS_PER_READ):
            block = np.ascontiguousarray(vectors[start : start + ROWS_PER_READ])
            index.add(block)
            advance(len(block))

    def search(queries: Floats, k: int) -> Rows:
        rows: Rows = index.search(np.ascontiguousarray(queries), k)[1]
        return rows

    total = len(faiss.serialize_index(index)) / count
    note = f"Faiss IndexHNSWFlat, {HNSW_LINKS} links, efConstruction {EF_CONSTRUCTION}, efSearch {EF_SEARCH}"
    return VectorIndex(search, {"vectors": 4.0 * dim, "links": total - 4.0 * dim, "total": total}, note)


def time_calls(call: Callable[[int], object], count: int) -> float:
    """Return the median milliseconds of a call with each number below `count`, after a first one."""
    call(0)
    times = []
    for number in range(count):
        started = time.perf_counter()
        call(number)
        times.append(1000 * (time.perf_counter() - started))
    return median(times)


def measure_sizes(searcher: Searcher, judged: JudgedTexts, candidates: int, device: str) -> list[dict[str, float]]:
    """Measure recall on nested random parts of the corpus that hold all relevant documents.

    Nothing is trained again: codes and vectors are those of the whole corpus.
    """
    reader = get_reader(searcher)
    rows = reader.rows_of(np.arange(reader.count))
    position_of_row = np.empty(reader.count, dtype=np.int64)
    position_of_row[rows] = np.arange(reader.count)
    queries, codes = encode_queries(searcher, judged.texts), reader.candidates.unpack_codes()
    codebooks = reader.codebooks._replace(centroids=reader.codebooks.centroids.copy())  # torch needs writable arrays
    relevant = np.unique(judged.pairs.rows)
    others = np.random.default_rng(0).permutation(np.setdiff1d(np.arange(reader.count), relevant))
    curve = []
    for count in list_sizes(reader.count, len(relevant)):
        part = np.sort(position_of_row[np.concatenate([relevant, others[: count - len(relevant)]])])
        depth = min(candidates, count)
        local = search_codes(queries.codes, codebooks, codes[part], depth, device=device).rows
        positions = part[local]
        by_code = rank_relevant(rows[positions], judged.pairs)
        answers = np.empty((len(positions), min(ANSWERS, depth)), dtype=np.int64)
        for query, candidate_positions in enumerate(positions):
            scores = reader.vectors.score(candidate_positions, queries.vectors[query])
            best = np.argsort(-scores, kind="stable")[: answers.shape[1]]
            answers[query] = rows[candidate_positions[best]]
        final = RelevantRanks.from_pairs(judged.pairs, rank_relevant(answers, judged.pairs))
        coded = RelevantRanks.from_pairs(judged.pairs, by_code)
        recalls = {f"R@{cutoff}": final.compute_recall(cutoff) for cutoff in (10, ANSWERS)}
        curve.append({"documents": float(count), **recalls, "candidates' R@100": coded.compute_recall(100)})
    return curve


def list_sizes(count: int, relevant: int) -> list[int]:
    """List the sizes of the parts, each SIZE_FACTOR times the one before, the last one being the corpus."""
    smallest, sizes = max(MIN_DOCUMENTS, 2 * relevant), [count]
    while sizes[0] // SIZE_FACTOR >= smallest:
        sizes.insert(0, sizes[0] // SIZE_FACTOR)
    return sizes


def measure_vectors(
    index: VectorIndex, queries: Floats, encode_ms: float, judged: JudgedTexts
) -> tuple[RelevantRanks, dict[str, float]]:
    """Measure full vectors in RAM: ranks among the answers and milliseconds of a query alone."""
    results = np.concatenate(
        [
            index.search(queries[at : at + QUERIES_PER_BATCH], ANSWERS)
            for at in range(0, len(queries), QUERIES_PER_BATCH)
        ]
    )
    ranks = RelevantRanks.from_pairs(judged.pairs, rank_relevant(results, judged.pairs))
    search_ms = time_calls(
        lambda number: index.search(queries[number : number + 1], ANSWERS), min(TIMED_QUERIES, len(queries))
    )
    return ranks, {"ms_per_query": encode_ms + search_ms, "ms_encode": encode_ms}


def to_distance_space(vectors: Floats, queries: Floats) -> tuple[Floats, npt.NDArray[np.float32]]:
    """Add a dimension in which the nearest by Euclidean distance is the largest inner product."""
    squares = np.einsum("ij,ij->i", vectors, vectors)
    longest = float(squares.max())
    if np.allclose(squares, longest, rtol=2e-3):  # of equal length, rounded to fp16 on disk
        return vectors, queries
    added = np.sqrt(np.maximum(longest - squares, 0)).astype(np.float32)
    return np.hstack([vectors, added[:, None]]), np.hstack([queries, np.zeros((len(queries), 1), np.float32)])
