"""Building an index folder from codebooks, codes, vectors and documents. Everything large is streamed."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.codes.codebooks import Codebooks, Codes
from bidr.errors import ConfigError, DataError
from bidr.index.candidates import choose_engine
from bidr.index.documents import write_documents, write_ids
from bidr.index.engines.files import (
    CENTROIDS_FILE,
    CODES_FILE,
    GRAPH_FILE,
    OFFSETS_FILE,
    ORDER_FILE,
    order_type,
    write_array,
    write_codebooks,
    write_rows,
)
from bidr.index.faissfile import EF_CONSTRUCTION, check_codes, pack
from bidr.index.folder import Manifest, ModelStamp
from bidr.index.generation import Begin, Generation, new_generation
from bidr.index.vectors import WRITE_ROWS, Kind, VectorWriter
from bidr.progress import bar
from bidr.text.records import Document

VECTORS_FILE = "vectors.npy"
Order = npt.NDArray[np.int64]


def build_index(
    folder: Path | str,
    *,
    codebooks: Codebooks,
    codes: Codes,
    vectors: npt.NDArray[Any],
    documents: Iterable[Document] | None = None,
    ids: Iterable[str | Document] | None = None,
    model: ModelStamp | None = None,
    engine: str = "auto",
    ef_construction: int = EF_CONSTRUCTION,
    keep: int = 0,
    begin: Begin = new_generation,
    stored: Kind = "fp16",
    unit: bool = False,
) -> Path:
    """Write an index and put it in force; returns the folder of the new generation.

    codes:     (n, M) uint8, array or memmap, made with `codebooks`.
    vectors:   (n, dim) of any float type, array or memmap; ranked by inner product.
    documents: ids and texts, in the order of the rows; or only `ids`; or neither, and row numbers are the ids.
    model:     what made codes and vectors; a reader can then refuse queries of another model.
    engine:    "scan", "lists", "hnsw", or "auto": by the number of documents.
    stored:    "fp16", or "int8": half the disk, a scale a row.
    unit:      whether the vectors were brought to length 1, as what is added and asked later must be then.
    keep:      how many earlier generations to leave in the folder.
    begin:     how the folder is begun: an index that is added to begins its segments itself.

    An index that is already there is served until the new one is whole, and if anything fails.
    """
    _check_arrays(codebooks, codes, vectors)
    _check_settings(documents is not None and ids is not None, ef_construction)
    chosen = choose_engine(engine, len(codes), codebooks.bits)
    with begin(Path(folder), keep) as generation:
        _write_names(generation, documents, ids, len(codes))
        order = _write_order(generation, codebooks, codes, chosen)
        _write_vectors(generation, vectors, stored, order)
        _write_codes(generation, codebooks, codes, order)
        if chosen == "hnsw":
            _write_graph(generation, codebooks, codes, order, ef_construction)

        about = {"engine": chosen, "ef_construction": ef_construction, "model": model, "unit": unit}
        shape = {"count": len(codes), "dim": vectors.shape[1], "code_dim": codebooks.dim}
        books = {"books": codebooks.books, "words": codebooks.words}
        return generation.commit(lambda files: Manifest(**shape, **books, **about, files=dict(files)))  # type: ignore[arg-type]


def _check_settings(named_twice: bool, ef_construction: int) -> None:
    if named_twice:
        raise ConfigError("documents and ids given, expected one of them: documents carry their own ids")
    if ef_construction < 1:
        raise ConfigError(f"ef_construction: given {ef_construction}, expected 1 or more; {EF_CONSTRUCTION} is usual")


def _check_arrays(codebooks: Codebooks, codes: Codes, vectors: npt.NDArray[Any]) -> None:
    check_codes(codebooks, codes)
    if vectors.ndim != 2 or vectors.shape[1] == 0 or not np.issubdtype(vectors.dtype, np.floating):
        raise DataError(f"vectors: given {vectors.dtype} of shape {vectors.shape}, expected floats of (documents, dim)")
    if len(vectors) != len(codes):
        raise DataError(f"{len(codes):,} codes but {len(vectors):,} vectors given, expected one of each a document")


def _write_names(
    generation: Generation, documents: Iterable[Document] | None, ids: Iterable[str | Document] | None, count: int
) -> None:
    if documents is not None:
        with bar("Writing documents", count, "documents") as advance:
            write_documents(generation.file, documents, count, advance)
    elif ids is not None:
        with bar("Writing ids", count, "documents") as advance:
            write_ids(generation.file, ids, count, advance)


def _write_order(generation: Generation, codebooks: Codebooks, codes: Codes, engine: str) -> Order | None:
    """Cluster the documents and write in which order they stand; None: in the order they were given."""
    from bidr.index.engines.arrange import arranged
    from bidr.index.engines.clusters import ORDERED_DOCUMENTS, clusters, lists_for

    count = len(codes)
    if engine == "scan" and count < ORDERED_DOCUMENTS:
        return None
    # An order alone needs no fine clusters.
    lists = lists_for(count) // 4 if engine == "scan" else lists_for(count)
    with bar("Clustering", count, "documents") as advance:
        found = clusters(codebooks, codes, lists, advance)
        if engine == "hnsw":
            found = found._replace(order=np.concatenate(list(arranged(codebooks, codes, found))))
    write_array(generation, ORDER_FILE, found.order.astype(order_type(count)))
    if engine == "lists":
        write_array(generation, CENTROIDS_FILE, found.centroids)
        write_array(generation, OFFSETS_FILE, found.offsets)
    return found.order


def _ordered(array: npt.NDArray[Any], order: Order | None) -> Iterator[npt.NDArray[Any]]:
    """Rows of an array or memmap in the order in which they will stand, some at a time."""
    for start in range(0, len(array), WRITE_ROWS):
        part = slice(start, start + WRITE_ROWS)
        if order is None:
            yield array[part]
        else:
            rows = np.sort(order[part])  # read forwards: the array may be a file
            yield array[rows][np.searchsorted(rows, order[part])]


def _write_vectors(generation: Generation, vectors: npt.NDArray[Any], kind: Kind, order: Order | None) -> None:
    count, dim = vectors.shape
    with bar("Writing vectors", count, "documents") as advance, VectorWriter(generation.file, count, dim, kind) as out:
        for block in _ordered(vectors, order):
            out.write(block)
            advance(len(block))


def _write_codes(generation: Generation, codebooks: Codebooks, codes: Codes, order: Order | None) -> None:
    write_codebooks(generation, codebooks)
    packed = (pack(block, codebooks.bits) for block in _ordered(codes, order))
    shape = (len(codes), (codebooks.books * codebooks.bits + 7) // 8)
    write_rows(generation, CODES_FILE, np.dtype(np.uint8), shape, packed)


def _write_graph(
    generation: Generation, codebooks: Codebooks, codes: Codes, order: Order | None, ef_construction: int
) -> None:
    from bidr.index.engines.graph import build_links

    placed = np.concatenate(list(_ordered(codes, order)))
    with bar("Building hnsw", len(codes), "documents") as advance:
        write_array(generation, GRAPH_FILE, build_links(codebooks, placed, ef_construction, advance))
