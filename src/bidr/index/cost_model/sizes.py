"""What an index takes in RAM and on disk, computed before there is one. Pure functions; tests compare them with real
indexes (tests/index/cost_model/test_sizes.py)."""

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
from bidr.index.engines.graph.build import LINK_WORDS, count_nodes
from bidr.index.engines.ivf import MANY_LISTS
from bidr.index.engines.pshufb import BLOCK as CODE_BLOCK
from bidr.index.storage.checksums import with_checks
from bidr.index.vectors.npy_header import BLOCK, format_npy_header
from bidr.index.vectors.row_layout import CHECKSUM_DTYPE, CHECKSUM_SUFFIX, StorageKind, get_row_dtype
from bidr.index.vectors.vector_file import MAX_PREFETCHED_BYTES

ENGINES, BITS = ("scan", "lists", "hnsw"), (8, 4)
FLOAT = np.dtype("<f4")
BYTE = np.dtype("u1")
WORD = np.dtype("<u8")
# A row's number is kept in 32 bits with its score; links are chosen as signed numbers.
MOST_DOCUMENTS = {"scan": 1 << 32, "lists": 1 << 32, "hnsw": 1 << 31}
CENTROID_LINKS = 160
# What JSON puts around a title and a text.
TEXT_FRAME = len('["", ""]')
SAFETENSORS_HEADER, MEANS_HEADER, MANIFEST = 152, 80, 2_000
PAGE_TABLE_ENTRY = 8
# Anonymous memory of a process that has searched 10,000 documents: 75 MB, and 129 MB in the first one, which compiles
# (`cd tests/index; python memory_probe.py build FOLDER 10000 scan; python memory_probe.py search FOLDER`).
PROCESS = 130_000_000


@dataclass(frozen=True)
class Shape:
    """An index that may not exist yet.

    code_bytes: bytes of a document's code; of 4-bit codes, twice as many books.
    live:       documents will be deleted or replaced in it.
    dims:       how many first numbers of each vector are on disk; None: all.
    learned:    lists that the model brings; 0: they are found by k-means.
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
        """Bytes of a vector on disk."""
        dim = self.dims or self.dim
        return get_row_dtype(self.stored, dim).itemsize * (dim if self.stored == "fp16" else 1)

    @property
    def vector_bytes(self) -> int:
        return BLOCK + self.count * self.row_bytes

    @property
    def blocks(self) -> int:
        """Blocks of the file of vectors."""
        return -(-self.vector_bytes // BLOCK)


def engine_ram(shape: Shape) -> dict[str, int]:
    """What `Candidates.ram_bytes` says of an index that was opened."""
    blocked = shape.bits == 4 and shape.engine != "hnsw"
    rows = -(-shape.count // CODE_BLOCK) * CODE_BLOCK if blocked else shape.count
    parts = {"codes": rows * shape.code_bytes}
    if shape.engine == "lists":
        beside = CENTROID_LINKS if shape.lists > MANY_LISTS else FLOAT.itemsize
        parts["lists"] = shape.lists * (shape.dim + beside) + 8 * (2 * shape.lists + 1)
        if has_block_centroids(shape.engine, shape.count):
            parts["lists"] += -(-count_blocks(shape.count) // CODE_BLOCK) * CODE_BLOCK * _mean_bytes(shape)
    if shape.engine == "hnsw":
        parts["links"] = count_nodes(shape.count) * LINK_WORDS * WORD.itemsize
    return parts


def ram(shape: Shape) -> dict[str, int]:
    """All that has to stay in RAM for searching, by what it is; page tables as if every vector had been read once."""
    parts = engine_ram(shape)
    if shape.live:
        # A bit a document says whether its row is deleted, another one whether its place is.
        parts["deleted"] = shape.count // 4
    parts["seen blocks"] = 2 * (shape.blocks // 8 + 1)
    checks = CHECKSUM_DTYPE.itemsize * shape.blocks
    parts["checksums"] = checks if checks <= MAX_PREFETCHED_BYTES else 0
    parts["page tables"] = page_tables(shape.vector_bytes)
    parts["a query"] = query_bytes(shape)
    parts["codebooks"] = FLOAT.itemsize * shape.dim * (shape.dim + (1 << shape.bits))
    parts["process"] = PROCESS
    return parts


def page_tables(mapped: int) -> int:
    """What the kernel keeps for a file that is mapped and was read whole."""
    return mapped // BLOCK * PAGE_TABLE_ENTRY


def query_bytes(shape: Shape) -> int:
    """What grows with the corpus while one query is answered: bits of who was met, and of who may be found."""
    return (shape.count // 32 if shape.engine == "hnsw" else 0) + (shape.count // 4 if shape.live else 0)


def disk(shape: Shape, id_bytes: float | None = None, text_bytes: float | None = None) -> dict[str, int]:
    """Bytes of every file; ids of a mean size where there are any, titles with texts where there are any."""
    count, checks = shape.count, shape.blocks
    files = {
        VECTORS_FILE: shape.vector_bytes,
        VECTORS_FILE.removesuffix(".npy") + CHECKSUM_SUFFIX: _npy(CHECKSUM_DTYPE, checks),
        CODES_FILE: _npy(BYTE, count, shape.code_bytes),
        CODEBOOKS_FILE: SAFETENSORS_HEADER + FLOAT.itemsize * shape.dim * (shape.dim + (1 << shape.bits)),
        "manifest.json": MANIFEST,
    }
    if shape.engine != "scan" or count >= MIN_ORDERED_DOCUMENTS:
        files[ORDER_FILE] = _npy(get_order_dtype(count), count)
    if shape.engine == "lists":
        files[OFFSETS_FILE] = _npy(OFFSET, shape.lists + 1)
        files[CENTROIDS_FILE] = _npy(FLOAT, shape.lists, shape.dim)
        if has_block_centroids(shape.engine, count):
            files[BLOCK_CENTROIDS_FILE] = _npy(BYTE, count_blocks(count), _mean_bytes(shape))
            files[BLOCK_CODEWORDS_FILE] = (
                MEANS_HEADER + FLOAT.itemsize * math.prod(choose_book_shape(shape.dim)) * CODEWORDS
            )
        if shape.learned:
            files[LEARNED_FILE] = SAFETENSORS_HEADER + 2 * FLOAT.itemsize * shape.learned * shape.dim
    if shape.engine == "hnsw":
        files[GRAPH_FILE] = _npy(WORD, count_nodes(count), LINK_WORDS)
    if id_bytes is not None:
        files |= _lines(IDS, count, id_bytes) | {HASHES: _npy(HASH, count), ROWS: _npy(ROW, count)}
    if text_bytes is not None:
        files |= _lines(DOCUMENTS, count, text_bytes + TEXT_FRAME)
    if shape.live:
        files["deleted"] = -(-count // 8)
    return with_checks(files)


def pages_a_row(row_bytes: int) -> float:
    """Pages that a row lies in, on average: one, and as often another as rows cross from one into the next."""
    return 1 + (row_bytes - math.gcd(row_bytes, BLOCK)) / BLOCK


def cold_pages(shape: Shape, candidates: int) -> float:
    """Pages that a query reads of a file that is not in memory, at most: candidates often lie side by side."""
    pages = candidates * pages_a_row(shape.row_bytes)
    kept = CHECKSUM_DTYPE.itemsize * shape.blocks <= MAX_PREFETCHED_BYTES
    return min(pages + (0 if kept else candidates), shape.blocks)


def _mean_bytes(shape: Shape) -> int:
    """Bytes of the mean of a block."""
    return -(-choose_book_shape(shape.dim)[0] // 2)


def _lines(name: str, count: int, mean: float) -> dict[str, int]:
    return {f"{name}.blob": round(count * mean), f"{name}.offsets.npy": _npy(OFFSET, count + 1)}


def _npy(dtype: "np.dtype[np.generic]", *shape: int) -> int:
    return len(format_npy_header(dtype, shape)) + math.prod(shape) * dtype.itemsize
