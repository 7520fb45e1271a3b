"""Whether documents that were added still suit the codebooks: their codes' error, and how evenly codewords are used."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bidr.data.types import Document
from bidr.errors import REBUILD, DataError, IndexFolderError, to_short_json
from bidr.index.live.view import LiveView
from bidr.index.storage.manifest import Spread
from bidr.quantization.metrics import measure_usage
from bidr.utils.array_types import Codes, Floats, Rows

LEAST = 256
"""Documents below which nothing is said."""
ERRORS_SAMPLED, CODES_SAMPLED = 512, 8_192
# Codebooks suit what they were fitted to better than new documents of the same kind: with 10,000 of them and 16 bytes
# the error of new ones is 1.15 to 1.19 times as large, of another kind 1.25 to 4.6 times; where it is below the limit,
# codewords are used by .7 bits less evenly (bench/drift.py, six pairs; docs/reports/drift.md).
WORSE = 1.35
SURE, MOST = 4.0, 1e300
BITS = 0.5


class Drift(NamedTuple):
    """Documents added against those that the index was built from; entropies over as many codes of both."""

    documents: int
    base_error: float
    error: float
    sigmas: float
    base_entropy: float
    entropy: float

    @property
    def warning(self) -> str | None:
        """What to tell, where the codes of what was added are clearly worse."""
        worse = self.error > WORSE * self.base_error and self.sigmas > SURE
        idle = self.entropy < self.base_entropy - BITS
        if not (worse or idle):
            return None
        return (
            f"the last {self.documents:,} documents suit the codebooks badly: code error {self.error:.3f} against "
            f"{self.base_error:.3f} of the corpus, codeword entropy {self.entropy:.2f} against {self.base_entropy:.2f} "
            "bits; fewer of them will be found: train the codes again with them, or search with more candidates"
        )


def check_drift(fields: Any, state: Path) -> None:
    """Refuse what a state says of its drift where that is not what a writer says."""
    if fields is None:
        return
    known = isinstance(fields, dict) and set(fields) == set(Drift._fields)
    if not known or not all(type(value) in (int, float) and abs(value) < MOST for value in fields.values()):
        raise IndexFolderError(f"{state}: drift {to_short_json(fields)}, expected numbers by name; {REBUILD}")


class Watch:
    """Looks at what the log holds now and then; the corpus is sampled when there is something to compare with it.

    errors_of: how far codes are from documents and vectors that the index holds already; without vectors where it has
               them no longer whole.
    """

    def __init__(
        self, errors_of: Callable[[list[Document], Floats | None], Floats], warn: Callable[[str], None]
    ) -> None:
        self.errors_of, self.warn = errors_of, warn
        self.drift: Drift | None = None
        self._seen: tuple[str, int] = ("", 0)
        self._base: tuple[Spread | None, Codes] | None = None

    def look(self, view: LiveView) -> None:
        """Judge a log of LEAST documents, and again when it has grown by as many."""
        name, seen = self._seen if self._seen[0] == view.generation.name else (view.generation.name, 0)
        memory = view.memory
        if len(memory.documents) < seen + LEAST:
            return
        self._seen = name, len(memory.documents)
        base = self._base = self._base or self._sampled(view)
        self.drift = judge(*base, memory.errors, memory.codes, view.manifest.words)
        if self.drift.warning:
            self.warn(self.drift.warning)

    def _sampled(self, view: LiveView) -> tuple[Spread | None, Codes]:
        """Errors of some documents that the index was built from, and codes of more."""
        part = view.parts[0]
        few, many = (
            np.unique(np.linspace(0, part.count - 1, min(number, part.count)).astype(np.int64))
            for number in (ERRORS_SAMPLED, CODES_SAMPLED)
        )
        return view.manifest.code_error or self._errors(view, few), part.open.codes(many)

    def _errors(self, view: LiveView, rows: Rows) -> Spread | None:
        documents = [view.documents.record(row) for row in view.rows_of(rows).tolist()]
        if view.manifest.dims is None:
            return Spread.of(self.errors_of(documents, view.vectors.read(rows)))
        try:
            return Spread.of(self.errors_of(documents, None))
        except DataError:  # an index of cut vectors that nobody looked at while they were whole
            return None


def judge(base: Spread | None, base_codes: Codes, errors: Floats, codes: Codes, words: int) -> Drift:
    """Compare what was added with a sample of the corpus. base: errors there; None: only the use of codewords tells."""
    count, added = min(len(base_codes), len(codes)), Spread.of(errors)
    base = base or added
    spread = np.sqrt(base.variance / base.sampled + added.variance / added.sampled)
    sigmas = (added.mean - base.mean) / max(float(spread), 1e-12)
    entropies = (measure_usage(_sample(each, count), words).entropy_bits for each in (base_codes, codes))
    return Drift(len(codes), base.mean, added.mean, float(sigmas), *entropies)


def _sample(codes: Codes, count: int) -> Codes:
    return codes[np.linspace(0, len(codes) - 1, count).astype(np.int64)]
