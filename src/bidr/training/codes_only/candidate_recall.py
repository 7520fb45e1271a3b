"""Evaluation of codes on held-out questions: the share of expected rows among the candidates."""

from typing import Any

import numpy as np
import torch

from bidr.quantization.exact_search import search_vectors
from bidr.training.codes_only.data import TOP, HeldOutQuestions
from bidr.training.codes_only.ranking_distillation import CodesLearner
from bidr.training.config import TrainConfig
from bidr.utils.array_types import Floats, Rows
from bidr.utils.progress import say

FIGURE_LABELS = {"exact_top_10": "the exact top 10", "labelled": "the labeled documents"}


def measure_candidates(
    learner: CodesLearner, probe: HeldOutQuestions, config: TrainConfig, label: str
) -> dict[str, float]:
    """Measure the share of the exact top 10, and of the labels, among the held-out candidates.

    label: What is measured, for the progress line.
    """
    candidates = search_candidates(learner, probe.questions, config.candidates)
    expected = {"exact_top_10": probe.best}
    # Labels alone mislead: a model trained on them finds them all even with bad codes.
    if (probe.labelled >= 0).any() and config.frozen.label_weight:
        expected["labelled"] = probe.labelled
    figures = {name: compute_found_share(candidates, rows) for name, rows in expected.items()}
    if len(probe.questions):
        summary = ", ".join(f"of {FIGURE_LABELS[name]}: {value:.4f}" for name, value in figures.items())
        queries = f"{len(probe.questions):,} held-out queries"
        say(f"{label}: candidate recall {summary} ({queries}, {config.candidates} candidates)")
    return {
        **figures,
        "kept_by": float(np.mean([compute_share_at_depths(candidates, rows) for rows in expected.values()])),
    }


def compute_share_at_depths(ranked_rows: Rows, expected_rows: Rows) -> float:
    """Mean over ever fewer candidates, down to 10: among many, codes of many bytes all find all but a question or two,
    and chance would choose."""
    width = ranked_rows.shape[1]
    depths = [width >> half for half in range(width.bit_length()) if width >> half >= TOP]
    return float(np.mean([compute_found_share(ranked_rows[:, :depth], expected_rows) for depth in depths or [width]]))


def search_candidates(learner: CodesLearner, questions: Floats, count: int) -> Rows:
    """Search the candidates by the current codes."""

    class DecodedRows:
        def __len__(self) -> int:
            return len(learner.places)

        def __getitem__(self, rows: slice) -> Floats:
            with torch.no_grad():
                indices = torch.arange(rows.start, rows.stop, device=learner.places.device)
                return learner.decode(indices).cpu().numpy()

    decoded: Any = DecodedRows()
    return search_vectors(learner.export().adapt(questions), decoded, count, device=str(learner.places.device)).rows


def compute_found_share(rows: Rows, expected: Rows) -> float:
    """Compute the share of expected rows (-1: none) among the hits, mean over questions with any."""
    hits = [np.isin(want[want >= 0], got).mean() for got, want in zip(rows, expected, strict=True) if (want >= 0).any()]
    return float(np.mean(hits)) if hits else 0.0
