"""An engine as files of an index: plain numpy and safetensors, which any reader opens in a line."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.data.vector_source import advise_dontneed
from bidr.errors import REBUILD, IndexFolderError, ModelError
from bidr.index.storage.manifest import HasFiles, Manifest
from bidr.index.storage.verified_mmap import CheckedArray
from bidr.index.types import Candidates
from bidr.index.vectors import FileCreator, read_npy_header
from bidr.quantization.codebooks import READ_ERRORS, Codebooks, check_arrays, load_arrays
from bidr.utils.array_types import Codes

CODEBOOKS_FILE, CODES_FILE, ORDER_FILE = "codebooks.safetensors", "codes.npy", "order.npy"
CENTROIDS_FILE, OFFSETS_FILE, GRAPH_FILE = "centroids.npy", "lists.npy", "graph.npy"
# Where the lists are those that the model learned: all of them, for whoever makes lists of these documents again.
LEARNED_FILE = "learned.safetensors"
# The means of blocks of 32 places, coded, and their codewords; absent in small indexes and those of earlier versions.
MEANS_FILE, MEAN_WORDS_FILE = "means.npy", "means.safetensors"
# What is read into RAM, by engine; it is checked whole when an index is opened.
RAM_FILES = {
    "scan": (CODEBOOKS_FILE, CODES_FILE),
    "lists": (CODEBOOKS_FILE, CODES_FILE, CENTROIDS_FILE, OFFSETS_FILE),
    "hnsw": (CODEBOOKS_FILE, CODES_FILE, GRAPH_FILE),
}


def write_codebooks(create: FileCreator, codebooks: Codebooks) -> None:
    """Rotation and codewords, and what encodes documents."""
    from safetensors.numpy import save

    arrays = {name: array for name, array in codebooks._asdict().items() if array is not None}
    with create(CODEBOOKS_FILE) as out:
        out.write(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))


def load_engine(folder: Path, engine: str, ef: int | None = None, manifest: Manifest | None = None) -> Candidates:
    """An engine from files of which the checksums were found right.

    manifest: what of them it says is compared before memory is taken.
    """
    from bidr.index.engines.code_store import CodeStore
    from bidr.index.engines.flat import FlatEngine
    from bidr.index.engines.graph.build import LINK_WORDS, count_nodes
    from bidr.index.engines.graph.engine import GraphEngine
    from bidr.index.engines.ivf import IvfEngine
    from bidr.index.engines.shared_memory import load_shared

    try:
        codebooks = Codebooks.load(folder / CODEBOOKS_FILE, mapped=True)
    except ModelError as error:
        raise IndexFolderError(f"{folder / CODEBOOKS_FILE}: {error}; {REBUILD}") from error
    codes: Codes = open_array(folder / CODES_FILE, np.dtype(np.uint8), 2)
    _check_manifest(folder, codebooks, len(codes), manifest)
    if codes.shape[1] != (codebooks.books * codebooks.bits + 7) // 8:
        raise IndexFolderError(f"{folder}: codes of {codes.shape[1]} bytes for {codebooks.books} books; {REBUILD}")
    store = CodeStore(codebooks, codes, blocks=engine != "hnsw", allocate=partial(load_shared, folder / CODES_FILE))
    for array in codebooks:  # searching takes none of it any more
        if array is not None:
            advise_dontneed(array)
    if engine == "scan":
        return FlatEngine(store)
    if engine == "lists":
        centroids, offsets = _load_lists(folder, store.count, codebooks.dim)
        return IvfEngine(store, centroids, offsets, ef, _load_block_centroids(folder, store.count, codebooks.dim))
    if engine == "hnsw":
        links = load_shared(folder / GRAPH_FILE, lambda: _read_links(folder / GRAPH_FILE))
        if links.shape != (count_nodes(store.count), LINK_WORDS):
            raise IndexFolderError(f"{folder / GRAPH_FILE}: {links.shape} for {store.count:,} rows; {REBUILD}")
        return GraphEngine(store, links, ef)
    raise IndexFolderError(
        f"{folder}: the manifest names the engine {engine!r}, expected scan, lists or hnsw; {REBUILD}"
    )


def _check_manifest(folder: Path, codebooks: Codebooks, count: int, manifest: Manifest | None) -> None:
    """Refuse codes and codebooks that are not what the manifest says of them."""
    if manifest is None:
        return
    values = (count, codebooks.books, codebooks.words, codebooks.dim)
    expected = (manifest.count, manifest.books, manifest.words, manifest.code_dim)
    if values != expected:
        raise IndexFolderError(
            f"{folder}: codes, books, codewords and dimensions are {values}, the manifest says {expected}; {REBUILD}"
        )


def _load_lists(folder: Path, count: int, dim: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """The lists' centroids, and where each begins."""
    centroids = read_array(folder / CENTROIDS_FILE, np.dtype("<f4"), 2)
    offsets = read_array(folder / OFFSETS_FILE, np.dtype("<i8"), 1)
    if offsets[0] != 0 or offsets[-1] != count or (offsets[1:] < offsets[:-1]).any():
        raise IndexFolderError(f"{folder / OFFSETS_FILE}: lists that do not cover {count:,} rows; {REBUILD}")
    if centroids.shape != (len(offsets) - 1, dim):
        raise IndexFolderError(f"{folder / CENTROIDS_FILE}: {centroids.shape} for other lists; {REBUILD}")
    if not np.isfinite(centroids).all():
        raise IndexFolderError(f"{folder / CENTROIDS_FILE}: holds a number that is not finite; {REBUILD}")
    return centroids, offsets


def list_ram_files(files: HasFiles, engine: str) -> tuple[str, ...]:
    """The files of an index that are read into RAM."""
    return RAM_FILES[engine] + tuple(name for name in (MEAN_WORDS_FILE, MEANS_FILE) if name in files.files)


def read_codewords(folder: Path) -> npt.NDArray[np.float32]:
    """The codewords of means: (books, 16, width)."""
    from safetensors import SafetensorError

    from bidr.index.engines.block_centroids import CODEWORDS

    path = folder / MEAN_WORDS_FILE
    try:
        words = load_arrays(path)["words"]
        check_arrays({"words": words}, {"words": 3})
    except (*READ_ERRORS, SafetensorError) as error:
        raise IndexFolderError(f"{path}: no codewords in it ({error}); {REBUILD}") from error
    if words.shape[1] != CODEWORDS:
        raise IndexFolderError(f"{path}: of shape {words.shape}, expected {CODEWORDS} codewords a book; {REBUILD}")
    return words


def _load_block_centroids(folder: Path, count: int, dim: int) -> Any:
    """The means of blocks, where there are any."""
    from bidr.index.engines.block_centroids import BlockCentroids, count_blocks

    if not (folder / MEANS_FILE).exists():
        return None
    words = read_codewords(folder)
    rows = open_array(folder / MEANS_FILE, np.dtype(np.uint8), 2)
    if rows.shape != (count_blocks(count), -(-len(words) // 2)) or len(words) != -(-dim // words.shape[2]):
        raise IndexFolderError(f"{folder / MEANS_FILE}: {rows.shape} for {count:,} rows; {REBUILD}")
    return BlockCentroids(words, rows)


def _read_links(path: Path) -> npt.NDArray[np.uint64]:
    try:
        return read_array(path, np.dtype("<u8"), 2)
    except IndexFolderError as error:
        read_npy_header(path, np.dtype(np.uint8), 2)  # neither are they of another kind
        raise IndexFolderError(
            f"{path}: links of single documents, as earlier versions of bidr wrote them; {REBUILD}"
        ) from error


def open_order(folder: Path, files: HasFiles, count: int) -> CheckedArray:
    """Which row stands at a place, on disk: looked at for answers only."""
    order = CheckedArray(folder, ORDER_FILE, get_order_dtype(count), files, below=count)
    if len(order) != count:
        raise IndexFolderError(f"{order.path}: {len(order):,} places, expected {count:,}; {REBUILD}")
    return order


def get_order_dtype(count: int) -> np.dtype[Any]:
    return np.dtype("<i4" if count < 1 << 31 else "<i8")


def open_array(path: Path, dtype: np.dtype[Any], dimensions: int) -> npt.NDArray[Any]:
    """An .npy file that stays on disk."""
    shape, start = read_npy_header(path, dtype, dimensions)
    return np.memmap(path, dtype=dtype, mode="r", offset=start, shape=shape)


def read_array(path: Path, dtype: np.dtype[Any], dimensions: int) -> npt.NDArray[Any]:
    """A whole .npy file in RAM."""
    shape, start = read_npy_header(path, dtype, dimensions)
    return np.fromfile(path, dtype=dtype, offset=start).reshape(shape)
