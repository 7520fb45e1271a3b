"""Building an index folder from codebooks, codes, vectors and documents. Everything large is streamed."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.codes.codebooks import Codebooks, Codes
from bidr.errors import ConfigError, DataError
from bidr.index.candidates import choose_engine
from bidr.index.documents import write_documents, write_ids
from bidr.index.faissfile import EF_CONSTRUCTION, check_codes, export_faiss, write_faiss
from bidr.index.folder import FileEntry, Manifest, ModelStamp
from bidr.index.generation import Begin, Generation, new_generation
from bidr.index.vectors import Kind, VectorWriter, blocks
from bidr.progress import bar
from bidr.text.records import Document

CODES_FILE = "codes.faiss"
VECTORS_FILE = "vectors.npy"


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
) -> Path:
    """Write an index and put it in force; returns the folder of the new generation.

    codes:     (n, M) uint8, array or memmap, made with `codebooks`.
    vectors:   (n, dim) of any float type, array or memmap; ranked by inner product.
    documents: ids and texts, in the order of the rows; or only `ids`; or neither, and row numbers are the ids.
    model:     what made codes and vectors; a reader can then refuse queries of another model.
    engine:    "scan", "hnsw", or "auto": by the number of documents.
    stored:    "fp16", or "int8": half the disk, a scale a row.
    keep:      how many earlier generations to leave in the folder.
    begin:     how the folder is begun: an index that is added to begins its segments itself.

    An index that is already there is served until the new one is whole, and if anything fails.
    """
    _check_arrays(codebooks, codes, vectors)
    if documents is not None and ids is not None:
        raise ConfigError("documents and ids given, expected one of them: documents carry their own ids")
    if ef_construction < 1:
        raise ConfigError(f"ef_construction: given {ef_construction}, expected 1 or more; {EF_CONSTRUCTION} is usual")
    chosen = choose_engine(engine, len(codes))
    with begin(Path(folder), keep) as generation:
        _write_names(generation, documents, ids, len(codes))
        _write_vectors(generation, vectors, stored)
        _write_codes(generation, codebooks, codes, chosen, ef_construction)

        def describe(files: dict[str, FileEntry]) -> Manifest:
            return Manifest(
                count=len(codes),
                dim=vectors.shape[1],
                code_dim=codebooks.dim,
                books=codebooks.books,
                words=codebooks.words,
                engine=chosen,
                ef_construction=ef_construction,
                model=model,
                files=dict(files),
            )

        return generation.commit(describe)


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


def _write_vectors(generation: Generation, vectors: npt.NDArray[Any], kind: Kind) -> None:
    count, dim = vectors.shape
    with bar("Writing vectors", count, "documents") as advance, VectorWriter(generation.file, count, dim, kind) as out:
        for block in blocks(vectors):
            out.write(block)
            advance(len(block))


def _write_codes(generation: Generation, codebooks: Codebooks, codes: Codes, engine: str, ef_construction: int) -> None:
    with bar(f"Building {engine}", len(codes), "documents") as advance:
        index = export_faiss(codebooks, codes, engine=engine, ef_construction=ef_construction, advance=advance)
    with generation.file(CODES_FILE) as out:
        write_faiss(index, out)
