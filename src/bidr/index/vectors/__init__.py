"""Vector files: layout, writing, and reads through the page cache or past it."""

from bidr.index.vectors.npy_header import BinaryWriter, read_npy_header, write_npy_header
from bidr.index.vectors.row_layout import MAX_VALUES, STORAGE_KINDS, StorageKind
from bidr.index.vectors.vector_file import FetchedRows, Fp16Vectors, VectorFile, score_fp16
from bidr.index.vectors.vector_memory import CacheSize, VectorMemory
from bidr.index.vectors.vector_writer import WRITE_ROWS, FileCreator, VectorWriter, iter_blocks
from bidr.utils.read_stats import ReadStats

__all__ = [
    "MAX_VALUES",
    "STORAGE_KINDS",
    "WRITE_ROWS",
    "BinaryWriter",
    "CacheSize",
    "FetchedRows",
    "FileCreator",
    "Fp16Vectors",
    "ReadStats",
    "StorageKind",
    "VectorFile",
    "VectorMemory",
    "VectorWriter",
    "iter_blocks",
    "read_npy_header",
    "score_fp16",
    "write_npy_header",
]
