"""Inputs of a build: checks of codes and vectors, document ids and texts, and the format of stored vectors."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.data.dataset import Titles
from bidr.data.types import Document
from bidr.data.vector_source import truncate
from bidr.errors import ConfigError, DataError
from bidr.index.builder.journal import WorkFolder, fingerprint_array
from bidr.index.candidate_source import EF_CONSTRUCTION
from bidr.index.code_packing import check_codes
from bidr.index.vectors import StorageKind
from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Codes


class DocumentInput(NamedTuple):
    """Documents, or ids alone. stamp: identifies them (JSON); titles: how titles are indexed, None: no BM25."""

    documents: Iterable[Document] | None
    ids: Iterable[str | Document] | None
    stamp: Any
    titles: Titles | None


class VectorFormat(NamedTuple):
    """How vectors are stored. dims: number of leading dimensions to keep; None: all."""

    kind: StorageKind
    dims: int | None
    unit: bool

    def truncate(self, block: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return block if self.dims is None else truncate(block, self.dims, unit=self.unit)


def check_settings(documents: bool, ids: bool, lexical: Titles | None, ef_construction: int) -> None:
    if documents and ids:
        raise ConfigError("documents and ids given, expected one of them: documents carry their own ids")
    if lexical is not None and not documents and not ids:
        raise ConfigError("lexical: no documents given, expected their texts; give documents, or leave lexical out")
    if ef_construction < 1:
        raise ConfigError(f"ef_construction: given {ef_construction}, expected 1 or more; {EF_CONSTRUCTION} is usual")


def check_arrays(codebooks: Codebooks, codes: Codes, vectors: npt.NDArray[Any]) -> None:
    check_codes(codebooks, codes)
    if vectors.ndim != 2 or vectors.shape[1] == 0 or not np.issubdtype(vectors.dtype, np.floating):
        raise DataError(f"vectors: given {vectors.dtype} of shape {vectors.shape}, expected floats of (documents, dim)")
    if len(vectors) != len(codes):
        raise DataError(f"{len(codes):,} codes but {len(vectors):,} vectors given, expected one of each a document")


def fingerprint_inputs(work: WorkFolder, codes: Codes, vectors: npt.NDArray[Any]) -> dict[str, str]:
    """Return the fingerprints of codes and vectors, if the build is resumable."""
    return {"codes": fingerprint_array(codes), "vectors": fingerprint_array(vectors)} if work.resumable else {}
