"""Train codes for existing vectors: from document and question vectors to a model folder, on CPU."""

import dataclasses
import json
import os
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bidr.data.vector_source import VectorSource, check_same_dim
from bidr.errors import ConfigError, DataError, StoppedError
from bidr.models.codes_only_model import CodesOnlyModel, save_codes_only_model
from bidr.quantization.additive_quantizer import AdditiveQuantizer
from bidr.quantization.code_quality import measure_usage
from bidr.training.codes_only.candidate_recall import measure_candidates
from bidr.training.codes_only.data import (
    Labels,
    PreparedDistillation,
    SourceVectors,
    prepare_distillation,
)
from bidr.training.codes_only.initialization import STARTS, Initialization, fit_initialization
from bidr.training.codes_only.ranking_distillation import (
    CodesLearner,
    Distillation,
    DistillationData,
    DistillationSettings,
)
from bidr.training.config import TrainConfig
from bidr.training.engine import checkpoint
from bidr.training.engine.logs import FolderLogger, StageLogger, check_tensorboard
from bidr.utils.array_types import Floats
from bidr.utils.files import read_json, storage_errors, sync_file, sync_folder, write_json
from bidr.utils.progress import say, show_progress

KEPT_BY = "shares at depths"
WORK, RUN, CHECKPOINT = "work", "run.json", "checkpoint.pt"
WIDTH_OF_RATES = 384
BYTES_OF_SETTINGS = 8
SPREAD_QUESTIONS, SPREAD_DOCUMENTS = 256, 4_096
History = list[dict[str, Any]]


def train_codes_only(
    documents: VectorSource,
    questions: VectorSource | None,
    config: TrainConfig,
    out: Path,
    labels: Labels | None = None,
    resume: str = "auto",
) -> CodesOnlyModel:
    """Train codes of fixed document vectors into a model folder; resume an interrupted run.

    questions: Vectors of realistic questions, not of a test set; None: use documents instead.
    labels:    Maps rows of `questions` to rows of `documents` that answer them.
    """
    _check(documents, questions, config)
    identity = _get_identity(documents, questions, config, labels or {})
    _check_folder(out, identity, resume)
    if (out / "model.json").exists():
        forget(out / WORK)  # an earlier run may have been killed in between
        return CodesOnlyModel(out)
    started = time.monotonic()
    prepared = prepare_distillation(SourceVectors(documents, questions), labels or {}, config)
    work = out / WORK
    with storage_errors(out):
        work.mkdir(parents=True, exist_ok=True)
        write_json(work / RUN, identity)
    additive, history = learn(prepared, config, work)
    training = {
        "documents": len(documents),
        "sampled_documents": len(prepared.lessons.own.documents),
        "questions": len(questions) if questions else 0,
        "labelled_questions": len(labels or {}),
        "config": _get_settings(config),
        "dev": history,
        "seconds": round(time.monotonic() - started, 1),
    }
    additive = additive._replace(
        centre=additive.centre * np.float32(prepared.length), document=additive.document / np.float32(prepared.length)
    )
    assert documents.metric != "l2"
    model = save_codes_only_model(
        out, additive, metric=documents.metric, candidates=config.candidates, training=training
    )
    forget(work, *(out / "sparse").iterdir())
    return model


def forget(work: Path, *results: Path) -> None:
    """Delete the checkpoint after the results have been synced to disk."""
    with storage_errors(work):
        for path in results:
            sync_file(path)
            sync_folder(path.parent)
        (work / CHECKPOINT).unlink(missing_ok=True)


def learn(
    prepared: PreparedDistillation, config: TrainConfig, work: Path, device: str = "cpu"
) -> tuple[AdditiveQuantizer, History]:
    """Fit and train to the end, or resume a checkpoint; returns the best codes and the history."""
    steps, path = config.frozen.steps, work / CHECKPOINT
    saved = checkpoint.load(path)
    if saved:  # do not refit: another machine may find other codewords, which the checkpoint does not belong to
        start = AdditiveQuantizer(**{name: array.numpy() for name, array in saved["start"].items()})
        initialization = Initialization(start, start.encode(prepared.lessons.own.documents))
    else:
        initialization = fit_initialization(prepared, config, work, device)
    run = _Run(initialization, prepared, config, device)
    if saved:
        run.load_state_dict(saved)
        say(f"frozen: resumed at step {run.distilling.step}")
    saved_at, first_step = time.monotonic(), run.distilling.step
    run.logs = FolderLogger(work, first_step, len(run.history), config.logs)
    with (
        closing(run.logs),
        checkpoint.catch_stop_signals() as stop,
        show_progress("learn codes", steps, initial=first_step) as advance,
    ):
        run.measure()
        while run.distilling.step < steps:
            advance(1, f"loss {run.train_step():.3f}")
            run.measure()
            if stop.is_requested or time.monotonic() - saved_at > 60 * config.checkpoint_minutes:
                checkpoint.save(path, run.state_dict())
                saved_at = time.monotonic()
            if stop.is_requested:
                raise StoppedError(
                    f"stopped at step {run.distilling.step} of {steps}; the checkpoint is kept: run the same "
                    "command again to resume"
                )
    checkpoint.save(path, run.state_dict())
    (work / STARTS).unlink(missing_ok=True)
    return run.best, run.history


class _Run:
    """A distillation with its measurements and the best codes so far."""

    def __init__(
        self, initialization: Initialization, prepared: PreparedDistillation, config: TrainConfig, device: str
    ) -> None:
        start, codes = initialization
        self.probe, self.config, self.start = prepared.probe, config, start
        self.learner, self.usage = CodesLearner(start, codes, device), measure_usage(codes, start.words)
        self.distilling = Distillation(
            self.learner, prepared.lessons, make_distillation_settings(prepared.lessons, config)
        )
        self.best, self.history, self.logs = start, History(), StageLogger()

    def state_dict(self) -> dict[str, Any]:
        best = {"codewords": torch.tensor(self.best.codewords), "query": torch.tensor(self.best.query)}
        start = {name: torch.tensor(array) for name, array in self.start._asdict().items()}
        state = {"distilling": self.distilling.state_dict(), "history": self.history, "best": best, "start": start}
        return {**state, "kept_by": KEPT_BY}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.distilling.load_state_dict(state["distilling"])
        # Measurements of earlier versions are not comparable.
        self.history = state["history"] if state.get("kept_by") == KEPT_BY else []
        self.best = self.best._replace(**{name: tensor.numpy() for name, tensor in state["best"].items()})

    def train_step(self) -> float:
        distilling = self.distilling
        value = distilling.train_step()
        rate = distilling.optimizer.param_groups[0]["lr"]
        log_values = {"loss": value, "rate": rate, "skipped": distilling.skipped}
        self.logs.log_step(distilling.step, distilling.settings.batch_size, log_values)
        return value

    def measure(self) -> None:
        """Measure the held-out questions when due; keep the codes if they are the best so far."""
        step, frozen = self.distilling.step, self.config.frozen
        every = -(-frozen.steps // frozen.measured) or 1
        if (step % every and step != frozen.steps) or any(entry["step"] == step for entry in self.history):
            return
        figures = measure_candidates(self.learner, self.probe, self.config, f"step {step}")
        self.history.append({"step": step, **figures})
        codeword_usage = {
            "codewords_used": self.usage.used,
            "codeword_entropy_bits": self.usage.entropy_bits,
            "least_codeword_entropy_bits": self.usage.least_entropy_bits,
        }
        log_values = {f"dev/{name}": value for name, value in (figures | codeword_usage).items()}
        self.logs.log_measurement(step, len(self.history), log_values)
        if self.history[-1]["kept_by"] >= max(entry["kept_by"] for entry in self.history):
            self.best = self.learner.export()


def make_distillation_settings(lessons: DistillationData, config: TrainConfig) -> DistillationSettings:
    frozen, finer = config.frozen, compute_fineness(config)
    rate = frozen.rate / finer * (WIDTH_OF_RATES / lessons.own.documents.shape[1]) ** 0.5
    return DistillationSettings(
        steps=frozen.steps,
        batch_size=min(frozen.batch_size, len(lessons.best)),
        own=round(frozen.own * finer**0.5),
        others=round(frozen.others * finer),
        rate=rate,
        adapter_rate=rate * frozen.adapter_rate,
        label_weight=frozen.label_weight,
        temperature=frozen.temperature / finer**0.5 * estimate_score_spread(*lessons.full),
        seed=config.seed,
    )


def compute_fineness(config: TrainConfig) -> float:
    """Compute the factor by which settings get finer: more bytes separate closer scores."""
    return float(max(1.0, config.bytes_per_doc / BYTES_OF_SETTINGS) ** config.frozen.finer)


def estimate_score_spread(documents: Floats, questions: Floats) -> float:
    """Estimate the standard deviation of a question's scores over documents."""
    some = np.linspace(0, len(questions) - 1, SPREAD_QUESTIONS).astype(np.int64)
    many = np.linspace(0, len(documents) - 1, SPREAD_DOCUMENTS).astype(np.int64)
    return float((questions[some] @ documents[many].T).std(axis=1).mean()) or 1.0


def _check(documents: VectorSource, questions: VectorSource | None, config: TrainConfig) -> None:
    check_tensorboard(config.logs)
    if questions is not None:
        check_same_dim(documents, questions)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("codes for given vectors are learned by one process; start it without torchrun")
    if len(documents) < config.codewords:
        raise DataError(
            f"{documents.name} has {len(documents)} vectors, expected {config.codewords} or more, one a codeword"
        )
    if config.books > documents.dim:
        raise ConfigError(
            f"bytes_per_doc: given {config.bytes_per_doc} with {config.codewords} codewords a book, that is "
            f"{config.books} books for {documents.dim} dimensions; expected no more books than those"
        )


def _get_settings(config: TrainConfig) -> dict[str, Any]:
    """Return the relevant settings. Defaults of later settings are omitted so that older runs resume."""
    words = {} if config.codewords == 256 else {"codewords": config.codewords}
    frozen = {name: value for name, value in dataclasses.asdict(config.frozen).items() if name != "finer" or value}
    return {"bytes_per_doc": config.bytes_per_doc, "seed": config.seed, **words, **frozen}


def _get_identity(
    documents: VectorSource, questions: VectorSource | None, config: TrainConfig, labels: Labels
) -> dict[str, Any]:
    """Return what must be equal for a run to be resumed."""
    identity = {
        "documents": documents.fingerprint(),
        "questions": questions.fingerprint() if questions else None,
        "labels": sorted([row, sorted(label_rows)] for row, label_rows in labels.items()),
        "config": _get_settings(config) | {"candidates": config.candidates},
    }
    plain: dict[str, Any] = json.loads(json.dumps(identity))
    return plain


def _check_folder(out: Path, identity: dict[str, Any], resume: str) -> None:
    path = out / WORK / RUN
    if not path.exists():
        if resume == "must":
            raise ConfigError(f"{out} holds no run to resume and resume is 'must'; check the folder, or use 'auto'")
        if out.exists() and (out.is_file() or any(out.iterdir())):
            raise ConfigError(f"{out} is not empty and holds no run; choose another folder or empty it")
        return
    if resume == "never":
        raise ConfigError(f"{out} already holds a run and resume is 'never'; choose another folder, or delete it")
    saved = read_json(path, "restore it, or delete the folder to start over")
    for name, value in identity.items():
        if saved.get(name) != value:
            raise ConfigError(f"{out} holds a run with other {name}; choose another folder, or delete it to start over")
