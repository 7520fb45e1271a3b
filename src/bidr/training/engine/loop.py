"""The one trainer loop: steps over an epoch's plan, validation after each epoch, the best kept, resumable."""

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from bidr.errors import BidrError, StoppedError
from bidr.training.engine import checkpoint
from bidr.training.engine.distributed import ProcessGroup
from bidr.training.engine.gradients import StepSeed, backward
from bidr.training.engine.logs import FolderLogger, StageLogger
from bidr.training.losses.objectives import Objective, PreparedBatch
from bidr.training.negatives.samplers import EpochPlan, Sampler
from bidr.utils.array_types import Rows
from bidr.utils.prefetch import AsyncHostCopy, prefetch
from bidr.utils.progress import say, show_progress

CHECKPOINT = "checkpoint.pt"
MOST_SKIPPED = 20

DevMetrics = float | dict[str, float]
"""What dev says of a stage: its measure, or several by name with that one among them."""


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """How a stage is stepped through."""

    epochs: int
    rate: float
    decay: float
    warmup_share: float
    clip: float
    seed: int
    checkpoint_seconds: float
    tokens_at_once: int | None = None


class LaunchedStep(NamedTuple):
    """A step that the device may still be at."""

    step: int
    steps: int
    """Of its epoch."""
    queries: Rows
    rate: float
    names: list[str]
    """Of the loss's terms."""
    outcome: AsyncHostCopy
    """Whether loss and gradient are finite, the gradient's norm, the terms."""


class StageTrainer:
    """One stage while it runs. What can be resumed is exactly what `state` returns."""

    def __init__(
        self, name: str, objective: Objective, settings: LoopSettings, measure: str, group: ProcessGroup | None = None
    ) -> None:
        self.name, self.objective, self.settings, self.measure = name, objective, settings, measure
        self.group, self.logs = group or ProcessGroup(), StageLogger()
        self.optimizer = torch.optim.AdamW(objective.groups(settings.rate, settings.decay), fused=True)
        self.bases = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.epoch = self.step = self.taken = self.skipped = 0
        self.missed = 0  # of those skipped, this epoch's
        self.best, self.total = -math.inf, 0.0
        self.best_state: dict[str, torch.Tensor] = {}
        self.history: list[dict[str, float]] = []
        self._launched: LaunchedStep | None = None

    def state(self) -> dict[str, Any]:
        self.settle()
        return {
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "best_state": self.best_state,
            "best": self.best,
            "epoch": self.epoch,
            "step": self.step,
            "taken": self.taken,
            "skipped": self.skipped,
            "missed": self.missed,
            "total": self.total,
            "history": self.history,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.objective.load_state_dict(state["objective"])
        self.optimizer.load_state_dict(state["optimizer"])
        for name in ("best_state", "best", "epoch", "step", "taken", "skipped", "total", "history"):
            setattr(self, name, state[name])
        self.missed = state.get("missed", 0)  # a checkpoint of an earlier version does not say

    def train_step(self, prepared: PreparedBatch, steps: int) -> float:
        """Launch one update of an epoch of so many; the loss of the one before, so that no step waits for its own."""
        settings = self.settings
        share = schedule(self.epoch * steps + self.step, settings.epochs * steps, settings.warmup_share)
        for group, base in zip(self.optimizer.param_groups, self.bases, strict=True):
            group["lr"] = base * share
        self.optimizer.zero_grad(set_to_none=True)
        chance = StepSeed(settings.seed, self.epoch, self.step)
        terms = backward(self.objective, prepared, chance, self.group, settings.tokens_at_once)
        norm = torch.nn.utils.clip_grad_norm_(self.objective.parameters(), settings.clip)
        values = self.group.broadcast(torch.stack([term.float() for term in terms.values()]))
        finite = values.sum().isfinite() & norm.isfinite()
        # The fused optimizer leaves everything as it is where this says so, on the device.
        self.optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
        self.optimizer.step()
        before = self.settle()
        outcome = torch.cat([torch.stack([finite.float(), norm.float()]), values])
        rate = settings.rate * share
        self._launched = LaunchedStep(self.step, steps, prepared.queries, rate, list(terms), AsyncHostCopy(outcome))
        self.step += 1
        self.taken += 1
        return before

    def settle(self) -> float:
        """Wait for the last launched step and count it; one whose loss or gradient was not finite changed nothing."""
        launched, self._launched = self._launched, None
        if launched is None:
            return math.nan
        finite, norm, *values = launched.outcome.wait().tolist()
        loss = float(sum(values))
        if finite:
            self.total += loss
        else:
            self._skip(launched, loss)
        shown = {"loss": loss, **{f"loss/{name}": value for name, value in zip(launched.names, values, strict=True)}}
        shown |= {"gradient_norm": norm, "rate": launched.rate, "skipped": self.skipped}
        self.logs.step(self.taken, len(launched.queries), shown)
        return loss

    def _skip(self, launched: LaunchedStep, value: float) -> None:
        """Count it. Many end the stage, and so does an epoch of nothing else: there is no model in it to keep."""
        self.skipped, self.missed = self.skipped + 1, self.missed + 1
        if self.skipped > MOST_SKIPPED or self.missed == launched.steps:
            everything = ", all of this epoch's among them" if self.missed == launched.steps else ""
            raise BidrError(
                f"{self.name}: loss or gradient was not finite in {self.skipped} steps{everything}, the last one "
                f"step {launched.step + 1} of epoch {self.epoch + 1} (loss {value}; train queries "
                f"{self.objective.name_queries(launched.queries[:5])}, ...); lower the learning rate or look at "
                "that batch's texts"
            )

    def close_epoch(self, value: float) -> None:
        """Count the epoch, and keep the weights if dev says that they are the best so far."""
        self.settle()
        self.epoch, self.step, self.total, self.missed = self.epoch + 1, 0, 0.0, 0
        if value > self.best:
            self.best = value
            self.best_state = copy.deepcopy(self.objective.state_dict())


def schedule(step: int, total: int, warmup_share: float) -> float:
    """Linear up, then linear down to nothing."""
    warmup = max(1, int(total * warmup_share))
    return min((step + 1) / warmup, max(0.0, (total - step) / max(1, total - warmup)))


def train_stage(
    trainer: StageTrainer,
    sampler: Sampler,
    validate: Callable[[], DevMetrics],
    folder: Path,
    observe: Callable[[int, EpochPlan], dict[str, float]] = lambda epoch, plan: {},
    tensorboard: bool | None = None,
) -> None:
    """Train to the end and load the best weights; continues from the folder's checkpoint if there is one.

    validate: the dev measure, or several by name; called by the first process alone.
    observe:  called with each epoch's plan; what it returns is logged beside the loss.
    """
    path, group = folder / CHECKPOINT, trainer.group
    saved = checkpoint.load(path)
    if saved:
        trainer.restore(saved)
        say(f"{trainer.name}: resumed in epoch {trainer.epoch + 1} at step {trainer.step}")
    if not group.rank:
        trainer.logs = FolderLogger(folder, trainer.taken, trainer.epoch, tensorboard)
    trainer.objective.train()
    with closing(trainer.logs), checkpoint.catch_stop_signals() as stop:
        while trainer.epoch < trainer.settings.epochs:
            plan = sampler.plan(trainer.epoch)
            notes = observe(trainer.epoch, plan)
            seconds = _epoch(trainer, plan, path, stop)
            trainer.settle()
            found = group.run_on_rank_zero(validate)
            measured = found if isinstance(found, dict) else {trainer.measure: found}
            shown = _record(trainer, plan.steps, measured, notes)
            trainer.close_epoch(measured[trainer.measure])
            _save(trainer, path)
            say(f"{shown}, {seconds:.1f} s")
            if group.reduce_any(stop.asked):
                raise _stopped(trainer)
    trainer.objective.load_state_dict(trainer.best_state)


def _record(trainer: StageTrainer, steps: int, measured: dict[str, float], notes: dict[str, float]) -> str:
    """Put what an epoch of so many steps showed into the history and the logs; returns it as a line."""
    missed = trainer.missed
    loss = trainer.total / (steps - missed)
    if missed:
        notes = {**notes, "epoch_skipped": missed}
    trainer.history.append({"epoch": trainer.epoch + 1, "loss": loss, **measured, **notes})
    on_dev = {f"dev/{name}": value for name, value in measured.items()}
    trainer.logs.epoch(trainer.taken, trainer.epoch + 1, {"epoch_loss": loss, **on_dev, **notes})
    extra = "".join(f", {name} {number:.4g}" for name, number in notes.items() if name != "epoch_skipped")
    skipped = f" ({missed} of {steps} steps skipped, not finite)" if missed else ""
    return (
        f"{trainer.name}: epoch {trainer.epoch + 1}/{trainer.settings.epochs}, loss {loss:.4f}{skipped}, dev "
        f"{trainer.measure} {measured[trainer.measure]:.4f}{extra}"
    )


def _epoch(trainer: StageTrainer, plan: EpochPlan, path: Path, stop: checkpoint.StopSignal) -> float:
    """The steps that are left of an epoch; the seconds they took."""
    saved = started = time.monotonic()
    label = f"{trainer.name} {trainer.epoch + 1}/{trainer.settings.epochs}"
    with show_progress(label, plan.steps, initial=trainer.step) as advance:
        for prepared in prefetch_batches(trainer, plan):
            value = trainer.train_step(prepared, plan.steps)
            advance(1, f"loss {value:.3f}" if math.isfinite(value) else "")
            now = time.monotonic()
            asked = trainer.group.reduce_any(stop.asked)
            if asked or now - saved > trainer.settings.checkpoint_seconds:
                _save(trainer, path)
                saved = now
            if asked:
                raise _stopped(trainer)
    return time.monotonic() - started


def _save(trainer: StageTrainer, path: Path) -> None:
    """All processes hold the same state: the first one writes it, and all end here where a step ends the stage."""
    trainer.settle()
    if not trainer.group.rank:
        checkpoint.save(path, trainer.state())


def prefetch_batches(trainer: StageTrainer, plan: EpochPlan) -> Iterator[PreparedBatch]:
    """The batches that are left of an epoch, each prepared while the device is at the one before."""

    def prepare(step: int) -> PreparedBatch:
        random = np.random.default_rng((trainer.settings.seed, trainer.epoch, step))
        return trainer.objective.prepare(plan.batch(step), random)

    return prefetch(prepare, range(trainer.step, plan.steps))


def _stopped(trainer: StageTrainer) -> StoppedError:
    return StoppedError(
        f"stopped in stage {trainer.name!r}, epoch {trainer.epoch + 1}, step {trainer.step}; the checkpoint is "
        "kept: run the same command again to go on from there"
    )
