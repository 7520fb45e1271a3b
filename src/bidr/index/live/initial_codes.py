"""Codes of an index that was created empty: none until there are enough documents to fit them to.

Until then every document has the same code, of one codeword that is zero. Searches notice it and rank all documents by
their vectors. `codes.json` in the index folder says which codes to fit, and from how many documents on.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.data.vector_source import VectorSource
from bidr.errors import REBUILD, ConfigError, IndexFolderError
from bidr.index.storage.manifest import PARSE_ERRORS
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.opq_config import PlainCodes
from bidr.quantization.pq_training import FIT_ROWS
from bidr.utils.array_types import Codes, Floats
from bidr.utils.files import read_regular, write_atomically

SETTINGS = "codes.json"
FIT_DOCUMENTS = 10_000
"""Documents from which on codes are fitted; up to here ranking all of them by vectors takes milliseconds."""
UNFITTED_CODEWORDS = 256


class FitSettings(NamedTuple):
    """Codes to fit, the engine to build over them, and the number of documents from which on."""

    codes: PlainCodes = PlainCodes()
    engine: str = "auto"
    documents: int = FIT_DOCUMENTS

    def check(self, dim: int) -> None:
        """Raise ConfigError for values that do not fit the dimensions."""
        self.codes.count_books(dim)
        is_number = isinstance(self.documents, int) and not isinstance(self.documents, bool)
        if not is_number or self.documents < self.codes.codewords:
            raise ConfigError(
                f"fit_documents: given {self.documents!r}, expected a whole number of {self.codes.codewords} or more, "
                "as many as codewords"
            )

    def write(self, folder: Path) -> None:
        fields = {"codes": self.codes._asdict(), "engine": self.engine, "documents": self.documents}
        write_atomically(folder / SETTINGS, (json.dumps(fields, indent=2) + "\n").encode())


def read_fit_settings(folder: Path) -> FitSettings:
    """Read the settings of an index; the defaults if it has none."""
    path = folder / SETTINGS
    if not path.exists():
        return FitSettings()
    try:
        fields = json.loads(read_regular(path))
        settings = FitSettings(PlainCodes(**fields["codes"]), str(fields["engine"]), fields["documents"])
        settings.codes.list_sizes(1)
        if not isinstance(settings.documents, int):
            raise ValueError(f"documents {settings.documents!r}, expected a number")
    except (OSError, *PARSE_ERRORS) as error:
        raise IndexFolderError(f"{path}: damaged ({error}); {REBUILD}") from error
    return settings


def make_unfitted_codebooks(dim: int) -> Codebooks:
    """Return codebooks that give every document the same code and score."""
    return Codebooks(np.eye(dim, dtype=np.float32), np.zeros((1, UNFITTED_CODEWORDS, dim), dtype=np.float32))


def fit_codebooks(vectors: Any, settings: PlainCodes) -> Codebooks:
    """Fit codebooks to a sample of vectors (an array-like that is indexed by rows)."""
    random = np.random.default_rng(settings.seed)
    rows = np.sort(random.choice(len(vectors), min(FIT_ROWS, len(vectors)), replace=False))
    return settings.fit(VectorSource(vectors[rows], "vectors", "ip"))


class EncodedVectors:
    """Codes of vectors as an array that is computed when it is sliced. `stamp`: fingerprint of the content."""

    ndim, dtype = 2, np.dtype(np.uint8)

    def __init__(self, vectors: Any, codebooks: Codebooks, stamp: str) -> None:
        self._vectors, self._codebooks, self.stamp = vectors, codebooks, stamp
        self.shape = (len(vectors), codebooks.books)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, selection: Any) -> Codes:
        vectors: Floats | npt.NDArray[Any] = self._vectors[selection]
        return self._codebooks.encode(vectors)
