"""Convert codes to a plain Faiss index and back; Faiss alone can search it, by inner product."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.errors import ConfigError, DataError
from bidr.index.candidate_source import EF_CONSTRUCTION
from bidr.index.code_packing import ADD_ROWS, check_codes, pack, unpack
from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Codes, Floats
from bidr.utils.faiss_loader import load_faiss

LINKS = 16
# Numbers of decoded codes per block: 64 MB.
DECODED_NUMBERS = 1 << 24
SUPPORTED = (
    "IndexPQ, IndexHNSWPQ, IndexIVFPQ without residuals, or IndexPreTransform with one linear transform over one"
)


def export_faiss(
    codebooks: Codebooks,
    codes: Codes,
    *,
    engine: str = "scan",
    ef_construction: int = EF_CONSTRUCTION,
    advance: Callable[[int], None] = lambda rows: None,
    rotation: Floats | None = None,
) -> Any:
    """Return a `faiss.IndexPreTransform` over `IndexPQ` (engine "scan") or `IndexHNSWPQ` ("hnsw"), by inner product.

    rotation: replaces the codebooks' rotation of queries, if a query adapter is part of it.

    Searching it does not need bidr. Do not add to a graph that was read from a file: Faiss then links new
    documents by Euclidean distance (see `faiss_graph`).
    """
    faiss = load_faiss()
    if engine not in ("scan", "hnsw"):
        raise ConfigError(f"engine: given {engine!r}, expected 'scan' or 'hnsw'")
    check_codes(codebooks, codes)
    if engine == "hnsw":
        return _add_rotation(build_faiss_graph(codebooks, codes, LINKS, ef_construction, advance), codebooks, rotation)
    shape = (len(codebooks.rotation), codebooks.books, codebooks.bits)
    inner = faiss.IndexPQ(*shape, faiss.METRIC_INNER_PRODUCT)
    _set_codewords(inner, codebooks)
    _fill_scan(inner, codebooks, codes, advance)
    return _add_rotation(inner, codebooks, rotation)


def build_faiss_graph(
    codebooks: Codebooks,
    codes: Codes,
    links: int,
    ef_construction: int,
    advance: Callable[[int], None],
) -> Any:
    """Build an `IndexHNSWPQ` by inner product, for rotated queries, with 2 * links on the lowest level.

    Documents are added block by block, as their decoded codes. Faiss chooses links with a table of distances between
    codewords, and that table is Euclidean whatever the metric: the graph then finds about half of what a scan finds.
    With inner products in it, it finds 98 to 99 %.
    """
    faiss = load_faiss()
    rotated_dim = len(codebooks.rotation)
    inner = faiss.IndexHNSWPQ(rotated_dim, codebooks.books, links, codebooks.bits, faiss.METRIC_INNER_PRODUCT)
    inner.hnsw.efConstruction = ef_construction
    # Pruned neighbors fill unused links: no additional bytes, and .7 % more of the hits of a scan on real vectors.
    inner.keep_max_size_level0 = True
    _set_codewords(inner, codebooks)
    storage = get_code_storage(inner)
    faiss.copy_array_to_vector(compute_inner_product_table(codebooks.centroids).ravel(), storage.pq.sdc_table)
    rows = max(1, min(ADD_ROWS, DECODED_NUMBERS // rotated_dim))
    for start in range(0, len(codes), rows):
        block = np.ascontiguousarray(codes[start : start + rows])
        inner.add(codebooks.decode(block))
        # Faiss encoded the block again, and may have chosen the other one of two equal codewords.
        view_stored_codes(storage)[start:] = pack(block, codebooks.bits)
        advance(len(block))
    storage.pq.sdc_table.resize(0)
    return inner


class IvfLists(NamedTuple):
    """Inverted lists: list j has the positions offsets[j:j + 2]; `rows` has the row of each position.

    centroids: in the space of unrotated queries.
    """

    centroids: Floats
    offsets: npt.NDArray[np.int64]
    rows: npt.NDArray[Any]


def export_lists(
    codebooks: Codebooks, codes: Codes, lists: IvfLists, visits: int, rotation: Floats | None = None
) -> Any:
    """Return a `faiss.IndexPreTransform` over `IndexIVFPQ`, by inner product; its ids are rows. codes: by position.

    visits: the nprobe of the index; to change it: `faiss.extract_index_ivf(index).nprobe = ...`.
    rotation: as in `export_faiss`.
    """
    faiss = load_faiss()
    check_codes(codebooks, codes)
    dim = len(codebooks.rotation)
    quantizer = faiss.IndexFlatIP(dim)
    quantizer.add(_rotate_centroids(codebooks, lists.centroids))
    shape = (dim, len(lists.centroids), codebooks.books, codebooks.bits)
    inner = faiss.IndexIVFPQ(quantizer, *shape, faiss.METRIC_INNER_PRODUCT)
    inner.by_residual, inner.nprobe, inner.own_fields = False, visits, True
    quantizer.this.disown()
    _set_codewords(inner, codebooks)
    for number, (start, end) in enumerate(pairwise(lists.offsets.tolist())):
        if start < end:
            rows = np.ascontiguousarray(lists.rows[start:end], dtype=np.int64)
            packed = pack(codes[start:end], codebooks.bits)
            inner.invlists.add_entries(number, end - start, faiss.swig_ptr(rows), faiss.swig_ptr(packed))
    inner.ntotal = len(codes)
    return _add_rotation(inner, codebooks, rotation)


def _rotate_centroids(codebooks: Codebooks, centroids: Floats) -> Floats:
    """Rotate centroids, keeping inner products with rotated queries, also if the rotation is not square."""
    rotation = codebooks.rotation.astype(np.float64)
    return np.ascontiguousarray((rotation @ np.linalg.solve(rotation.T @ rotation, centroids.T)).T, dtype=np.float32)


def import_faiss(index: Any) -> tuple[Codebooks, Codes]:
    """Return codebooks and codes (n, M) of a Faiss index over product-quantized codes."""
    codebooks, storage = import_codebooks(index)
    packed = _order_by_row(storage) if hasattr(storage, "invlists") else view_stored_codes(storage).copy()
    return codebooks, unpack(packed, codebooks.books, codebooks.bits)


def _order_by_row(index: Any) -> Codes:
    """Return the packed codes of an `IndexIVFPQ` in the order of ids, which must be 0, 1, ..."""
    faiss, lists = load_faiss(), index.invlists
    packed = np.zeros((index.ntotal, index.code_size), dtype=np.uint8)
    times = np.zeros(index.ntotal, dtype=np.int64)
    for number in range(index.nlist):
        size = lists.list_size(number)
        if size:
            rows = faiss.rev_swig_ptr(lists.get_ids(number), size)
            if rows.min() < 0 or rows.max() >= index.ntotal:
                odd = rows.min() if rows.min() < 0 else rows.max()
                raise DataError(f"a Faiss index with the id {odd}: expected 0 to {index.ntotal - 1}, one each")
            np.add.at(times, rows, 1)
            codes = faiss.rev_swig_ptr(lists.get_codes(number), size * index.code_size)
            packed[rows] = codes.reshape(size, -1)
    if (times != 1).any():
        odd = int(np.flatnonzero(times != 1)[0])
        raise DataError(
            f"a Faiss index with the id {odd} {times[odd]} times: expected 0 to {index.ntotal - 1}, one each"
        )
    return packed


def import_codebooks(index: Any) -> tuple[Codebooks, Any]:
    """Return the codebooks of a Faiss index, and its inner `IndexPQ` or `IndexIVFPQ`."""
    faiss = load_faiss()
    index = faiss.downcast_index(index)
    rotation = np.eye(index.d, dtype=np.float32)
    inner = index
    if isinstance(index, faiss.IndexPreTransform):
        rotation = _read_rotation(index)
        inner = faiss.downcast_index(index.index)
    lists = isinstance(inner, faiss.IndexIVFPQ) and not inner.by_residual
    if not (lists or isinstance(inner, faiss.IndexPQ | faiss.IndexHNSWPQ)):
        raise DataError(f"a Faiss {type(inner).__name__} holds no plain codes: expected {SUPPORTED}")
    storage = get_code_storage(inner)
    quantizer = storage.pq
    if quantizer.nbits not in (4, 8):
        raise DataError(f"a Faiss index with {quantizer.nbits} bits a code: expected 8 or 4; train it again with those")
    shape = (quantizer.M, quantizer.ksub, quantizer.dsub)
    return Codebooks(rotation, faiss.vector_to_array(quantizer.centroids).reshape(shape)), storage


def get_code_storage(inner: Any) -> Any:
    """Return the `IndexPQ` with the codes of a scan or of a graph."""
    faiss = load_faiss()
    return faiss.downcast_index(inner.storage) if hasattr(inner, "storage") else inner


def view_stored_codes(storage: Any) -> Codes:
    """View the packed codes in the memory of Faiss; valid as long as the index is."""
    faiss = load_faiss()
    view: Codes = faiss.rev_swig_ptr(storage.codes.data(), storage.ntotal * storage.code_size)
    return view.reshape(storage.ntotal, storage.code_size)


def compute_inner_product_table(centroids: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the inner products of all pairs of codewords of each book, to build a graph by inner product."""
    return np.ascontiguousarray(np.matmul(centroids, centroids.transpose(0, 2, 1)), dtype=np.float32)


def _fill_scan(inner: Any, codebooks: Codebooks, codes: Codes, advance: Callable[[int], None]) -> None:
    inner.codes.resize(len(codes) * inner.code_size)
    inner.ntotal = len(codes)
    stored = view_stored_codes(inner)
    for start in range(0, len(codes), ADD_ROWS):
        block = pack(codes[start : start + ADD_ROWS], codebooks.bits)
        stored[start : start + len(block)] = block
        advance(len(block))


def _set_codewords(inner: Any, codebooks: Codebooks) -> None:
    faiss = load_faiss()
    storage = get_code_storage(inner)
    codewords = np.ascontiguousarray(codebooks.centroids, dtype=np.float32)
    faiss.copy_array_to_vector(codewords.ravel(), storage.pq.centroids)
    storage.is_trained = inner.is_trained = True


def _add_rotation(inner: Any, codebooks: Codebooks, rotation: Floats | None) -> Any:
    faiss = load_faiss()
    matrix = np.ascontiguousarray(codebooks.rotation if rotation is None else rotation, dtype=np.float32)
    transform = faiss.LinearTransform(matrix.shape[1], matrix.shape[0], False)
    faiss.copy_array_to_vector(matrix.ravel(), transform.A)
    transform.is_trained = True
    transform.set_is_orthonormal()
    index = faiss.IndexPreTransform(transform, inner)
    index.own_fields = True
    inner.this.disown()
    transform.this.disown()
    index.ntotal, index.is_trained = inner.ntotal, True
    return index


def _read_rotation(index: Any) -> npt.NDArray[np.float32]:
    faiss = load_faiss()
    chain = [faiss.downcast_VectorTransform(index.chain.at(number)) for number in range(index.chain.size())]
    if len(chain) != 1 or not isinstance(chain[0], faiss.LinearTransform) or chain[0].have_bias:
        names = ", ".join(type(transform).__name__ for transform in chain) or "none"
        raise DataError(f"a Faiss index with transforms {names}: expected {SUPPORTED}, without a bias")
    matrix: npt.NDArray[np.float32] = faiss.vector_to_array(chain[0].A)
    return matrix.reshape(chain[0].d_out, chain[0].d_in)
