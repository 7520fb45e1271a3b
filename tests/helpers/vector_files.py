"""Write vector files and find out which of their pages are in the page cache."""

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np

from bidr.index.vectors import VectorFile, VectorWriter, page_cache_io


def write_vectors(folder: Path, vectors: np.ndarray, kind: str = "fp16", piece: int = 100) -> Path:
    with VectorWriter(lambda name: open(folder / name, "wb"), *vectors.shape, kind) as out:
        for start in range(0, len(vectors), piece):
            out.write(vectors[start : start + piece])
    return folder / "vectors.npy"


def read_with_numpy(path: Path) -> np.ndarray:
    """Read rows with numpy alone."""
    loaded = np.load(path)
    if loaded.dtype == np.float16:
        return loaded.astype(np.float32)
    return loaded["vector"].astype(np.float32) * loaded["scale"][:, None]


def evict(path: Path) -> None:
    """Drop a file from the page cache."""
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def find_spans(file: VectorFile, rows: np.ndarray) -> np.ndarray:
    blocks, _ = page_cache_io.find_unverified_blocks(
        rows, file.count, file._start, file._row_bytes, file._verified, True
    )
    return page_cache_io.coalesce_blocks(np.sort(blocks))


def find_resident_pages(file: VectorFile) -> np.ndarray:
    """Return the pages of the file that are in memory (mincore)."""
    residency = np.zeros(-(-len(file._map) // mmap.PAGESIZE), dtype=np.uint8)
    arguments = (ctypes.c_void_p(file._words.ctypes.data), ctypes.c_size_t(len(file._map)))
    assert ctypes.CDLL(None).mincore(*arguments, ctypes.c_void_p(residency.ctypes.data)) == 0
    return np.flatnonzero(residency & 1)
