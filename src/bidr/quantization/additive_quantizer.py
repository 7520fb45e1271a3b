"""Additive quantizer: a document is approximated by the sum of one codeword per book.

At equal size it reconstructs better than product quantization and scans at the same cost: a score is the sum of one
table entry per book. Many books are divided into groups, each summed in its own slice of the dimensions.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bidr.data.vector_source import VectorSource
from bidr.errors import ConfigError, ModelError
from bidr.quantization.beam_search import BeamSearch
from bidr.quantization.codebooks import READ_ERRORS, Codebooks, check_arrays, check_sums, load_arrays
from bidr.quantization.pq_training import fit_pq, make_too_few_error
from bidr.utils.array_types import Codes, Floats
from bidr.utils.faiss_loader import load_faiss
from bidr.utils.files import open_to_read
from bidr.utils.progress import ProgressCallback, ignore_progress
from bidr.utils.reproducible_matmul import matmul_transposed

# By codewords per book. With 16, the nearest sum is harder to find, and a step of the search costs less.
FIT_ROWS = {256: 60_000, 16: 30_000}
ENCODE_BEAM_SIZE = {256: 8, 16: 16}
FIT_BEAM_SIZE, ENCODE_ROWS = 4, 16_384
# Sequentially trained books leave large residuals. With 16 codewords, joint refits lower the error by an eighth.
REFITS = {256: 3, 16: 10}
# Directions that queries hardly use keep at least this share of the largest second moment.
MIN_MOMENT = 1e-4
GROUP_BITS = 128
MAX_WIDTH = 512
Vectors = Floats | VectorSource


class AdditiveQuantizer(NamedTuple):
    """Projections of documents and queries, and the codewords.

    centre:    (dim,) is subtracted from every document, which changes no ranking.
    document:  (width, dim) projects documents to codeword space.
    query:     (width, dim) projects queries: the adapter.
    codewords: (M, words, width / groups), 256 or 16 words; used for scoring. Books of a group are contiguous.
    chosen_by: same shape; used for encoding. Learning changes `codewords` only, so that codes stay valid.
    """

    centre: Floats
    document: Floats
    query: Floats
    codewords: Floats
    chosen_by: Floats

    @property
    def dim(self) -> int:
        return int(self.document.shape[1])

    @property
    def groups(self) -> int:
        return int(self.document.shape[0] // self.codewords.shape[2])

    @property
    def words(self) -> int:
        return int(self.codewords.shape[1])

    def encode(self, vectors: Vectors, beam: int | None = None) -> Codes:
        """Encode documents by beam search: (n, M) uint8."""
        empty = np.empty((0, len(self.codewords)), dtype=np.uint8)
        return np.concatenate([empty, *self.encode_blocks(vectors, beam=beam)])

    def encode_blocks(self, vectors: Vectors, first: int = 0, beam: int | None = None) -> Iterator[Codes]:
        """Encode block by block, from row `first` on."""
        beam = beam or ENCODE_BEAM_SIZE[self.words]
        searches = [BeamSearch(words, beam) for words in np.split(self.chosen_by, self.groups)]
        for start in range(first, len(vectors), ENCODE_ROWS):
            block = self.project(vectors[start : start + ENCODE_ROWS])
            parts = zip(searches, np.split(block, self.groups, axis=1), strict=True)
            yield np.concatenate([search.encode(part) for search, part in parts], axis=1)

    def encode_on(self, vectors: Floats, device: Any) -> Codes:
        """Encode on a torch device."""
        import torch

        from bidr.quantization.residual_quantizer import search_nearest_sums

        projected = torch.as_tensor(self.project(vectors), device=device).chunk(self.groups, dim=1)
        words = torch.as_tensor(self.chosen_by, device=device).chunk(self.groups)
        beam = ENCODE_BEAM_SIZE[self.words]
        parts = [search_nearest_sums(part, books, beam) for part, books in zip(projected, words, strict=True)]
        codes: Codes = torch.cat(parts, dim=1).to(torch.uint8).cpu().numpy()
        return codes

    def project(self, vectors: Floats) -> Floats:
        """Project documents to codeword space."""
        return matmul_transposed(vectors - self.centre, self.document)

    def adapt(self, queries: Floats) -> Floats:
        """Project queries to codeword space: (n, width)."""
        return matmul_transposed(queries, self.query)

    def to_codebooks(self) -> Codebooks:
        """Express as product codebooks in a wider space, which has one copy of its slice per book.

        Everything that scores product codes can then score these. They cannot encode: see `encode`.
        """
        return Codebooks(self._make_copies(), self.codewords)

    def to_adapted_codebooks(self) -> Codebooks:
        """Like `to_codebooks`, for queries that are not projected; these codebooks can encode."""
        adapter = matmul_transposed(self._make_copies(), self.query.T)
        return Codebooks(adapter, self.codewords, self.chosen_by, self.centre, self.document)

    def _make_copies(self) -> Floats:
        books, _, part = self.codewords.shape
        slices: list[Floats] = np.split(np.eye(self.groups * part, dtype=np.float32), self.groups)
        return np.concatenate([part for part in slices for _ in range(books // self.groups)])

    def save(self, path: Path) -> None:
        """Save all but `codewords`, which `to_codebooks().save` writes."""
        from safetensors.numpy import save_file

        arrays = {"centre": self.centre, "document": self.document, "query": self.query, "chosen_by": self.chosen_by}
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)

    @classmethod
    def load(cls, adapter: Path, codebooks: Codebooks) -> "AdditiveQuantizer":
        from safetensors import SafetensorError

        try:
            loaded = cls(**load_arrays(adapter), codewords=codebooks.centroids)
            check_arrays(loaded._asdict(), {"centre": 1, "document": 2, "query": 2, "codewords": 3, "chosen_by": 3})
            check_sums(loaded.centre, loaded.document, loaded.codewords)
            if loaded.query.shape != loaded.document.shape or loaded.chosen_by.shape != loaded.codewords.shape:
                raise ValueError(f"query of shape {loaded.query.shape}, codewords chosen by {loaded.chosen_by.shape}")
            return loaded
        except (*READ_ERRORS, SafetensorError) as error:
            raise ModelError(f"{adapter}: not an adapter file ({error}); train it again") from error


def load_query_adapter(adapter: Path) -> Floats:
    """Load only the query projection of an adapter file."""
    from safetensors import SafetensorError, safe_open

    try:
        open_to_read(adapter).close()
        with safe_open(adapter, framework="numpy") as arrays:
            query: Floats = arrays.get_tensor("query")
        check_arrays({"query": query}, {"query": 2})
        return query
    except (*READ_ERRORS, SafetensorError) as error:
        raise ModelError(f"{adapter}: not an adapter file ({error}); train it again") from error


def to_additive(codebooks: Codebooks) -> AdditiveQuantizer:
    """Restore the document side of the quantizer that `to_adapted_codebooks` was called on."""
    centre, document, chosen_by = codebooks.centre, codebooks.document, codebooks.choosing
    if centre is None or document is None or chosen_by is None:
        raise ModelError("codebooks of sums lack an array ('centre', 'document' or 'choosing'); train the model again")
    # The inverse, as projections that a query metric scales are not orthonormal.
    query = np.linalg.pinv(document).T.astype(np.float32)
    return AdditiveQuantizer(centre, document, query, codebooks.centroids, chosen_by)


def count_groups(books: int, words: int = 256) -> int:
    """Return the smallest number of equal groups with at most GROUP_BITS per group."""
    max_books = GROUP_BITS // (words.bit_length() - 1)
    return next(groups for groups in range(1, books + 1) if books % groups == 0 and books // groups <= max_books)


def fit_additive(
    vectors: Floats,
    books: int,
    words: int = 256,
    *,
    seed: int = 0,
    groups: int | None = None,
    device: str = "cpu",
    metric: "QueryMetric | None" = None,
    advance: ProgressCallback | None = None,
) -> AdditiveQuantizer:
    """Train an additive quantizer on at most FIT_ROWS vectors: by Faiss on a CPU, by torch on a GPU.

    Args:
        metric:  Weighs reconstruction errors by direction; None: Euclidean.
        advance: Called after each of `count_fit_steps` steps.
    """
    groups = groups or count_groups(books, words)
    if len(vectors) < words:
        raise make_too_few_error(len(vectors), words)
    random = np.random.default_rng(seed)
    rows = np.sort(random.choice(len(vectors), min(FIT_ROWS[words], len(vectors)), replace=False))
    sample = np.asarray(vectors[rows], dtype=np.float32)
    centre: Floats = sample.mean(axis=0, dtype=np.float32)
    document, query = _fit_projections(sample - centre, books, words, groups, seed, metric)
    parts = np.split((sample - centre) @ document.T, groups, axis=1)
    fit_group = _fit_group if device == "cpu" else partial(_fit_group_on, device)
    codewords = np.concatenate(
        [
            fit_group(np.ascontiguousarray(part), books // groups, words, seed, advance or ignore_progress)
            for part in parts
        ]
    )
    return AdditiveQuantizer(centre, document, query, codewords, codewords)


def count_fit_steps(books: int, words: int, device: str = "cpu") -> int:
    """Return how many steps of progress `fit_additive` reports."""
    return count_groups(books, words) * (1 + (REFITS[words] if device == "cpu" else 0))


class QueryMetric(NamedTuple):
    """Metric of reconstruction errors that weighs directions by the queries' use of them.

    The mean squared error of a query's score is e.T @ M @ e for the error e of a document and the second moments M of
    the queries. `scale` is the symmetric root of a power of M: score-aware quantization with a Euclidean quantizer.
    """

    scale: Floats
    inverse: Floats


def compute_query_metric(queries: Floats, exponent: float) -> QueryMetric:
    """Compute the metric of the second moments raised to `exponent`: 1 the score's error, 0 the Euclidean."""
    moments = queries.astype(np.float64).T @ queries.astype(np.float64)
    values, axes = np.linalg.eigh(moments)
    if values[-1] <= 0:
        values = np.ones_like(values)
    factors = np.maximum(values / values[-1], MIN_MOMENT) ** (exponent / 2)
    factors /= np.sqrt(np.square(factors).mean())
    scale, inverse = (((axes * side) @ axes.T).astype(np.float32) for side in (factors, 1 / factors))
    return QueryMetric(scale, inverse)


def _fit_projections(
    centred: Floats, books: int, words: int, groups: int, seed: int, metric: QueryMetric | None
) -> tuple[Floats, Floats]:
    """Fit the projections of documents and queries, whose products are the inner products of the vectors.

    Principal axes above MAX_WIDTH dimensions, and an OPQ rotation for several groups.
    """
    dim = centred.shape[1]
    width = min(dim, MAX_WIDTH) // groups * groups
    if width == 0:
        raise ConfigError(f"given {books} books, too many for vectors of {dim} dimensions; lower bytes_per_doc")
    document = query = np.eye(dim, dtype=np.float32)
    if metric is not None:
        # Codewords of the same length as without a metric, so that learning rates fit.
        lengths = [np.linalg.norm(rows) for rows in (centred, centred @ metric.scale)]
        length = np.float32(lengths[0] / lengths[1] if lengths[1] else 1)
        document, query = metric.scale * length, metric.inverse / length
    if width < dim:
        scaled = centred @ document.T
        axes = np.linalg.svd(scaled.T @ scaled)[0].T[:width].astype(np.float32)
        document, query = axes @ document, axes @ query
    if groups > 1:
        rotation = fit_pq(centred @ document.T, groups, words, seed=seed).rotation
        document, query = rotation @ document, rotation @ query
    return document, query


def _fit_group(sample: Floats, books: int, words: int, seed: int, advance: ProgressCallback) -> Floats:
    faiss = load_faiss()
    quantizer = faiss.ResidualQuantizer(sample.shape[1], books, words.bit_length() - 1)
    quantizer.train_type = faiss.ResidualQuantizer.Train_default
    quantizer.max_beam_size, quantizer.use_beam_LUT = FIT_BEAM_SIZE, 1
    quantizer.cp.seed = seed
    quantizer.cp.min_points_per_centroid = 1
    quantizer.train(sample)
    codewords: Floats = faiss.vector_to_array(quantizer.codebooks).reshape(books, words, -1).copy()
    advance(1)
    return _refit(sample, codewords, advance)


def _refit(sample: Floats, codewords: Floats, advance: ProgressCallback) -> Floats:
    """Alternate joint least squares over all books and encoding."""
    import torch

    from bidr.quantization.residual_quantizer import solve_codewords

    words = codewords.shape[1]
    for _ in range(REFITS[words]):
        codes = BeamSearch(codewords, ENCODE_BEAM_SIZE[words]).encode(sample).astype(np.int64)
        codewords = solve_codewords(*(torch.as_tensor(array) for array in (sample, codes, codewords))).numpy()
        advance(1)
    return codewords


def _fit_group_on(device: str, sample: Floats, books: int, words: int, seed: int, advance: ProgressCallback) -> Floats:
    import torch

    from bidr.quantization.residual_quantizer import fit_residual_quantizer

    codewords = fit_residual_quantizer(torch.as_tensor(sample, device=device), books, words, seed)
    array: Floats = codewords.cpu().numpy()
    advance(1)
    return array
