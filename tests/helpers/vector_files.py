"""Write vector files and look at what of them is in the page cache."""

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np

from bidr.index.vectors import VectorFile, VectorWriter
from bidr.index.vectors import page_cache_io as fetching


def written(folder: Path, vectors: np.ndarray, kind: str = "fp16", piece: int = 100) -> Path:
    with VectorWriter(lambda name: open(folder / name, "wb"), *vectors.shape, kind) as out:
        for start in range(0, len(vectors), piece):
            out.write(vectors[start : start + piece])
    return folder / "vectors.npy"


def by_numpy(path: Path) -> np.ndarray:
    """The rows as anyone reads them."""
    loaded = np.load(path)
    if loaded.dtype == np.float16:
        return loaded.astype(np.float32)
    return loaded["vector"].astype(np.float32) * loaded["scale"][:, None]


def evict(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def spans_of(file: VectorFile, rows: np.ndarray) -> np.ndarray:
    blocks, _ = fetching.find_unverified_blocks(rows, file.count, file._start, file._row_bytes, file._whole, True)
    return fetching.coalesce_blocks(np.sort(blocks))


def resident(file: VectorFile) -> np.ndarray:
    """Which pages of the file are in memory, by mincore."""
    there = np.zeros(-(-len(file._map) // mmap.PAGESIZE), dtype=np.uint8)
    asked = (ctypes.c_void_p(file._words.ctypes.data), ctypes.c_size_t(len(file._map)))
    assert ctypes.CDLL(None).mincore(*asked, ctypes.c_void_p(there.ctypes.data)) == 0
    return np.flatnonzero(there & 1)
