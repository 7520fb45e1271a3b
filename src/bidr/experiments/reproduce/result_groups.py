"""Results that may be compared: the rows of one dataset and encoder, over all seeds."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from bidr.experiments.reproduce.row_files import RelevantRanks, RowResult, group_results, list_seeds
from bidr.experiments.reproduce.row_specs import BASELINES
from bidr.models.static_embeddings import WORDLLAMA
from bidr.search.evaluation import compare_paired
from bidr.training.config import BUILT_IN
from bidr.training.config_validation import EncoderKind

RESAMPLES = 2_000
STRONGEST = "strongest"
"""Stands for the baseline with the best R@10 on dev."""
Ranking = Literal["answers", "candidates"]
PerSeed = dict[int, np.ndarray[Any, np.dtype[np.float64]]]


class Measure(NamedTuple):
    """Recall at a cut-off, of the answers or of the candidates."""

    ranking: Ranking
    cutoff: int

    def __str__(self) -> str:
        return f"{'' if self.ranking == 'answers' else 'candidates’ '}R@{self.cutoff:,}"


class Summary(NamedTuple):
    """Mean over seeds, and the range of the seeds."""

    mean: float
    low: float
    high: float
    seeds: int


class Difference(NamedTuple):
    """Mean paired difference of two rows over the seeds that both have, with a 95 % interval over the queries."""

    difference: float
    low: float
    high: float
    base: float
    """Mean of the row that is compared to."""
    per_seed: list[float]

    @property
    def relative(self) -> float:
        return self.difference / self.base if self.base else 0.0

    @property
    def seeds(self) -> int:
        return len(self.per_seed)


class ResultGroup:
    """Rows of one dataset, encoder, code size and number of candidates."""

    def __init__(self, results: Sequence[RowResult]) -> None:
        self.results = list(results)
        self.first = self.results[0]
        self._rows: dict[str, dict[int, RowResult]] = {}
        for result in self.results:
            self._rows.setdefault(result.row, {})[result.seed] = result
        self._recalls: dict[tuple[str, int, Ranking], RelevantRanks | None] = {}
        self._differences: dict[tuple[str, str, Measure], Difference | None] = {}

    @property
    def name(self) -> str:
        return f"{self.first.data}, {self.first.encoder}"

    @property
    def seeds(self) -> list[int]:
        return list_seeds(self.results)

    @property
    def encoder_kind(self) -> EncoderKind:
        """Kind of the encoder; rows that were measured without a record of it: by its name."""
        recorded: EncoderKind | None = self.first.environment.get("encoder_kind")
        by_name: dict[str, EncoderKind] = {BUILT_IN: "built-in", WORDLLAMA: "static"}
        return recorded or by_name.get(self.first.encoder, "transformer")

    @property
    def deepest(self) -> int:
        """The deepest cut-off of the candidates' recall, in the paper 1,000."""
        return min(1_000, self.first.candidates)

    def get_results(self, row: str) -> list[RowResult]:
        """Return the results of a row that were measured, by seed."""
        results = self._rows.get(self.resolve(row), {})
        return [result for _, result in sorted(results.items()) if result.is_measured]

    def list_unmeasured(self) -> dict[str, str]:
        """Return why rows could not be measured."""
        return {result.row: "; ".join(result.notes) for result in self.results if not result.is_measured}

    def resolve(self, row: str) -> str:
        """Return the name of a row; STRONGEST: of the strongest baseline."""
        return (self.strongest or STRONGEST) if row == STRONGEST else row

    @cached_property
    def strongest(self) -> str | None:
        """The baseline with the best R@10 on dev, of those that have the most seeds."""
        scores = {}
        for name in BASELINES:
            values = [r.dev["R@10"] for r in self._rows.get(name, {}).values() if r.is_measured and "R@10" in r.dev]
            if values:
                scores[name] = (len(values), float(np.mean(values)))
        return max(scores, key=lambda name: scores[name]) if scores else None

    def get_recalls(self, row: str, measure: Measure) -> PerSeed:
        """Return the recall of each query, by seed."""
        recalls = {}
        for result in self.get_results(row):
            key = (result.row, result.seed, measure.ranking)
            if key not in self._recalls:
                self._recalls[key] = result.get_ranks(measure.ranking)
            ranks = self._recalls[key]
            if ranks is not None:
                recalls[result.seed] = ranks.compute_recalls(measure.cutoff)
        return recalls

    def summarize(self, row: str, measure: Measure) -> Summary | None:
        """Summarize a row's recall over the seeds; None if it was not measured."""
        means = [float(values.mean()) for values in self.get_recalls(row, measure).values()]
        return Summary(float(np.mean(means)), min(means), max(means), len(means)) if means else None

    def compare(self, row: str, base: str, measure: Measure) -> Difference | None:
        """Compare two rows; None if they share no seed."""
        key = (self.resolve(row), self.resolve(base), measure)
        if key not in self._differences:
            self._differences[key] = compare_recalls(self.get_recalls(row, measure), self.get_recalls(base, measure))
        return self._differences[key]

    def average(self, row: str, name: str, part: Literal["values", "ram", "dev"] = "values") -> float | None:
        """Average a single measure of a row over the seeds."""
        parts: list[Mapping[str, float]] = [getattr(result, part) for result in self.get_results(row)]
        values = [values[name] for values in parts if name in values]
        return float(np.mean(values)) if values else None

    def get_curve(self, row: str, x: str, y: str) -> list[tuple[float, float]]:
        """Average a curve over the seeds."""
        points: dict[float, list[float]] = {}
        for result in self.get_results(row):
            for point in result.curve:
                points.setdefault(point[x], []).append(point[y])
        return [(value, float(np.mean(heights))) for value, heights in sorted(points.items())]


def compare_recalls(ours: PerSeed, theirs: PerSeed) -> Difference | None:
    """Compare per-query recalls: queries are resampled, each with its mean over the seeds that both have."""
    seeds = [seed for seed in sorted(ours) if seed in theirs and len(ours[seed]) == len(theirs[seed])]
    if not seeds:
        return None
    a, b = (np.mean([recalls[seed] for seed in seeds], axis=0) for recalls in (ours, theirs))
    numbers = [str(number) for number in range(len(a))]
    paired = compare_paired(
        dict(zip(numbers, a.tolist(), strict=True)), dict(zip(numbers, b.tolist(), strict=True)), resamples=RESAMPLES
    )
    per_seed = [float(ours[seed].mean() - theirs[seed].mean()) for seed in seeds]
    return Difference(paired.difference, paired.low, paired.high, float(b.mean()), per_seed)


def make_groups(results: Iterable[RowResult]) -> list[ResultGroup]:
    """Group results, by name."""
    groups = [ResultGroup(members) for _, members in sorted(group_results(results).items())]
    return sorted(groups, key=lambda group: group.name)
