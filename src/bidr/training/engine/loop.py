"""Training loop: steps over an epoch's plan, validation before the first and after each epoch, best weights kept.

The initial weights are a contender, as epoch 0: a stage never ends behind its start on dev.
"""

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
MAX_SKIPPED_STEPS = 20

DevMetrics = float | dict[str, float]
"""Dev metric of a stage, or several by name."""


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """Optimization settings of a stage."""

    epochs: int
    rate: float
    decay: float
    warmup_share: float
    clip: float
    seed: int
    checkpoint_seconds: float
    tokens_at_once: int | None = None


class LaunchedStep(NamedTuple):
    """A step that may still run on the device."""

    step: int
    steps: int
    """Steps of its epoch."""
    queries: Rows
    rate: float
    names: list[str]
    """Names of the loss terms."""
    outcome: AsyncHostCopy
    """Whether loss and gradient are finite, the gradient's norm, the loss terms."""


class StageTrainer:
    """Trains one stage. Everything that is resumed is in `state_dict`."""

    def __init__(
        self, name: str, objective: Objective, settings: LoopSettings, measure: str, group: ProcessGroup | None = None
    ) -> None:
        self.name, self.objective, self.settings, self.measure = name, objective, settings, measure
        self.group, self.logs = group or ProcessGroup(), StageLogger()
        self.optimizer = torch.optim.AdamW(objective.make_param_groups(settings.rate, settings.decay), fused=True)
        self.bases = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.epoch = self.step = self.total_steps = self.skipped = 0
        self.missed = 0  # of those skipped, this epoch's
        self.best, self.best_epoch, self.total = -math.inf, 0, 0.0
        self.best_state: dict[str, torch.Tensor] = {}
        self.history: list[dict[str, float]] = []
        self._launched: LaunchedStep | None = None

    def state_dict(self) -> dict[str, Any]:
        self.finish_step()
        return {
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "best_state": self.best_state,
            "best": self.best,
            "best_epoch": self.best_epoch,
            "epoch": self.epoch,
            "step": self.step,
            "taken": self.total_steps,
            "skipped": self.skipped,
            "missed": self.missed,
            "total": self.total,
            "history": self.history,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.objective.load_state_dict(state["objective"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.total_steps = state["taken"]
        for name in ("best_state", "best", "epoch", "step", "skipped", "total", "history"):
            setattr(self, name, state[name])
        self.missed = state.get("missed", 0)  # absent in checkpoints of version 0.1
        self.best_epoch = state.get("best_epoch", state["epoch"])  # likewise; that version kept trained weights only

    def train_step(self, prepared: PreparedBatch, steps: int) -> float:
        """Launch one update and return the loss of the previous one, so that no step waits for its own."""
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
        # The fused optimizer skips the update on the device if this is set.
        self.optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
        self.optimizer.step()
        previous_loss = self.finish_step()
        outcome = torch.cat([torch.stack([finite.float(), norm.float()]), values])
        rate = settings.rate * share
        self._launched = LaunchedStep(self.step, steps, prepared.queries, rate, list(terms), AsyncHostCopy(outcome))
        self.step += 1
        self.total_steps += 1
        return previous_loss

    def finish_step(self) -> float:
        """Wait for the launched step, log it and return its loss; non-finite steps are skipped."""
        launched, self._launched = self._launched, None
        if launched is None:
            return math.nan
        finite, norm, *values = launched.outcome.wait().tolist()
        loss = float(sum(values))
        if finite:
            self.total += loss
        else:
            self._skip(launched, loss)
        log_values = {
            "loss": loss,
            **{f"loss/{name}": value for name, value in zip(launched.names, values, strict=True)},
        }
        log_values |= {"gradient_norm": norm, "rate": launched.rate, "skipped": self.skipped}
        self.logs.log_step(self.total_steps, len(launched.queries), log_values)
        return loss

    def _skip(self, launched: LaunchedStep, value: float) -> None:
        """Count a skipped step; fail after MAX_SKIPPED_STEPS, or if all steps of the epoch were skipped."""
        self.skipped, self.missed = self.skipped + 1, self.missed + 1
        if self.skipped > MAX_SKIPPED_STEPS or self.missed == launched.steps:
            suffix = ", all of this epoch's among them" if self.missed == launched.steps else ""
            raise BidrError(
                f"{self.name}: loss or gradient was not finite in {self.skipped} steps{suffix}, the last one "
                f"step {launched.step + 1} of epoch {self.epoch + 1} (loss {value}; train queries "
                f"{self.objective.name_queries(launched.queries[:5])}, ...); lower the learning rate or look at "
                "that batch's texts"
            )

    def open_first_epoch(self, dev_metrics: dict[str, float]) -> None:
        """Record the initial weights as epoch 0 and keep them as the best so far."""
        self.history.append({"epoch": 0, **dev_metrics})
        self.logs.log_epoch(0, 0, {f"dev/{name}": value for name, value in dev_metrics.items()})
        self._keep(dev_metrics[self.measure])

    def close_epoch(self, value: float) -> None:
        """Close the epoch; keep the weights if their dev metric is the best so far.

        The first of equal epochs is kept, but the initial weights only if they are better than every trained epoch.
        """
        self.finish_step()
        self.epoch, self.step, self.total, self.missed = self.epoch + 1, 0, 0.0, 0
        if value > self.best or (value == self.best and not self.best_epoch):
            self._keep(value)

    def _keep(self, value: float) -> None:
        self.best, self.best_epoch = value, self.epoch
        self.best_state = copy.deepcopy(self.objective.state_dict())


def schedule(step: int, total: int, warmup_share: float) -> float:
    """Return the learning-rate factor: linear warm-up, then linear decay to zero."""
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
    """Train a stage to its end, or resume its checkpoint, and load the best weights, which may be the initial ones.

    Args:
        validate: Returns the dev metrics; called on rank zero only.
        observe: Called with each epoch's plan; returns values that are logged with the loss.
    """
    path, group = folder / CHECKPOINT, trainer.group
    saved = checkpoint.load(path)
    if saved:
        trainer.load_state_dict(saved)
        say(f"{trainer.name}: resumed in epoch {trainer.epoch + 1} at step {trainer.step}")
    if not group.rank:
        trainer.logs = FolderLogger(folder, trainer.total_steps, trainer.epoch if saved else -1, tensorboard)
    trainer.objective.train()
    with closing(trainer.logs), checkpoint.catch_stop_signals() as stop:
        if not saved:
            trainer.open_first_epoch(_measure(trainer, validate))
            say(f"{trainer.name}: before training, dev {trainer.measure} {trainer.best:.4f}")
        while trainer.epoch < trainer.settings.epochs:
            plan = sampler.plan(trainer.epoch)
            notes = observe(trainer.epoch, plan)
            seconds = _run_epoch(trainer, plan, path, stop)
            trainer.finish_step()
            dev_metrics = _measure(trainer, validate)
            summary = _record(trainer, plan.steps, dev_metrics, notes, seconds)
            trainer.close_epoch(dev_metrics[trainer.measure])
            _save(trainer, path)
            say(f"{summary}, {seconds:.1f} s")
            if group.reduce_any(stop.is_requested):
                raise _make_stopped_error(trainer)
    if trainer.settings.epochs and not trainer.best_epoch:
        say(f"{trainer.name}: no epoch was better on dev than the initial weights, which are kept")
    trainer.objective.load_state_dict(trainer.best_state)


def _measure(trainer: StageTrainer, validate: Callable[[], DevMetrics]) -> dict[str, float]:
    """Measure the dev metrics on rank zero."""
    metrics = trainer.group.run_on_rank_zero(validate)
    return metrics if isinstance(metrics, dict) else {trainer.measure: metrics}


def _record(
    trainer: StageTrainer, steps: int, dev_metrics: dict[str, float], notes: dict[str, float], seconds: float
) -> str:
    """Record an epoch in the history and the logs; returns a summary line."""
    skipped_steps = trainer.missed
    loss = trainer.total / (steps - skipped_steps)
    if skipped_steps:
        notes = {**notes, "epoch_skipped": skipped_steps}
    trainer.history.append({"epoch": trainer.epoch + 1, "loss": loss, **dev_metrics, **notes})
    on_dev = {f"dev/{name}": value for name, value in dev_metrics.items()}
    log_values = {"epoch_loss": loss, **on_dev, **notes, "seconds": round(seconds, 3)}
    trainer.logs.log_epoch(trainer.total_steps, trainer.epoch + 1, log_values)
    extra = "".join(f", {name} {number:.4g}" for name, number in notes.items() if name != "epoch_skipped")
    skipped = f" ({skipped_steps} of {steps} steps skipped, not finite)" if skipped_steps else ""
    return (
        f"{trainer.name}: epoch {trainer.epoch + 1}/{trainer.settings.epochs}, loss {loss:.4f}{skipped}, dev "
        f"{trainer.measure} {dev_metrics[trainer.measure]:.4f}{extra}"
    )


def _run_epoch(trainer: StageTrainer, plan: EpochPlan, path: Path, stop: checkpoint.StopSignal) -> float:
    """Run the remaining steps of an epoch; returns the seconds they took."""
    saved = started = time.monotonic()
    label = f"{trainer.name} {trainer.epoch + 1}/{trainer.settings.epochs}"
    with show_progress(label, plan.steps, initial=trainer.step) as advance:
        for prepared in prefetch_batches(trainer, plan):
            value = trainer.train_step(prepared, plan.steps)
            advance(1, f"loss {value:.3f}" if math.isfinite(value) else "")
            now = time.monotonic()
            stop_requested = trainer.group.reduce_any(stop.is_requested)
            if stop_requested or now - saved > trainer.settings.checkpoint_seconds:
                _save(trainer, path)
                saved = now
            if stop_requested:
                raise _make_stopped_error(trainer)
    return time.monotonic() - started


def _save(trainer: StageTrainer, path: Path) -> None:
    """Save a checkpoint. All ranks hold the same state; rank zero writes it."""
    trainer.finish_step()
    if not trainer.group.rank:
        checkpoint.save(path, trainer.state_dict())


def prefetch_batches(trainer: StageTrainer, plan: EpochPlan) -> Iterator[PreparedBatch]:
    """Prepare the remaining batches of an epoch, each while the device runs the previous one."""

    def prepare(step: int) -> PreparedBatch:
        random = np.random.default_rng((trainer.settings.seed, trainer.epoch, step))
        return trainer.objective.prepare(plan.get_batch(step), random)

    return prefetch(prepare, range(trainer.step, plan.steps))


def _make_stopped_error(trainer: StageTrainer) -> StoppedError:
    return StoppedError(
        f"stopped in stage {trainer.name!r}, epoch {trainer.epoch + 1}, step {trainer.step}; the checkpoint is "
        "kept: run the same command again to resume"
    )
