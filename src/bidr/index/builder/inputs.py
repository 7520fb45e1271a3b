"""What an index is built from: arrays that fit each other, names of the rows, and how vectors are to be stored."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.data.dataset import Titles
from bidr.data.types import Document
from bidr.data.vector_source import truncate
from bidr.errors import ConfigError, DataError
from bidr.index.builder.journal import Work, stamp_of
from bidr.index.code_packing import check_codes
from bidr.index.types import EF_CONSTRUCTION
from bidr.index.vectors import StorageKind
from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Codes


class Names(NamedTuple):
    """What rows are called and say. stamp: what tells it from others; titles: whether their words are indexed too."""

    documents: Iterable[Document] | None
    ids: Iterable[str | Document] | None
    stamp: Any
    titles: Titles | None


class Stored(NamedTuple):
    """How vectors are to lie on disk. dims: how many first numbers of each; None: all."""

    kind: StorageKind
    dims: int | None
    unit: bool

    def cut(self, block: npt.NDArray[Any]) -> npt.NDArray[Any]:
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


def stamps_of(work: Work, codes: Codes, vectors: npt.NDArray[Any]) -> dict[str, str]:
    """What tells codes and vectors from others, where steps are kept."""
    return {"codes": stamp_of(codes), "vectors": stamp_of(vectors)} if work.kept else {}
