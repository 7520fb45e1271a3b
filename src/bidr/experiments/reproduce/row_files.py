"""Result of a row: a JSON file of its own, written atomically when the row is complete."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from bidr.data.positives import Positives
from bidr.errors import ConfigError, DataError
from bidr.utils.array_types import Rows
from bidr.utils.files import write_atomically

FORMAT = 1
FOLDER = "rows"
ABSENT = 0
"""The rank of a relevant document that is not among the results."""


class RelevantRanks(NamedTuple):
    """Ranks (from 1) of the relevant documents of each query; ABSENT where it is not among the results.

    Recall at every cut-off follows from them, of all queries and of each.
    """

    starts: Rows
    ranks: Rows

    @classmethod
    def from_pairs(cls, pairs: Positives, ranks: Rows) -> Self:
        """Pair the positives of the queries with their ranks."""
        return cls(np.asarray(pairs.starts, dtype=np.int64), np.asarray(ranks, dtype=np.int64))

    def compute_recalls(self, cutoff: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Compute each query's share of relevant documents among its first `cutoff` results."""
        hits = (self.ranks != ABSENT) & (self.ranks <= cutoff)
        counts = np.diff(self.starts)
        queries = np.repeat(np.arange(len(counts)), counts)
        return np.bincount(queries, weights=hits, minlength=len(counts)) / counts

    def compute_recall(self, cutoff: int) -> float:
        """Compute the mean recall at a cut-off."""
        return float(self.compute_recalls(cutoff).mean())

    def count_needed(self, recall: float) -> int | None:
        """Count the results that a recall takes; None if it is not reached."""
        counts = np.diff(self.starts)
        weights = np.repeat(1 / counts, counts) / len(counts)
        order = np.argsort(np.where(self.ranks == ABSENT, np.iinfo(np.int64).max, self.ranks), kind="stable")
        reached = np.cumsum(np.where(self.ranks[order] == ABSENT, 0.0, weights[order])) >= recall - 1e-9
        return int(self.ranks[order][reached.argmax()]) if reached.any() else None

    def format(self) -> str:
        """Format as text: queries are separated by a space, the ranks of one by a comma."""
        parts = np.split(self.ranks, self.starts[1:-1])
        return " ".join(",".join(map(str, part.tolist())) for part in parts)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of `format`."""
        parts = [[int(rank) for rank in query.split(",")] for query in text.split()]
        starts = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
        return cls(starts, np.array([rank for part in parts for rank in part], dtype=np.int64))


@dataclass(frozen=True, kw_only=True)
class RowResult:
    """A row of one dataset, encoder and seed. Texts of ranks are parsed by `get_ranks`."""

    row: str
    data: str
    encoder: str
    seed: int
    split: str
    documents: int
    queries: int
    candidates: int
    bytes_per_doc: int
    settings: dict[str, Any]
    """Settings of the run that differ from the defaults."""
    ranks: dict[str, str] = field(default_factory=dict)
    """'answers': ranks of the relevant documents in the final ranking; 'candidates': in the candidate search."""
    dev: dict[str, float] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    """Single measures: milliseconds of a query, seconds of training, bytes of RAM a document."""
    ram: dict[str, float] = field(default_factory=dict)
    """Bytes of RAM a document, by part."""
    curve: list[dict[str, float]] = field(default_factory=list)
    """Measures by number of candidates or documents."""
    notes: list[str] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    is_measured: bool = True
    """False: it could not be measured; the notes say why."""
    format: int = FORMAT

    def get_ranks(self, name: str) -> RelevantRanks | None:
        """Return the ranks of the answers or of the candidates, if the row has them."""
        return RelevantRanks.parse(self.ranks[name]) if name in self.ranks else None


class RowStore:
    """The results in DIR/rows."""

    def __init__(self, out: Path) -> None:
        self.folder = out / FOLDER

    def get_path(self, data: str, encoder: str, seed: int, row: str) -> Path:
        """Return the file of a row."""
        parts = [re.sub(r"[^\w.-]", "_", part) for part in (data, encoder, f"seed{seed}", row)]
        return self.folder / f"{'+'.join(parts)}.json"

    def load(self, data: str, encoder: str, seed: int, row: str) -> RowResult | None:
        """Load a finished row; None if it is not finished."""
        path = self.get_path(data, encoder, seed, row)
        return read_row(path) if path.exists() else None

    def save(self, result: RowResult) -> Path:
        """Write a finished row, atomically."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.get_path(result.data, result.encoder, result.seed, result.row)
        write_atomically(path, (json.dumps(asdict(result), indent=1) + "\n").encode())
        return path

    def load_all(self) -> list[RowResult]:
        """Load all finished rows."""
        return [read_row(path) for path in sorted(self.folder.glob("*.json"))]


def read_row(path: Path) -> RowResult:
    """Read the file of a row."""
    hint = "delete the file to measure the row again"
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        result = RowResult(**fields)
        for name in result.ranks:
            result.get_ranks(name)
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: no row of this version ({error}), expected format {FORMAT}; {hint}") from error
    if result.format != FORMAT:
        raise DataError(f"{path}: format {result.format}, expected {FORMAT}; {hint}")
    return result


def check_same_settings(result: RowResult, settings: Mapping[str, Any], path: Path) -> None:
    """Refuse to go on among rows that were measured with other settings."""
    ours = json.loads(json.dumps(settings))
    for key in sorted({*ours, *result.settings}):
        if ours.get(key) != result.settings.get(key):
            raise ConfigError(
                f"{path} was measured with {key} {result.settings.get(key, 'by default')!r}, given "
                f"{ours.get(key, 'by default')!r}; choose another --out, or delete the rows"
            )


def rank_relevant(results: Rows, pairs: Positives) -> Rows:
    """Find the rank (from 1) of every positive in its query's results (queries, k); ABSENT where there is none."""
    queries, positives = pairs.list_edges(np.arange(len(pairs)))
    hits = results[queries] == positives[:, None]
    return np.where(hits.any(axis=1), hits.argmax(axis=1) + 1, ABSENT)


def group_results(results: Iterable[RowResult]) -> dict[tuple[str, str, int, int], list[RowResult]]:
    """Group results that tables may compare: by dataset, encoder, code bytes of the run and candidates."""
    groups: dict[tuple[str, str, int, int], list[RowResult]] = {}
    for result in results:
        key = (result.data, result.encoder, result.settings.get("bytes_per_doc", 0), result.candidates)
        groups.setdefault(key, []).append(result)
    return groups


def list_seeds(results: Sequence[RowResult]) -> list[int]:
    """List the seeds of results."""
    return sorted({result.seed for result in results})
