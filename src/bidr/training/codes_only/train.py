"""Codes for vectors that already exist: from documents' and questions' vectors to a model folder, on a CPU."""

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
from bidr.quantization.additive_quantizer import AdditiveQuantizer, fit_additive
from bidr.quantization.exact_search import search_vectors
from bidr.quantization.metrics import measure_usage
from bidr.training.codes_only.data import (
    TOP,
    HeldOutQuestions,
    Labels,
    PreparedDistillation,
    SourceVectors,
    prepare_distillation,
)
from bidr.training.codes_only.distillation import CodesLearner, Distillation, DistillationData, DistillationSettings
from bidr.training.config import TrainConfig
from bidr.training.engine import checkpoint
from bidr.training.engine.logs import FolderLogger, StageLogger, check_tensorboard
from bidr.utils.array_types import Floats, Rows
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
    """Learn codes of documents' vectors that stay as they are, and leave a model; a run that was cut off goes on.

    questions: vectors of questions as users ask them, not those that will be measured on; None: documents stand in.
    labels:    for rows of `questions`, rows of `documents` that answer them.
    """
    _check(documents, questions, config)
    asked = _identity(documents, questions, config, labels or {})
    _check_folder(out, asked, resume)
    if (out / "model.json").exists():
        forget(out / WORK)  # a run may have ended between the model and this
        return CodesOnlyModel(out)
    started = time.monotonic()
    prepared = prepare_distillation(SourceVectors(documents, questions), labels or {}, config)
    work = out / WORK
    with storage_errors(out):
        work.mkdir(parents=True, exist_ok=True)
        write_json(work / RUN, asked)
    say(f"fitting {config.books} books of {config.codewords} codewords")
    start = fit_additive(prepared.lessons.own.documents, config.books, config.codewords, seed=config.seed)
    additive, history = learn(start, prepared, config, work)
    training = {
        "documents": len(documents),
        "sampled_documents": len(prepared.lessons.own.documents),
        "questions": len(questions) if questions else 0,
        "labelled_questions": len(labels or {}),
        "config": _settings_of(config),
        "dev": history,
        "seconds": round(time.monotonic() - started, 1),
    }
    additive = additive._replace(
        centre=additive.centre * np.float32(prepared.length), document=additive.document / np.float32(prepared.length)
    )
    model = save_codes_only_model(
        out, additive, metric=documents.metric, candidates=config.candidates, training=training
    )
    forget(work, *(out / "sparse").iterdir())
    return model


def forget(work: Path, *results: Path) -> None:
    """Remove the checkpoint, once what was learned is sure to be on the disk."""
    with storage_errors(work):
        for path in results:
            sync_file(path)
            sync_folder(path.parent)
        (work / CHECKPOINT).unlink(missing_ok=True)


def learn(
    start: AdditiveQuantizer, prepared: PreparedDistillation, config: TrainConfig, work: Path, device: str = "cpu"
) -> tuple[AdditiveQuantizer, History]:
    """Learn to the end, continuing from a checkpoint; the best of what was measured on the way, and its figures."""
    steps, path = config.frozen.steps, work / CHECKPOINT
    saved = checkpoint.load(path)
    if saved:  # not fitted again: another machine might find other codewords, to which what was learned does not belong
        start = AdditiveQuantizer(**{name: array.numpy() for name, array in saved["start"].items()})
    run = _Run(start, prepared, config, device)
    if saved:
        run.restore(saved)
        say(f"frozen: resumed at step {run.distilling.step}")
    kept, begun = time.monotonic(), run.distilling.step
    run.logs = FolderLogger(work, begun, len(run.history), config.logs)
    with (
        closing(run.logs),
        checkpoint.catch_stop_signals() as stop,
        show_progress("learn codes", steps, initial=begun) as advance,
    ):
        run.measure()
        while run.distilling.step < steps:
            advance(1, f"loss {run.train_step():.3f}")
            run.measure()
            if stop.is_requested or time.monotonic() - kept > 60 * config.checkpoint_minutes:
                checkpoint.save(path, run.state())
                kept = time.monotonic()
            if stop.is_requested:
                raise StoppedError(
                    f"stopped at step {run.distilling.step} of {steps}; the checkpoint is kept: run the same "
                    "command again to go on from there"
                )
    checkpoint.save(path, run.state())
    return run.best, run.history


class _Run:
    """Learning, with what was measured so far and the best codes by that."""

    def __init__(
        self, start: AdditiveQuantizer, prepared: PreparedDistillation, config: TrainConfig, device: str
    ) -> None:
        self.probe, self.config, self.start = prepared.probe, config, start
        codes = start.encode(prepared.lessons.own.documents)
        self.learner, self.usage = CodesLearner(start, codes, device), measure_usage(codes, start.words)
        self.distilling = Distillation(
            self.learner, prepared.lessons, make_distillation_settings(prepared.lessons, config)
        )
        self.best, self.history, self.logs = start, History(), StageLogger()

    def state(self) -> dict[str, Any]:
        best = {"codewords": torch.tensor(self.best.codewords), "query": torch.tensor(self.best.query)}
        start = {name: torch.tensor(array) for name, array in self.start._asdict().items()}
        state = {"distilling": self.distilling.state(), "history": self.history, "best": best, "start": start}
        return {**state, "kept_by": KEPT_BY}

    def restore(self, state: dict[str, Any]) -> None:
        self.distilling.restore(state["distilling"])
        # What an earlier version measured cannot be compared.
        self.history = state["history"] if state.get("kept_by") == KEPT_BY else []
        self.best = self.best._replace(**{name: one.numpy() for name, one in state["best"].items()})

    def train_step(self) -> float:
        distilling = self.distilling
        value = distilling.train_step()
        rate = distilling.optimizer.param_groups[0]["lr"]
        shown = {"loss": value, "rate": rate, "skipped": distilling.skipped}
        self.logs.log_step(distilling.step, distilling.settings.batch_size, shown)
        return value

    def measure(self) -> None:
        """Where it is time for it, measure the held-out questions, and keep the codes if they are the best so far."""
        step, frozen = self.distilling.step, self.config.frozen
        every = -(-frozen.steps // frozen.measured) or 1
        if (step % every and step != frozen.steps) or any(one["step"] == step for one in self.history):
            return
        figures = _measure(self.learner, self.probe, self.config)
        self.history.append({"step": step, **figures})
        use = {
            "codewords_used": self.usage.used,
            "codeword_entropy_bits": self.usage.entropy_bits,
            "least_codeword_entropy_bits": self.usage.least_entropy_bits,
        }
        shown = {f"dev/{name}": value for name, value in (figures | use).items()}
        self.logs.log_measurement(step, len(self.history), shown)
        if self.history[-1]["kept_by"] >= max(one["kept_by"] for one in self.history):
            self.best = self.learner.learned()


def _measure(learner: CodesLearner, probe: HeldOutQuestions, config: TrainConfig) -> dict[str, float]:
    """How many of the exact top 10, and of the labelled documents, are among the candidates of held-out questions."""
    found = search_candidates(learner, probe.questions, config.candidates)
    wanted = {"exact_top_10": probe.best}
    # Labels alone can mislead: a model that was trained on them finds them all, however bad its codes are.
    if (probe.labelled >= 0).any() and config.frozen.label_weight:
        wanted["labelled"] = probe.labelled
    figures = {name: compute_found_share(found, rows) for name, rows in wanted.items()}
    if len(probe.questions):
        said = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
        say(f"held-out questions, share among {config.candidates} candidates: {said}")
    return {**figures, "kept_by": float(np.mean([compute_share_at_depths(found, rows) for rows in wanted.values()]))}


def compute_share_at_depths(found: Rows, wanted: Rows) -> float:
    """Mean over ever fewer candidates, down to 10: among many, codes of many bytes all find all but a question or two,
    and chance would choose."""
    depths = [found.shape[1] >> half for half in range(found.shape[1].bit_length()) if found.shape[1] >> half >= TOP]
    return float(np.mean([compute_found_share(found[:, :depth], wanted) for depth in depths or [found.shape[1]]]))


def search_candidates(learner: CodesLearner, questions: Floats, count: int) -> Rows:
    """Rows that the codes as they are now bring up."""

    class Decoded:
        def __len__(self) -> int:
            return len(learner.places)

        def __getitem__(self, rows: slice) -> Floats:
            with torch.no_grad():
                wanted = torch.arange(rows.start, rows.stop, device=learner.places.device)
                return learner.decode(wanted).cpu().numpy()

    decoded: Any = Decoded()
    return search_vectors(learner.learned().adapt(questions), decoded, count, device=str(learner.places.device)).rows


def compute_found_share(found: Rows, wanted: Rows) -> float:
    """Share of the wanted rows (-1: none) that were found, mean over the questions that want any."""
    hits = [np.isin(want[want >= 0], got).mean() for got, want in zip(found, wanted, strict=True) if (want >= 0).any()]
    return float(np.mean(hits)) if hits else 0.0


def make_distillation_settings(lessons: DistillationData, config: TrainConfig) -> DistillationSettings:
    frozen, finer = config.frozen, fineness(config)
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


def fineness(config: TrainConfig) -> float:
    """More bytes tell closer scores apart: what they are to learn is sharper, and a rough step undoes more."""
    return float(max(1.0, config.bytes_per_doc / BYTES_OF_SETTINGS) ** config.frozen.finer)


def estimate_score_spread(documents: Floats, questions: Floats) -> float:
    """How much the scores of one question differ from document to document: their standard deviation."""
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


def _settings_of(config: TrainConfig) -> dict[str, Any]:
    """What counts here. Not named are 256 codewords and no `finer`: what was begun before there was a choice can go
    on."""
    words = {} if config.codewords == 256 else {"codewords": config.codewords}
    frozen = {name: value for name, value in dataclasses.asdict(config.frozen).items() if name != "finer" or value}
    return {"bytes_per_doc": config.bytes_per_doc, "seed": config.seed, **words, **frozen}


def _identity(
    documents: VectorSource, questions: VectorSource | None, config: TrainConfig, labels: Labels
) -> dict[str, Any]:
    """What a run must have in common with the one it continues."""
    identity = {
        "documents": documents.fingerprint(),
        "questions": questions.fingerprint() if questions else None,
        "labels": sorted([row, sorted(found)] for row, found in labels.items()),
        "config": _settings_of(config) | {"candidates": config.candidates},
    }
    plain: dict[str, Any] = json.loads(json.dumps(identity))
    return plain


def _check_folder(out: Path, asked: dict[str, Any], resume: str) -> None:
    path = out / WORK / RUN
    if not path.exists():
        if resume == "must":
            raise ConfigError(f"{out} holds no run to resume and resume is 'must'; check the folder, or use 'auto'")
        if out.exists() and (out.is_file() or any(out.iterdir())):
            raise ConfigError(f"{out} is not empty and holds no run; choose another folder or empty it")
        return
    if resume == "never":
        raise ConfigError(f"{out} already holds a run and resume is 'never'; choose another folder, or delete it")
    found = read_json(path, "restore it, or delete the folder to start over")
    for name, value in asked.items():
        if found.get(name) != value:
            raise ConfigError(f"{out} holds a run with other {name}; choose another folder, or delete it to start over")
