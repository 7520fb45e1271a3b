"""Detect drift: whether added documents still fit the codebooks, by quantization error and codeword entropy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bidr.data.types import Document
from bidr.errors import REBUILD, DataError, IndexFolderError, to_short_json
from bidr.index.live.view import LiveView
from bidr.index.storage.manifest import ErrorStats
from bidr.quantization.code_quality import measure_usage
from bidr.utils.array_types import Codes, Floats, Rows

MIN_DOCUMENTS = 256
"""Drift is measured from this many added documents on."""
ERRORS_SAMPLED, CODES_SAMPLED = 512, 8_192
# With codebooks of 16 bytes trained on 10,000 documents, the error of unseen documents of the same corpus is 1.15 to
# 1.19 times as large, of another corpus 1.25 to 4.6 times; where it is below the limit, the codeword entropy is lower
# by 0.7 bits (bench/drift.py, six pairs; docs/reports/drift.md).
MAX_ERROR_RATIO = 1.35
MIN_SIGMAS, MAX_MAGNITUDE = 4.0, 1e300
MAX_ENTROPY_LOSS = 0.5


class Drift(NamedTuple):
    """Quantization error and codeword entropy of added documents and of the corpus, from samples of equal size."""

    documents: int
    base_error: float
    error: float
    sigmas: float
    base_entropy: float
    entropy: float

    @property
    def warning(self) -> str | None:
        """Warning text; None if the added documents fit."""
        has_high_error = self.error > MAX_ERROR_RATIO * self.base_error and self.sigmas > MIN_SIGMAS
        has_low_entropy = self.entropy < self.base_entropy - MAX_ENTROPY_LOSS
        if not (has_high_error or has_low_entropy):
            return None
        return (
            f"the last {self.documents:,} documents fit the codebooks badly: quantization error {self.error:.3f}, "
            f"{self.base_error:.3f} for the corpus; codeword entropy {self.entropy:.2f} bits, {self.base_entropy:.2f} "
            "for the corpus; their recall will be lower: train the codes again with them, or search more candidates"
        )


def validate_drift(fields: Any, state: Path) -> None:
    """Raise IndexFolderError if the drift of a state does not have the fields of `Drift`."""
    if fields is None:
        return
    has_fields = isinstance(fields, dict) and set(fields) == set(Drift._fields)
    if not has_fields or not all(
        type(value) in (int, float) and abs(value) < MAX_MAGNITUDE for value in fields.values()
    ):
        raise IndexFolderError(f"{state}: drift {to_short_json(fields)}, expected numbers by name; {REBUILD}")


class DriftMonitor:
    """Measures drift as the log grows; the corpus is sampled the first time.

    compute_errors: quantization errors of indexed documents and their vectors (None if they are stored truncated).
    """

    def __init__(
        self, compute_errors: Callable[[list[Document], Floats | None], Floats], warn: Callable[[str], None]
    ) -> None:
        self.compute_errors, self.warn = compute_errors, warn
        self.drift: Drift | None = None
        self._measured: tuple[str, int] = ("", 0)
        self._base: tuple[ErrorStats | None, Codes] | None = None

    def update(self, view: LiveView) -> None:
        """Measure drift once the log holds MIN_DOCUMENTS more documents than at the last time."""
        generation, measured = self._measured
        if generation != view.generation.name:
            measured = 0
        memtable = view.memtable
        if len(memtable.documents) < measured + MIN_DOCUMENTS:
            return
        self._measured = view.generation.name, len(memtable.documents)
        base = self._base = self._base or self._sample_corpus(view)
        self.drift = measure_drift(*base, memtable.errors, memtable.codes, view.manifest.words)
        if self.drift.warning:
            self.warn(self.drift.warning)

    def _sample_corpus(self, view: LiveView) -> tuple[ErrorStats | None, Codes]:
        """Sample quantization errors, and more codes, of the first segment."""
        segment = view.segments[0]
        error_positions, code_positions = (
            np.unique(np.linspace(0, segment.count - 1, min(size, segment.count)).astype(np.int64))
            for size in (ERRORS_SAMPLED, CODES_SAMPLED)
        )
        errors = view.manifest.code_error or self._measure_errors(view, error_positions)
        return errors, segment.get_codes(code_positions)

    def _measure_errors(self, view: LiveView, positions: Rows) -> ErrorStats | None:
        documents = [view.documents.record(row) for row in view.rows_of(positions).tolist()]
        if view.manifest.dims is None:
            return ErrorStats.from_errors(self.compute_errors(documents, view.vectors.read(positions)))
        try:
            return ErrorStats.from_errors(self.compute_errors(documents, None))
        except DataError:  # truncated vectors, and no error of the full ones in the manifest
            return None


def measure_drift(base: ErrorStats | None, base_codes: Codes, errors: Floats, codes: Codes, words: int) -> Drift:
    """Compare added documents with a sample of the corpus.

    base: quantization errors of the corpus; None: compare codeword entropies only.
    """
    count, added = min(len(base_codes), len(codes)), ErrorStats.from_errors(errors)
    base = base or added
    standard_error = np.sqrt(base.variance / base.sampled + added.variance / added.sampled)
    sigmas = (added.mean - base.mean) / max(float(standard_error), 1e-12)
    entropies = (measure_usage(_sample_codes(sample, count), words).entropy_bits for sample in (base_codes, codes))
    return Drift(len(codes), base.mean, added.mean, float(sigmas), *entropies)


def _sample_codes(codes: Codes, count: int) -> Codes:
    return codes[np.linspace(0, len(codes) - 1, count).astype(np.int64)]
