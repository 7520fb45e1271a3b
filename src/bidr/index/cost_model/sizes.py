"""Estimate RAM and disk of an index from its shape.

tests/index/cost_model/test_sizes.py compares the estimates with real indexes.
"""

import math
from dataclasses import dataclass

import numpy as np

from bidr.index.builder.build import VECTORS_FILE
from bidr.index.builder.coarse_clustering import MIN_ORDERED_DOCUMENTS, choose_list_count
from bidr.index.documents.document_store import DOCUMENTS, IDS
from bidr.index.documents.id_index import HASH, HASHES, ROW, ROWS
from bidr.index.documents.string_store import OFFSET
from bidr.index.engines.block_centroids import CODEWORDS, choose_book_shape, count_blocks, has_block_centroids
from bidr.index.engines.engine_files import (
    BLOCK_CENTROIDS_FILE,
    BLOCK_CODEWORDS_FILE,
    CENTROIDS_FILE,
    CODEBOOKS_FILE,
    CODES_FILE,
    GRAPH_FILE,
    LEARNED_FILE,
    OFFSETS_FILE,
    ORDER_FILE,
    get_order_dtype,
)
from bidr.index.engines.fast_scan_kernels import BLOCK as CODE_BLOCK
from bidr.index.engines.graph.construction import LINK_WORDS, count_nodes
from bidr.index.engines.ivf import MANY_LISTS
from bidr.index.storage.checksums import add_checksum_files
from bidr.index.vectors.npy_header import BLOCK, format_npy_header
from bidr.index.vectors.row_layout import CHECKSUM_DTYPE, CHECKSUM_SUFFIX, StorageKind, get_row_dtype
from bidr.index.vectors.vector_file import MAX_PREFETCHED_BYTES

ENGINES, BITS = ("scan", "lists", "hnsw"), (8, 4)
FLOAT = np.dtype("<f4")
BYTE = np.dtype("u1")
WORD = np.dtype("<u8")
# Rows are packed into 32 bits beside their scores; links are signed numbers.
MAX_DOCUMENTS = {"scan": 1 << 32, "lists": 1 << 32, "hnsw": 1 << 31}
CENTROID_LINKS = 160
# Bytes that JSON adds to a title and a text.
JSON_OVERHEAD = len('["", ""]')
SAFETENSORS_HEADER, MEANS_HEADER, MANIFEST = 152, 80, 2_000
PAGE_TABLE_ENTRY = 8
# Anonymous memory of a process that has searched 10,000 documents: 75 MB, and 129 MB in the first one, which compiles
# (`cd tests/index; python memory_probe.py build FOLDER 10000 scan; python memory_probe.py search FOLDER`).
PROCESS_BYTES = 130_000_000


@dataclass(frozen=True)
class Shape:
    """Shape of a planned or existing index.

    code_bytes: bytes of a document's code (4-bit codes: two books a byte).
    live:       documents will be deleted or replaced.
    dims:       leading dimensions of each vector that are stored; None: all.
    learned:    number of learned lists; 0: lists by k-means.
    """

    count: int
    dim: int
    engine: str = "lists"
    bits: int = 8
    code_bytes: int = 16
    stored: StorageKind = "fp16"
    live: bool = True
    dims: int | None = None
    learned: int = 0

    @property
    def books(self) -> int:
        return self.code_bytes * 8 // self.bits

    @property
    def lists(self) -> int:
        return self.learned or choose_list_count(self.count)

    @property
    def row_bytes(self) -> int:
        """Bytes of a stored vector."""
        dim = self.dims or self.dim
        return get_row_dtype(self.stored, dim).itemsize * (dim if self.stored == "fp16" else 1)

    @property
    def vector_bytes(self) -> int:
        return BLOCK + self.count * self.row_bytes

    @property
    def blocks(self) -> int:
        """Blocks of the vector file."""
        return -(-self.vector_bytes // BLOCK)


def estimate_engine_ram(shape: Shape) -> dict[str, int]:
    """Return what `Candidates.ram_bytes` of the open index would."""
    is_blocked = shape.bits == 4 and shape.engine != "hnsw"
    rows = -(-shape.count // CODE_BLOCK) * CODE_BLOCK if is_blocked else shape.count
    parts = {"codes": rows * shape.code_bytes}
    if shape.engine == "lists":
        centroid_bytes = CENTROID_LINKS if shape.lists > MANY_LISTS else FLOAT.itemsize
        parts["lists"] = shape.lists * (shape.dim + centroid_bytes) + 8 * (2 * shape.lists + 1)
        if has_block_centroids(shape.engine, shape.count):
            parts["lists"] += (
                -(-count_blocks(shape.count) // CODE_BLOCK) * CODE_BLOCK * _get_block_centroid_bytes(shape)
            )
    if shape.engine == "hnsw":
        parts["links"] = count_nodes(shape.count) * LINK_WORDS * WORD.itemsize
    return parts


def estimate_ram(shape: Shape) -> dict[str, int]:
    """Return the resident bytes of searching, by part; page tables as if every vector had been read once."""
    parts = estimate_engine_ram(shape)
    if shape.live:
        # Two bitmaps of deleted documents: by row and by position.
        parts["deleted"] = shape.count // 4
    parts["seen blocks"] = 2 * (shape.blocks // 8 + 1)
    checks = CHECKSUM_DTYPE.itemsize * shape.blocks
    parts["checksums"] = checks if checks <= MAX_PREFETCHED_BYTES else 0
    parts["page tables"] = estimate_page_tables(shape.vector_bytes)
    parts["a query"] = estimate_query_bytes(shape)
    parts["codebooks"] = FLOAT.itemsize * shape.dim * (shape.dim + (1 << shape.bits))
    parts["process"] = PROCESS_BYTES
    return parts


def estimate_page_tables(mapped: int) -> int:
    """Return the bytes of page tables of a mapped file after all its pages were read."""
    return mapped // BLOCK * PAGE_TABLE_ENTRY


def estimate_query_bytes(shape: Shape) -> int:
    """Return the bytes of a query's bitmaps: visited documents of a graph, and documents that are not deleted."""
    return (shape.count // 32 if shape.engine == "hnsw" else 0) + (shape.count // 4 if shape.live else 0)


def estimate_disk(shape: Shape, id_bytes: float | None = None, text_bytes: float | None = None) -> dict[str, int]:
    """Return the bytes of every file.

    id_bytes, text_bytes: mean size of an id, and of title and text; None: there are none.
    """
    count, checks = shape.count, shape.blocks
    files = {
        VECTORS_FILE: shape.vector_bytes,
        VECTORS_FILE.removesuffix(".npy") + CHECKSUM_SUFFIX: _get_npy_size(CHECKSUM_DTYPE, checks),
        CODES_FILE: _get_npy_size(BYTE, count, shape.code_bytes),
        CODEBOOKS_FILE: SAFETENSORS_HEADER + FLOAT.itemsize * shape.dim * (shape.dim + (1 << shape.bits)),
        "manifest.json": MANIFEST,
    }
    if shape.engine != "scan" or count >= MIN_ORDERED_DOCUMENTS:
        files[ORDER_FILE] = _get_npy_size(get_order_dtype(count), count)
    if shape.engine == "lists":
        files[OFFSETS_FILE] = _get_npy_size(OFFSET, shape.lists + 1)
        files[CENTROIDS_FILE] = _get_npy_size(FLOAT, shape.lists, shape.dim)
        if has_block_centroids(shape.engine, count):
            files[BLOCK_CENTROIDS_FILE] = _get_npy_size(BYTE, count_blocks(count), _get_block_centroid_bytes(shape))
            codewords = math.prod(choose_book_shape(shape.dim)) * CODEWORDS
            files[BLOCK_CODEWORDS_FILE] = MEANS_HEADER + FLOAT.itemsize * codewords
        if shape.learned:
            files[LEARNED_FILE] = SAFETENSORS_HEADER + 2 * FLOAT.itemsize * shape.learned * shape.dim
    if shape.engine == "hnsw":
        files[GRAPH_FILE] = _get_npy_size(WORD, count_nodes(count), LINK_WORDS)
    if id_bytes is not None:
        files |= _get_string_file_sizes(IDS, count, id_bytes) | {
            HASHES: _get_npy_size(HASH, count),
            ROWS: _get_npy_size(ROW, count),
        }
    if text_bytes is not None:
        files |= _get_string_file_sizes(DOCUMENTS, count, text_bytes + JSON_OVERHEAD)
    if shape.live:
        files["deleted"] = -(-count // 8)
    return add_checksum_files(files)


def count_pages_per_row(row_bytes: int) -> float:
    """Return the mean number of pages of a row: one, plus one for each row that crosses a page boundary."""
    return 1 + (row_bytes - math.gcd(row_bytes, BLOCK)) / BLOCK


def count_cold_pages(shape: Shape, candidates: int) -> float:
    """Return the pages a query reads with a cold page cache, at most: candidates are often adjacent."""
    pages = candidates * count_pages_per_row(shape.row_bytes)
    has_checksums_in_ram = CHECKSUM_DTYPE.itemsize * shape.blocks <= MAX_PREFETCHED_BYTES
    return min(pages + (0 if has_checksums_in_ram else candidates), shape.blocks)


def _get_block_centroid_bytes(shape: Shape) -> int:
    """Return the bytes of a quantized block centroid."""
    return -(-choose_book_shape(shape.dim)[0] // 2)


def _get_string_file_sizes(name: str, count: int, mean: float) -> dict[str, int]:
    return {f"{name}.blob": round(count * mean), f"{name}.offsets.npy": _get_npy_size(OFFSET, count + 1)}


def _get_npy_size(dtype: "np.dtype[np.generic]", *shape: int) -> int:
    return len(format_npy_header(dtype, shape)) + math.prod(shape) * dtype.itemsize
