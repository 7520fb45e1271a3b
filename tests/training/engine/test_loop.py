import math
import signal

import numpy as np
import pytest
import torch
from sample_training import CONFIG, DEV, dataset
from torch import nn

from bidr.data.positives import Positives
from bidr.errors import BidrError, ModelError, StoppedError
from bidr.tokenization.token_store import TokenArray, Tokens
from bidr.training.data import Questions
from bidr.training.engine import checkpoint, loop
from bidr.training.engine.logs import LOG, read_lines
from bidr.training.engine.loop import LoopSettings, StageTrainer, prefetch_batches, schedule, train_stage
from bidr.training.losses.objectives import Objective, PreparedBatch
from bidr.training.negatives.samplers import EpochPlan
from bidr.training.run_context import TrainingRun

SETTINGS = LoopSettings(epochs=3, rate=0.05, decay=0.01, warmup_share=0.2, clip=1.0, seed=0, checkpoint_seconds=1e9)
WORD = Tokens(np.zeros(1, dtype=np.int32), np.arange(2))


class Unheard(nn.Linear):
    """An encoder whose vectors the loss below does not look at."""

    def __init__(self) -> None:
        super().__init__(4, 4)

    def encode(self, tokens):
        return self.weight[0].expand(len(tokens.offsets) - 1, 4)


class Noisy(Objective):
    """Learns something from both kinds of chance: torch's own (as dropout does) and the step's generator."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.encoder = Unheard()
        self.values: dict[int, float] = {}
        self.steps = 0

    def prepare(self, batch, random):
        noise = torch.from_numpy(random.standard_normal((3, 4))).float()
        return PreparedBatch(batch.queries, (WORD,), (batch.queries, noise))

    def compute_terms(self, vectors, comparison):
        self.steps += 1
        queries, noise = comparison
        inputs = torch.randn(3, 4) + noise
        loss = self.encoder(inputs + float(queries.mean())).square().mean()
        return {"made": loss * self.values.get(self.steps, 1.0)}


class Numbers:
    """Six steps an epoch, another order each epoch."""

    def plan(self, epoch: int) -> EpochPlan:
        order = np.random.default_rng(epoch).permutation(12)
        return EpochPlan(order, order, order, 2)


def start(**changes) -> StageTrainer:
    torch.manual_seed(2)
    return StageTrainer("made", Noisy(), LoopSettings(**{**vars(SETTINGS), **changes}), "R@10")


def step_once(training: StageTrainer) -> None:
    plan = Numbers().plan(training.epoch)
    training.train_step(next(prefetch_batches(training, plan)), plan.steps)
    training.finish_step()


def weights(training: StageTrainer) -> list[float]:
    return nn.utils.parameters_to_vector(training.objective.parameters()).tolist()


@pytest.fixture
def stop(monkeypatch):
    """Asks to stop after a number of steps, as Ctrl-C would."""
    real = StageTrainer.train_step

    def after(steps: int) -> None:
        left = [steps]

        def watched(self, *given):
            value = real(self, *given)
            left[0] -= 1
            if left[0] == 0:
                signal.raise_signal(signal.SIGINT)
            return value

        monkeypatch.setattr(StageTrainer, "train_step", watched)

    return after


@pytest.mark.parametrize("steps", [1, 5, 6, 7, 12, 17, 18])
def test_a_stopped_stage_resumes_with_the_same_result(tmp_path, stop, steps):
    values = [0.1, 0.3, 0.9, 0.5]
    whole = start()
    (tmp_path / "a").mkdir()
    train_stage(whole, Numbers(), iter(values).__next__, tmp_path / "a")
    rest = iter(values)
    stop(steps)
    with pytest.raises(StoppedError, match="run the same command again"):
        train_stage(start(), Numbers(), rest.__next__, tmp_path)
    torch.manual_seed(12345)
    resumed = start()
    train_stage(resumed, Numbers(), rest.__next__, tmp_path)
    assert weights(resumed) == weights(whole)
    assert resumed.history == whole.history
    assert resumed.best == whole.best == 0.9
    assert resumed.objective.steps == 18 - steps


def test_a_stop_during_the_last_validation_is_not_lost(tmp_path):
    """The next stage would begin although the person asked to stop."""
    values = iter([0.1, 0.3, 0.9, 0.5])

    def validate() -> float:
        value = next(values)
        if value == 0.5:
            signal.raise_signal(signal.SIGTERM)
        return value

    with pytest.raises(StoppedError):
        train_stage(start(), Numbers(), validate, tmp_path)
    finished = start()
    train_stage(finished, Numbers(), lambda: pytest.fail("all epochs are done"), tmp_path)
    assert finished.best == 0.9


def test_a_second_signal_interrupts_at_once_and_handlers_are_restored():
    before = signal.getsignal(signal.SIGTERM)
    with checkpoint.catch_stop_signals() as asked:
        signal.raise_signal(signal.SIGTERM)
        assert asked.is_requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_checkpoints_are_written_at_time_intervals(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(checkpoint, "save", lambda path, state: saved.append((state["epoch"], state["step"])))
    train_stage(start(epochs=1, checkpoint_seconds=-1), Numbers(), lambda: 0.5, tmp_path)
    assert saved == [(0, step) for step in range(1, 7)] + [(1, 0)]


def test_the_best_epochs_weights_are_kept(tmp_path):
    """The second of three epochs is the best: what is left must be its weights, not the last ones."""
    seen = []
    values = iter([0.1, 0.3, 0.9, 0.5])
    training = start()

    def validate() -> float:
        seen.append(weights(training))
        return next(values)

    train_stage(training, Numbers(), validate, tmp_path)
    assert weights(training) == seen[2] != seen[3]
    assert [(epoch["epoch"], epoch["R@10"]) for epoch in training.history] == [(0, 0.1), (1, 0.3), (2, 0.9), (3, 0.5)]
    assert training.best_epoch == 2


def test_the_initial_weights_are_kept_if_no_epoch_is_better(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(loop, "say", said.append)
    training = start()
    initial, values = weights(training), iter([0.9, 0.3, 0.8, 0.5])
    train_stage(training, Numbers(), lambda: next(values), tmp_path)
    assert (weights(training), training.best, training.best_epoch) == (initial, 0.9, 0)
    assert said[-1] == "made: no epoch was better on dev than the initial weights, which are kept"


@pytest.mark.parametrize("steps", [1, 7, 13])
def test_the_initial_weights_are_kept_across_a_resume(tmp_path, stop, steps):
    first = start()
    initial, values = weights(first), iter([0.9, 0.3, 0.8, 0.5])
    stop(steps)
    with pytest.raises(StoppedError):
        train_stage(first, Numbers(), values.__next__, tmp_path)
    resumed = start()
    train_stage(resumed, Numbers(), values.__next__, tmp_path)
    assert weights(resumed) == initial
    assert [line["epoch"] for line in read_lines(tmp_path / LOG) if "epoch" in line] == [0, 1, 2, 3]


@pytest.mark.parametrize("steps", [0, 1, 7, 13])
def test_a_trained_epoch_as_good_as_the_initial_weights_is_kept_across_a_resume_too(tmp_path, stop, steps):
    training, values = start(), iter([0.9, 0.3, 0.9, 0.9])
    if steps:
        stop(steps)
        with pytest.raises(StoppedError):
            train_stage(training, Numbers(), values.__next__, tmp_path)
        training = start()
    train_stage(training, Numbers(), values.__next__, tmp_path)
    assert (training.best, training.best_epoch) == (0.9, 2)


def test_a_stage_without_epochs_is_its_initial_weights(tmp_path):
    training = start(epochs=0)
    initial = weights(training)
    train_stage(training, Numbers(), lambda: 0.4, tmp_path)
    assert (weights(training), len(training.history)) == (initial, 1)


def test_the_first_of_equal_epochs_is_kept(tmp_path):
    seen = []
    training = start()
    train_stage(training, Numbers(), lambda: seen.append(weights(training)) or 0.4, tmp_path)
    assert weights(training) == seen[1]  # seen[0] are the initial ones


def test_observed_plan_values_are_logged(tmp_path):
    training = start(epochs=2)
    train_stage(training, Numbers(), lambda: 0.4, tmp_path, lambda epoch, plan: {"first": float(plan.queries[0])})
    assert [epoch["first"] for epoch in training.history[1:]] == [float(Numbers().plan(n).queries[0]) for n in (0, 1)]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_non_finite_loss_is_skipped_and_counted(value):
    training = start()
    training.objective.values = {2: value}
    step_once(training)
    before = weights(training)
    step_once(training)
    assert (weights(training), training.skipped, training.step) == (before, 1, 2)
    step_once(training)
    assert weights(training) != before
    assert math.isfinite(training.total)


def test_a_non_finite_gradient_is_skipped():
    """The root of nothing has a loss of nothing and an endless gradient: one step with it would end the run."""
    training = start()
    weight = training.objective.encoder.weight
    training.objective.compute_terms = lambda vectors, comparison: {"made": (0 * weight).sum().sqrt()}
    before = weights(training)
    step_once(training)
    assert (weights(training), training.skipped) == (before, 1)


def test_too_many_skipped_steps_end_the_stage(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "MAX_SKIPPED_STEPS", 3)
    training = start()
    training.objective.values = dict.fromkeys(range(2, 50), math.nan)
    with pytest.raises(BidrError, match=r"made: .*not finite in 4 steps.*step 5 of epoch 1 .*queries number 6, 10"):
        train_stage(training, Numbers(), lambda: 0.5, tmp_path)


@pytest.mark.parametrize("cut", [None, 4, 6])
def test_an_epoch_without_one_finite_step_ends_the_stage(tmp_path, stop, cut):
    """Six steps are fewer than are forgiven: what they leave would be the weights as they came, called trained."""

    def begin() -> StageTrainer:
        training = start()
        training.objective.values = dict.fromkeys(range(50), math.nan)
        return training

    said = r"made: .*not finite in 6 steps, all of this epoch's.*step 6 of epoch 1 .*queries number 8, 1"
    if cut:
        stop(cut)
        with pytest.raises(BidrError, match=said) if cut == 6 else pytest.raises(StoppedError):
            train_stage(begin(), Numbers(), lambda: 0.5, tmp_path)
    measured = []
    with pytest.raises(BidrError, match=said):
        train_stage(begin(), Numbers(), lambda: measured.append(1) or 0.5, tmp_path)
    assert len(measured) == (cut != 4)  # epoch 0 alone, and not again where a checkpoint holds it


def test_an_epoch_of_skipped_steps_after_a_good_one_ends_the_stage_too(tmp_path):
    training = start()
    training.objective.values = dict.fromkeys(range(7, 13), math.inf)
    with pytest.raises(BidrError, match="all of this epoch's among them, the last one step 6 of epoch 2"):
        train_stage(training, Numbers(), lambda: 0.5, tmp_path)


def test_the_epochs_loss_is_the_mean_of_its_finite_steps_and_says_how_many_were_not(tmp_path, stop, monkeypatch):
    said, losses = [], []
    monkeypatch.setattr(loop, "say", said.append)
    real = StageTrainer.finish_step
    monkeypatch.setattr(StageTrainer, "finish_step", lambda self: losses.append(real(self)) or losses[-1])
    first = start(epochs=2)
    first.objective.values = {2: math.nan, 3: math.nan}
    stop(4)
    with pytest.raises(StoppedError):
        train_stage(first, Numbers(), lambda: 0.5, tmp_path)
    again = start(epochs=2)
    train_stage(again, Numbers(), lambda: 0.5, tmp_path)
    finite = [value for value in losses if math.isfinite(value)]
    assert len(finite) == 10
    epochs = again.history[1:]
    assert [epoch["loss"] for epoch in epochs] == pytest.approx([np.mean(finite[:4]), np.mean(finite[4:])])
    assert [epoch.get("epoch_skipped") for epoch in epochs] == [2, None]
    assert [line.get("epoch_skipped") for line in read_lines(tmp_path / LOG) if line.get("epoch")] == [2, None]
    assert [line.count("2 of 6 steps skipped") for line in said if "epoch 1/2, loss" in line] == [1]


def test_a_batch_is_named_by_query_ids_if_known():
    objective, rows = Noisy(), np.array([2, 0])
    assert objective.name_queries(rows) == "number 2, 0"
    nothing = Positives(np.zeros(4, dtype=np.int64), np.zeros(0, dtype=np.int64))
    objective.questions = Questions([], TokenArray(WORD), nothing)
    assert objective.name_queries(rows) == "number 2, 0"
    objective.questions = objective.questions._replace(ids=["q7", "q8", "q9"])
    assert objective.name_queries(rows) == "'q9', 'q7'"


def test_training_data_has_query_ids(tmp_path):
    material = TrainingRun(dataset(), CONFIG, tmp_path).data
    assert (material.train.ids[:2], len(material.dev.ids)) == (["q0", "q1"], DEV)


def test_skipped_steps_are_counted_across_resumes(tmp_path, stop):
    first = start()
    first.objective.values = {2: math.nan}
    stop(4)
    with pytest.raises(StoppedError):
        train_stage(first, Numbers(), lambda: 0.5, tmp_path)
    again = start(epochs=1)
    train_stage(again, Numbers(), lambda: 0.5, tmp_path)
    assert again.skipped == 1


def test_the_rate_rises_and_falls():
    rates = [schedule(step, 100, 0.1) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == rates[10] == 1.0
    assert rates[55] == pytest.approx(0.5)
    assert 0 < rates[99] < 0.02
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert schedule(0, 1, 0.1) == 1.0


def test_parameter_groups_keep_their_learning_rates():
    class Two(Noisy):
        def make_param_groups(self, rate, decay):
            return [
                {"params": [self.encoder.weight], "lr": rate, "weight_decay": decay},
                {"params": [self.encoder.bias], "lr": 3 * rate, "weight_decay": 0.0},
            ]

    training = StageTrainer("made", Two(), SETTINGS, "R@10")
    step_once(training)
    one, other = (group["lr"] for group in training.optimizer.param_groups)
    assert other == pytest.approx(3 * one)
    assert one == pytest.approx(0.05 * schedule(0, 18, 0.2))


def test_a_damaged_checkpoint_is_named(tmp_path):
    (tmp_path / "checkpoint.pt").write_bytes(b"nothing of the kind")
    with pytest.raises(ModelError, match=r"checkpoint\.pt.*delete it") as refused:
        train_stage(start(), Numbers(), lambda: 0.5, tmp_path)
    assert "\n" not in str(refused.value)


def test_a_failed_checkpoint_write_keeps_the_previous_one(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, {"a": 1})

    def full(state, where):
        where.write_bytes(b"half")
        raise OSError("full")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="full"):
        checkpoint.save(path, {"a": 2})
    assert checkpoint.load(path) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]
