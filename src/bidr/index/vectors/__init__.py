"""Vectors on disk."""

from bidr.index.vectors.direct_reader import Fetched
from bidr.index.vectors.npy_header import Out, read_npy_header, write_npy_header
from bidr.index.vectors.row_layout import KINDS, LARGEST, Kind
from bidr.index.vectors.vector_file import Halves, VectorFile, score_halves
from bidr.index.vectors.vector_writer import WRITE_ROWS, NewFile, VectorWriter, blocks

__all__ = [
    "KINDS",
    "LARGEST",
    "WRITE_ROWS",
    "Fetched",
    "Halves",
    "Kind",
    "NewFile",
    "Out",
    "VectorFile",
    "VectorWriter",
    "blocks",
    "read_npy_header",
    "score_halves",
    "write_npy_header",
]
