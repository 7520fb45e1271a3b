"""Additive codes: a document is the sum of its codewords, one from each book, so that no book is bound to a slice.

At equal bytes they reconstruct better than product codes and cost a scan the same: the score of a document is the sum
of one table entry a book. Where there are many books they are divided into groups, each summed in a slice of its own.
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
from bidr.utils.matmul import matmul_transposed

# By the codewords in a book. Of few in many books the nearest sum is harder to find, and a step of the search costs
# less.
FIT_ROWS = {256: 60_000, 16: 30_000}
ENCODE_BEAM_SIZE = {256: 8, 16: 16}
FIT_BEAM_SIZE, ENCODE_ROWS = 4, 16_384
REFITS = 10
GROUP_BITS = 128
MAX_WIDTH = 512
Vectors = Floats | VectorSource


class AdditiveQuantizer(NamedTuple):
    """What turns vectors into codes, and queries into what codes are scored with.

    centre:    (dim,) is taken from every document; no ranking changes by that.
    document:  (width, dim) brings documents into the space of the codewords.
    query:     (width, dim) does it for queries: the adapter.
    codewords: (M, words, width / groups), 256 or 16 words. The books of one group follow each other.
    chosen_by: of the same shape: what codewords are chosen with. Learning moves the codewords that are scored, and
               leaves these and so the codes of every document as they were.
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
        """Codewords whose sum is near the document, found by a beam search: (n, M) uint8."""
        none = np.empty((0, len(self.codewords)), dtype=np.uint8)
        return np.concatenate([none, *self.encode_blocks(vectors, beam=beam)])

    def encode_blocks(self, vectors: Vectors, first: int = 0, beam: int | None = None) -> Iterator[Codes]:
        """The same from a row on, some rows at a time."""
        beam = beam or ENCODE_BEAM_SIZE[self.words]
        searches = [BeamSearch(words, beam) for words in np.split(self.chosen_by, self.groups)]
        for start in range(first, len(vectors), ENCODE_ROWS):
            block = self.project(vectors[start : start + ENCODE_ROWS])
            parts = zip(searches, np.split(block, self.groups, axis=1), strict=True)
            yield np.concatenate([search.encode(part) for search, part in parts], axis=1)

    def encode_on(self, vectors: Floats, device: Any) -> Codes:
        """The same on a GPU."""
        import torch

        from bidr.quantization.residual_quantizer import search_nearest_sums

        placed = torch.as_tensor(self.project(vectors), device=device).chunk(self.groups, dim=1)
        words = torch.as_tensor(self.chosen_by, device=device).chunk(self.groups)
        found = [
            search_nearest_sums(part, own, ENCODE_BEAM_SIZE[self.words])
            for part, own in zip(placed, words, strict=True)
        ]
        codes: Codes = torch.cat(found, dim=1).to(torch.uint8).cpu().numpy()
        return codes

    def project(self, vectors: Floats) -> Floats:
        """Documents in the space of the codewords."""
        return matmul_transposed(vectors - self.centre, self.document)

    def adapt(self, queries: Floats) -> Floats:
        """Queries as the codes see them: (n, width)."""
        return matmul_transposed(queries, self.query)

    def to_codebooks(self) -> Codebooks:
        """The same as product codes in a wider space, which holds one copy of its slice for every book.

        What scores and searches product codes then does so with these. Encoding is not theirs: see `encode`.
        """
        return Codebooks(self._copies(), self.codewords)

    def to_adapted_codebooks(self) -> Codebooks:
        """The same for queries that are not adapted yet; these encode documents too."""
        adapter = matmul_transposed(self._copies(), self.query.T)
        return Codebooks(adapter, self.codewords, self.chosen_by, self.centre, self.document)

    def _copies(self) -> Floats:
        books, _, part = self.codewords.shape
        slices: list[Floats] = np.split(np.eye(self.groups * part, dtype=np.float32), self.groups)
        return np.concatenate([own for own in slices for _ in range(books // self.groups)])

    def save(self, path: Path) -> None:
        """Everything but the codewords that are scored, which `codebooks().save` writes."""
        from safetensors.numpy import save_file

        arrays = {"centre": self.centre, "document": self.document, "query": self.query, "chosen_by": self.chosen_by}
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)

    @classmethod
    def load(cls, adapter: Path, codebooks: Codebooks) -> "AdditiveQuantizer":
        from safetensors import SafetensorError

        try:
            found = cls(**load_arrays(adapter), codewords=codebooks.centroids)
            check_arrays(found._asdict(), {"centre": 1, "document": 2, "query": 2, "codewords": 3, "chosen_by": 3})
            check_sums(found.centre, found.document, found.codewords)
            if found.query.shape != found.document.shape or found.chosen_by.shape != found.codewords.shape:
                raise ValueError(f"query of shape {found.query.shape}, codewords chosen by {found.chosen_by.shape}")
            return found
        except (*READ_ERRORS, SafetensorError) as error:
            raise ModelError(f"{adapter}: not an adapter file ({error}); train it again") from error


def load_query_adapter(adapter: Path) -> Floats:
    """Of an adapter file what queries take alone."""
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
    """What `to_adapted_codebooks` was made of, as far as documents need it."""
    centre, document, chosen_by = codebooks.centre, codebooks.document, codebooks.choosing
    if centre is None or document is None or chosen_by is None:
        raise ModelError("codebooks of sums lack an array ('centre', 'document' or 'choosing'); train the model again")
    return AdditiveQuantizer(centre, document, document, codebooks.centroids, chosen_by)


def count_groups(books: int, words: int = 256) -> int:
    """In how many groups the books are divided: as few as keep a group's codes within GROUP_BITS."""
    most = GROUP_BITS // (words.bit_length() - 1)
    return next(groups for groups in range(1, books + 1) if books % groups == 0 and books // groups <= most)


def fit_additive(
    vectors: Floats, books: int, words: int = 256, *, seed: int = 0, groups: int | None = None, device: str = "cpu"
) -> AdditiveQuantizer:
    """Additive codes that reconstruct the vectors well (Euclidean); at most FIT_ROWS of them are looked at.

    On a CPU by Faiss, on a GPU by the same steps in torch.
    """
    groups = groups or count_groups(books, words)
    if len(vectors) < words:
        raise make_too_few_error(len(vectors), words)
    random = np.random.default_rng(seed)
    rows = np.sort(random.choice(len(vectors), min(FIT_ROWS[words], len(vectors)), replace=False))
    sample = np.asarray(vectors[rows], dtype=np.float32)
    centre: Floats = sample.mean(axis=0, dtype=np.float32)
    document = _map(sample - centre, books, words, groups, seed)
    parts = np.split((sample - centre) @ document.T, groups, axis=1)
    fitted = _fit_group if device == "cpu" else partial(_fit_group_on, device)
    found = np.concatenate([fitted(np.ascontiguousarray(part), books // groups, words, seed) for part in parts])
    return AdditiveQuantizer(centre, document, document, found, found)


def _map(centred: Floats, books: int, words: int, groups: int, seed: int) -> Floats:
    """Principal axes where there are more than WIDEST; a rotation that suits the groups where there are several."""
    dim = centred.shape[1]
    width = min(dim, MAX_WIDTH) // groups * groups
    if width == 0:
        raise ConfigError(f"given {books} books, too many for vectors of {dim} dimensions; lower bytes_per_doc")
    axes: Floats = np.eye(dim, dtype=np.float32)
    if width < dim:
        axes = np.linalg.svd(centred.T @ centred)[0].T[:width].astype(np.float32)
    if groups == 1:
        return axes
    rotation = fit_pq(centred @ axes.T, groups, words, seed=seed).rotation
    turned: Floats = rotation @ axes
    return turned


def _fit_group(sample: Floats, books: int, words: int, seed: int) -> Floats:
    faiss = load_faiss()
    quantizer = faiss.ResidualQuantizer(sample.shape[1], books, words.bit_length() - 1)
    quantizer.train_type = faiss.ResidualQuantizer.Train_default
    quantizer.max_beam_size, quantizer.use_beam_LUT = FIT_BEAM_SIZE, 1
    quantizer.cp.seed = seed
    quantizer.cp.min_points_per_centroid = 1
    quantizer.train(sample)
    found: Floats = faiss.vector_to_array(quantizer.codebooks).reshape(books, words, -1).copy()
    return found if words == 256 else _refitted(sample, found)


def _refitted(sample: Floats, codewords: Floats) -> Floats:
    """All books at once by least squares, and codewords chosen anew, some rounds of it.

    Books of few codewords leave much to those that follow: of 16, the error falls by an eighth.
    """
    import torch

    from bidr.quantization.residual_quantizer import solve_codewords

    for _ in range(REFITS):
        codes = BeamSearch(codewords, ENCODE_BEAM_SIZE[16]).encode(sample).astype(np.int64)
        codewords = solve_codewords(*(torch.as_tensor(array) for array in (sample, codes, codewords))).numpy()
    return codewords


def _fit_group_on(device: str, sample: Floats, books: int, words: int, seed: int) -> Floats:
    import torch

    from bidr.quantization.residual_quantizer import fit_residual_quantizer

    found: Floats = fit_residual_quantizer(torch.as_tensor(sample, device=device), books, words, seed).cpu().numpy()
    return found
