"""Files of an engine in an index: plain .npy and safetensors files."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.data.vector_source import advise_dontneed
from bidr.errors import REBUILD, IndexFolderError, ModelError
from bidr.index.candidate_source import Candidates
from bidr.index.storage.checksums import VerifiedArray
from bidr.index.storage.manifest import HasFiles, Manifest
from bidr.index.vectors import FileCreator, read_npy_header
from bidr.quantization.codebooks import READ_ERRORS, Codebooks, check_arrays, load_arrays
from bidr.utils.array_types import Codes

CODEBOOKS_FILE, CODES_FILE, ORDER_FILE = "codebooks.safetensors", "codes.npy", "order.npy"
CENTROIDS_FILE, OFFSETS_FILE, GRAPH_FILE = "centroids.npy", "lists.npy", "graph.npy"
# Learned IVF centroids of the model, to rebuild the lists; absent where lists come from k-means.
LEARNED_FILE = "learned.safetensors"
# Coded block centroids and their codewords; absent in small indexes.
BLOCK_CENTROIDS_FILE, BLOCK_CODEWORDS_FILE = "means.npy", "means.safetensors"
# Files read into RAM by engine; their checksums are verified when an index is opened.
RAM_FILES = {
    "scan": (CODEBOOKS_FILE, CODES_FILE),
    "lists": (CODEBOOKS_FILE, CODES_FILE, CENTROIDS_FILE, OFFSETS_FILE),
    "hnsw": (CODEBOOKS_FILE, CODES_FILE, GRAPH_FILE),
}


def write_codebooks(create: FileCreator, codebooks: Codebooks) -> None:
    """Write the codebooks: rotation, codewords, and the arrays that encode documents."""
    from safetensors.numpy import save

    arrays = {name: array for name, array in codebooks._asdict().items() if array is not None}
    with create(CODEBOOKS_FILE) as out:
        out.write(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))


def load_engine(folder: Path, engine: str, ef: int | None = None, manifest: Manifest | None = None) -> Candidates:
    """Load an engine from files with verified checksums.

    Args:
        manifest: Compared with codes and codebooks before memory is allocated.
    """
    from bidr.index.engines.code_store import CodeStore
    from bidr.index.engines.flat import FlatEngine
    from bidr.index.engines.graph.construction import LINK_WORDS, count_nodes
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
        raise IndexFolderError(
            f"{folder}: codes of {codes.shape[1]} bytes do not fit {codebooks.books} books; {REBUILD}"
        )
    store = CodeStore(codebooks, codes, blocks=engine != "hnsw", allocate=partial(load_shared, folder / CODES_FILE))
    for array in codebooks:  # not used by searches
        if array is not None:
            advise_dontneed(array)
    if engine == "scan":
        return FlatEngine(store)
    if engine == "lists":
        centroids, offsets = _load_lists(folder, store.count, codebooks.dim)
        # A file that the manifest does not list belongs to no generation, and has no checksum.
        is_listed = manifest is None or BLOCK_CENTROIDS_FILE in manifest.files
        block_centroids = _load_block_centroids(folder, store.count, codebooks.dim) if is_listed else None
        return IvfEngine(store, centroids, offsets, ef, block_centroids)
    if engine == "hnsw":
        links = load_shared(folder / GRAPH_FILE, lambda: _read_links(folder / GRAPH_FILE))
        if links.shape != (count_nodes(store.count), LINK_WORDS):
            raise IndexFolderError(
                f"{folder / GRAPH_FILE}: shape {links.shape} does not fit {store.count:,} rows; {REBUILD}"
            )
        return GraphEngine(store, links, ef)
    raise IndexFolderError(
        f"{folder}: unknown engine {engine!r} in the manifest, expected scan, lists or hnsw; {REBUILD}"
    )


def _check_manifest(folder: Path, codebooks: Codebooks, count: int, manifest: Manifest | None) -> None:
    """Raise IndexFolderError for codes or codebooks that contradict the manifest."""
    if manifest is None:
        return
    values = (count, codebooks.books, codebooks.words, codebooks.dim)
    expected = (manifest.count, manifest.books, manifest.words, manifest.code_dim)
    if values != expected:
        raise IndexFolderError(
            f"{folder}: codes, books, codewords and dimensions are {values}, the manifest states {expected}; {REBUILD}"
        )


def _load_lists(folder: Path, count: int, dim: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Load the centroids of the lists and their offsets."""
    centroids = read_array(folder / CENTROIDS_FILE, np.dtype("<f4"), 2)
    offsets = read_array(folder / OFFSETS_FILE, np.dtype("<i8"), 1)
    if offsets[0] != 0 or offsets[-1] != count or (offsets[1:] < offsets[:-1]).any():
        raise IndexFolderError(f"{folder / OFFSETS_FILE}: list offsets do not cover {count:,} rows; {REBUILD}")
    if centroids.shape != (len(offsets) - 1, dim):
        raise IndexFolderError(
            f"{folder / CENTROIDS_FILE}: shape {centroids.shape}, expected {(len(offsets) - 1, dim)}; {REBUILD}"
        )
    if not np.isfinite(centroids).all():
        raise IndexFolderError(f"{folder / CENTROIDS_FILE}: contains numbers that are not finite; {REBUILD}")
    return centroids, offsets


def list_ram_files(files: HasFiles, engine: str) -> tuple[str, ...]:
    """Return the files of an index that are read into RAM."""
    return RAM_FILES[engine] + tuple(
        name for name in (BLOCK_CODEWORDS_FILE, BLOCK_CENTROIDS_FILE) if name in files.files
    )


def read_codewords(folder: Path) -> npt.NDArray[np.float32]:
    """Read the codewords of block centroids: (books, 16, width)."""
    from safetensors import SafetensorError

    from bidr.index.engines.block_centroids import CODEWORDS

    path = folder / BLOCK_CODEWORDS_FILE
    try:
        words = load_arrays(path)["words"]
        check_arrays({"words": words}, {"words": 3})
    except (*READ_ERRORS, SafetensorError) as error:
        raise IndexFolderError(f"{path}: cannot read codewords ({error}); {REBUILD}") from error
    if words.shape[1] != CODEWORDS:
        raise IndexFolderError(f"{path}: shape {words.shape}, expected {CODEWORDS} codewords per book; {REBUILD}")
    return words


def _load_block_centroids(folder: Path, count: int, dim: int) -> Any:
    """Load the block centroids if the index has any."""
    from bidr.index.engines.block_centroids import BlockCentroids, count_blocks

    if not (folder / BLOCK_CENTROIDS_FILE).exists():
        return None
    words = read_codewords(folder)
    rows = open_array(folder / BLOCK_CENTROIDS_FILE, np.dtype(np.uint8), 2)
    if rows.shape != (count_blocks(count), -(-len(words) // 2)) or len(words) != -(-dim // words.shape[2]):
        raise IndexFolderError(
            f"{folder / BLOCK_CENTROIDS_FILE}: shape {rows.shape} does not fit {count:,} rows; {REBUILD}"
        )
    return BlockCentroids(words, rows)


def _read_links(path: Path) -> npt.NDArray[np.uint64]:
    try:
        return read_array(path, np.dtype("<u8"), 2)
    except IndexFolderError as error:
        read_npy_header(path, np.dtype(np.uint8), 2)  # otherwise the file is damaged
        raise IndexFolderError(f"{path}: links of single documents, an older format; {REBUILD}") from error


def open_order(folder: Path, files: HasFiles, count: int) -> VerifiedArray:
    """Open the input row of each position, on disk: read for results only."""
    order = VerifiedArray(folder, ORDER_FILE, get_order_dtype(count), files, below=count)
    if len(order) != count:
        raise IndexFolderError(f"{order.path}: {len(order):,} rows, expected {count:,}; {REBUILD}")
    return order


def get_order_dtype(count: int) -> np.dtype[Any]:
    return np.dtype("<i4" if count < 1 << 31 else "<i8")


def open_array(path: Path, dtype: np.dtype[Any], dimensions: int) -> npt.NDArray[Any]:
    """Map an .npy file."""
    shape, start = read_npy_header(path, dtype, dimensions)
    return np.memmap(path, dtype=dtype, mode="r", offset=start, shape=shape)


def read_array(path: Path, dtype: np.dtype[Any], dimensions: int) -> npt.NDArray[Any]:
    """Read an .npy file into RAM."""
    shape, start = read_npy_header(path, dtype, dimensions)
    return np.fromfile(path, dtype=dtype, offset=start).reshape(shape)
