"""Create an index without documents."""

import os
from pathlib import Path
from typing import Literal

import numpy as np

from bidr.data.dataset import Titles
from bidr.data.types import Document
from bidr.data.vector_source import Metric
from bidr.errors import ConfigError
from bidr.index.builder.build import build_index
from bidr.index.live.initial_codes import FIT_DOCUMENTS, FitSettings, make_unfitted_codebooks
from bidr.index.live.writer import LiveWriter
from bidr.index.vectors import StorageKind
from bidr.pipeline.document_encoders import refuse_documents
from bidr.quantization.opq_config import PlainCodes
from bidr.utils.files import remove, storage_errors, sync_folder

MAX_DIM = 1 << 16
# A segment has at least one document; this one is deleted before anyone sees the index.
PLACEHOLDER = "bidr:created-empty"


def create_index(
    folder: Path | str,
    dim: int,
    *,
    metric: Metric = "cosine",
    bytes_per_doc: int | None = None,
    codewords: Literal[16, 256] = 16,
    engine: str = "auto",
    stored: StorageKind = "fp16",
    lexical: Titles | None = None,
    fit_documents: int = FIT_DOCUMENTS,
) -> Path:
    """Create an index without documents, to which vectors are added by `bidr.open_writer`.

    Searches rank all documents by their vectors until there are `fit_documents`; then the writer fits codes to them,
    while readers go on.

    Args:
        folder: a folder that does not exist.
        dim: dimensions of the vectors.
        metric: "cosine" or "ip"; with cosine, vectors are L2-normalized.
        bytes_per_doc: size of the codes; None: 32, or the largest valid size below.
        codewords: per codebook (see `PlainCodes`).
        engine: over the fitted codes; "auto": by the number of documents.
        stored: "fp16", or "int8" with a scale per row.
        lexical: index texts for BM25, with titles ("prepend") or without ("ignore").
        fit_documents: number of documents from which on codes are fitted.
    """
    folder = Path(folder)
    if folder.exists():
        raise ConfigError(f"{folder} exists already; give a folder that does not exist")
    if isinstance(dim, bool) or not isinstance(dim, int | np.integer) or not 1 <= dim <= MAX_DIM:
        raise ConfigError(f"dim: given {dim!r}, expected a whole number from 1 to {MAX_DIM}")
    if metric not in ("cosine", "ip"):
        raise ConfigError(f"metric: given {metric!r}, expected cosine or ip")
    codes = PlainCodes(bytes_per_doc, codewords, metric)
    settings = FitSettings(codes, engine, fit_documents)
    settings.check(int(dim))
    staging = folder.with_name(f".{folder.name}.{os.getpid()}.new")
    with storage_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            vector = np.full((1, dim), 1 / np.sqrt(dim), dtype=np.float32)
            books = make_unfitted_codebooks(int(dim))
            build_index(
                staging,
                codebooks=books,
                codes=books.encode(vector),
                vectors=vector,
                documents=[Document(PLACEHOLDER, "", "")],
                engine="scan",
                stored=stored,
                unit=metric == "cosine",
                lexical=lexical,
            )
            settings.write(staging)
            with LiveWriter(staging, refuse_documents) as writer:
                writer.delete([PLACEHOLDER])
            os.rename(staging, folder)
            sync_folder(folder.parent)
        finally:
            remove(staging)
    return folder
