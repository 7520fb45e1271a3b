"""Initialization of additive codes: fitted with several query metrics, chosen by ranking held-out questions."""

from pathlib import Path
from typing import Any, NamedTuple

import torch

from bidr.quantization.additive_quantizer import (
    AdditiveQuantizer,
    compute_query_metric,
    count_fit_steps,
    fit_additive,
)
from bidr.training.codes_only.candidate_recall import measure_candidates
from bidr.training.codes_only.data import PreparedDistillation
from bidr.training.codes_only.ranking_distillation import CodesLearner
from bidr.training.config import TrainConfig
from bidr.training.engine import checkpoint
from bidr.utils.array_types import Codes
from bidr.utils.progress import say, show_progress

STARTS = "starts.pt"
# Of the query metric: 0 minimizes the reconstruction error, 1 the error of the scores, .5 lies between.
EXPONENTS = (0.0, 0.5)


class Initialization(NamedTuple):
    """Fitted codes of the sampled documents."""

    additive: AdditiveQuantizer
    codes: Codes


def fit_initialization(
    prepared: PreparedDistillation, config: TrainConfig, work: Path, device: str = "cpu"
) -> Initialization:
    """Fit codes with each query metric; return those that rank the held-out questions best.

    Fitted codes are stored in `work`, so that a resumed run fits only what is missing.
    """
    path = work / STARTS
    saved: dict[str, Any] = checkpoint.load(path) or {}
    exponents = EXPONENTS if len(prepared.probe.questions) else EXPONENTS[:1]
    for exponent in exponents:
        if f"{exponent:g}" not in saved:
            initialization = _fit(prepared, config, device, exponent)
            learner = CodesLearner(*initialization, device)
            say(f"codes fitted with query metric {exponent:g}")
            figures = measure_candidates(learner, prepared.probe, config, f"initialization {exponent:g}")
            saved[f"{exponent:g}"] = {
                "additive": {name: torch.tensor(array) for name, array in initialization.additive._asdict().items()},
                "codes": torch.tensor(initialization.codes),
                "kept_by": figures["kept_by"],
            }
            checkpoint.save(path, saved)
    best = max(exponents, key=lambda exponent: saved[f"{exponent:g}"]["kept_by"])
    if len(exponents) > 1:
        say(f"query metric {best:g} ranks the held-out questions best")
    chosen = saved[f"{best:g}"]
    additive = AdditiveQuantizer(**{name: tensor.numpy() for name, tensor in chosen["additive"].items()})
    return Initialization(additive, chosen["codes"].numpy())


def _fit(prepared: PreparedDistillation, config: TrainConfig, device: str, exponent: float) -> Initialization:
    vectors, books, words = prepared.lessons.own, config.books, config.codewords
    metric = compute_query_metric(vectors.questions, exponent) if exponent else None
    with show_progress(f"fit {books} books of {words} codewords", count_fit_steps(books, words, device)) as advance:
        additive = fit_additive(
            vectors.documents, books, words, seed=config.seed, device=device, metric=metric, advance=advance
        )
    return Initialization(additive, additive.encode(vectors.documents))
