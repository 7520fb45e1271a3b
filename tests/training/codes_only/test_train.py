"""Codes learned for vectors that stay as they are: better than fitted ones, the same from the same seed, resumable."""

import itertools
import math
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sample_vectors import CONFIG, made_vectors, quick

import bidr
from bidr.data.vector_source import open_vectors
from bidr.errors import BidrError, ConfigError, DataError, MissingExtraError, ModelError, StoppedError
from bidr.index.builder.in_memory_engines import make_scan
from bidr.models.codes_only_model import CodesOnlyModel, open_model
from bidr.models.saved_model import Model
from bidr.quantization.exact_search import search_codes, search_vectors
from bidr.quantization.pq_training import fit_pq
from bidr.training.codes_only import train
from bidr.training.codes_only.candidate_recall import compute_found_share, compute_share_at_depths
from bidr.training.codes_only.config import CodesOnlyConfig
from bidr.training.codes_only.ranking_distillation import Distillation, DistillationData, EncodedVectors, label_loss
from bidr.training.codes_only.train import estimate_score_spread, make_distillation_settings
from bidr.training.engine import checkpoint, logs
from bidr.training.engine.logs import LOG, read_lines

TRAIN = 300
DEPTH = 15


def learned(tmp_path: Path, config: bidr.TrainConfig = CONFIG, name: str = "model", **given: object) -> CodesOnlyModel:
    documents, questions = made_vectors()
    return bidr.train_vectors(documents, questions[:TRAIN], tmp_path / name, config, metric="ip", **given)


def found_by(model: CodesOnlyModel, documents: np.ndarray, questions: np.ndarray) -> np.ndarray:
    adapted = model.queries(questions)[0]
    codes = model.additive.encode(model.documents(documents))
    return make_scan(model.codebooks, codes).search(adapted, DEPTH)[1]


def weights(model: CodesOnlyModel) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((model.folder / "sparse").iterdir())}


def test_learned_codes_beat_opq_and_their_initialization(tmp_path: Path) -> None:
    documents, questions = made_vectors()
    asked = questions[TRAIN:]
    best = search_vectors(asked, documents, 10).rows
    books = fit_pq(documents, 2)
    opq = compute_found_share(search_codes(asked, books, books.encode(documents), DEPTH).rows, best)
    begun = compute_found_share(found_by(learned(tmp_path, quick(steps=0), "begun"), documents, asked), best)
    ours = compute_found_share(found_by(learned(tmp_path), documents, asked), best)
    assert ours > opq + 0.15
    assert ours > begun + 0.1


def test_the_initial_codes_are_kept_if_no_measurement_is_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    initial = learned(tmp_path, quick(steps=0), "initial")
    values = itertools.count(0, -1)
    monkeypatch.setattr(train, "measure_candidates", lambda *_: {"kept_by": float(next(values))})
    assert weights(learned(tmp_path)) == weights(initial)


@pytest.mark.parametrize("length", [1e-3, 1e3])
def test_the_length_of_the_vectors_does_not_matter(tmp_path: Path, length: float) -> None:
    documents, questions = made_vectors(length=length)
    model = bidr.train_vectors(documents, questions[:TRAIN], tmp_path / "model", CONFIG, metric="ip")
    best = search_vectors(questions[TRAIN:], documents, 10).rows
    usual, asked = made_vectors()
    expected = compute_found_share(found_by(learned(tmp_path, name="usual"), usual, asked[TRAIN:]), best)
    assert compute_found_share(found_by(model, documents, questions[TRAIN:]), best) == pytest.approx(expected, abs=0.03)


def test_with_all_documents_as_candidates_the_ranking_is_exact(tmp_path: Path) -> None:
    documents, questions = made_vectors()
    documents = documents.astype(np.float16)
    model = bidr.train_vectors(documents, questions[:TRAIN], tmp_path / "model", quick(steps=5), metric="cosine")
    bidr.build_vectors(documents, model, tmp_path / "index", ids=[f"d{row}" for row in range(len(documents))])
    with bidr.open_index(tmp_path / "index") as searcher:
        ranking = searcher.search_vectors(questions[TRAIN:], 20, len(documents))
        rows = open_vectors(documents, "documents", "cosine")[:].astype(np.float16)
        exact = search_vectors(open_vectors(questions[TRAIN:], "questions", "cosine")[:], rows, 20).rows
        assert (ranking.rows == exact).mean() > 0.999
        assert searcher.load_results(ranking)[0][0].id == f"d{exact[0, 0]}"


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    first = weights(learned(tmp_path, name="a"))
    assert weights(learned(tmp_path, name="b")) == first
    assert weights(learned(tmp_path, replace(CONFIG, seed=1), "c")) != first


def test_a_stopped_and_resumed_run_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = weights(learned(tmp_path, name="whole"))
    step = Distillation.train_step

    def stopping(self: Distillation) -> float:
        if self.step == 20:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Distillation, "train_step", stopping)
        with pytest.raises(StoppedError, match="stopped at step 21 of 60"):
            learned(tmp_path, name="cut")
    assert not (tmp_path / "cut" / "model.json").exists()
    assert weights(learned(tmp_path, name="cut")) == whole


def test_a_killed_run_resumes_from_its_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(CONFIG, checkpoint_minutes=0.0)
    whole, step = weights(learned(tmp_path, config, "whole")), Distillation.train_step

    def dying(self: Distillation) -> float:
        if self.step == 37:
            raise MemoryError
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Distillation, "train_step", dying)
        with pytest.raises(MemoryError):
            learned(tmp_path, config, "cut")
    begun: list[int] = []
    monkeypatch.setattr(Distillation, "train_step", lambda self: begun.append(self.step) or step(self))
    assert weights(learned(tmp_path, config, "cut")) == whole
    assert begun[0] == 37


def test_the_checkpoint_is_deleted_only_after_the_model_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, path = weights(learned(tmp_path, name="whole")), tmp_path / "cut" / "work" / "checkpoint.pt"
    assert not list(tmp_path.rglob("checkpoint.pt"))

    def dying(*given: object, **named: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(train, "save_codes_only_model", dying)
        with pytest.raises(MemoryError):
            learned(tmp_path, name="cut")
    assert path.exists()
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(Distillation, "train_step", lambda self: pytest.fail("all steps are taken"))
        patch.setattr(train, "forget", dying)
        with pytest.raises(MemoryError):
            learned(tmp_path, name="cut")
    said = capsys.readouterr().err
    assert "resumed at step 60" in said
    assert "60/60" not in said
    assert path.exists()
    assert weights(learned(tmp_path, name="cut")) == whole
    assert not path.exists()


def logged(folder: Path) -> list[dict[str, float]]:
    """What is in the log but speed, which is never the same."""
    return [
        {name: value for name, value in line.items() if name != "triples_per_second"}
        for line in read_lines(folder / "work" / LOG)
    ]


def test_loss_held_out_shares_and_codeword_usage_are_logged(tmp_path: Path) -> None:
    figures = learned(tmp_path).training["dev"]
    lines = logged(tmp_path / "model")
    steps = [line for line in lines if "measured" not in line]
    assert [line["step"] for line in steps] == [10, 20, 30, 40, 50, 60]
    assert all(line.keys() == {"step", "loss", "rate", "skipped"} for line in steps)
    assert all(math.isfinite(line["loss"]) for line in steps)
    measured = [line for line in lines if "measured" in line]
    assert [(line["step"], line["measured"]) for line in measured] == [(0, 1), (30, 2), (60, 3)]
    assert [line["dev/exact_top_10"] for line in measured] == [one["exact_top_10"] for one in figures]
    assert all(0.5 < line["dev/codewords_used"] <= 1 for line in measured)
    assert all(1 < line["dev/codeword_entropy_bits"] <= 8 for line in measured)


@pytest.mark.parametrize("killed", [5, 30, 37])
def test_a_killed_run_logs_every_line_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: int) -> None:
    """The last checkpoint is of step 27, and a run killed at 5 has none: it measures the start again."""
    learned(tmp_path, name="whole")
    step, save = Distillation.train_step, checkpoint.save

    def dying(self: Distillation) -> float:
        if self.step == killed:
            raise MemoryError
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Distillation, "train_step", dying)
        patch.setattr(
            checkpoint,
            "save",
            lambda path, state: state.get("distilling", {"step": 0})["step"] == 27 and save(path, state),
        )
        with pytest.raises(MemoryError):
            learned(tmp_path, replace(CONFIG, checkpoint_minutes=0.0), "cut")
    learned(tmp_path, name="cut")
    assert logged(tmp_path / "cut") == logged(tmp_path / "whole") != []


def test_missing_tensorboard_is_reported_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = quick(steps=10)
    learned(tmp_path, replace(few, logs=True), "with")
    learned(tmp_path, replace(few, logs=False), "without")
    counts = [len(list((tmp_path / name / "work").glob("events.out.*"))) for name in ("with", "without")]
    assert counts == [1, 0]
    monkeypatch.setattr(logs, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"'\.\[logs\]'"):
        learned(tmp_path, replace(few, logs=True), "missed")
    assert not (tmp_path / "missed").exists()


def spoil(patch: pytest.MonkeyPatch, steps: range, value: float = math.nan) -> None:
    """Losses that are not finite at some steps."""
    real = Distillation.compute_loss
    patch.setattr(
        Distillation, "compute_loss", lambda self, *given: real(self, *given) * (value if self.step in steps else 1.0)
    )


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_losses_are_skipped_and_counted_across_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    spoil(monkeypatch, range(15, 25), value)
    whole, step, counts = weights(learned(tmp_path, name="whole")), Distillation.train_step, []

    def stopping(self: Distillation) -> float:
        if self.step == 20:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Distillation, "train_step", stopping)
        with pytest.raises(StoppedError):
            learned(tmp_path, name="cut")
    monkeypatch.setattr(Distillation, "train_step", lambda self: (step(self), counts.append(self.skipped))[0])
    assert weights(learned(tmp_path, name="cut")) == whole
    assert (counts[0], counts[-1]) == (7, 10)
    assert weights(learned(tmp_path, quick(steps=0), "begun")) != whole


def test_a_non_finite_gradient_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The root of nothing has a loss of nothing and an endless gradient."""
    real = Distillation.compute_loss

    def endless(self: Distillation, *given: torch.Tensor) -> torch.Tensor:
        extra = (0 * self.learner.codewords).sum().sqrt() if self.step == 3 else 0
        return real(self, *given) + extra

    monkeypatch.setattr(Distillation, "compute_loss", endless)
    assert np.isfinite(learned(tmp_path).codebooks.centroids).all()


@pytest.mark.parametrize(
    ("steps", "spoilt", "said"),
    [
        (60, range(5, 60), r"in 21 of 26 steps, the last one step 26 \(loss nan\); lower frozen\.rate .*temperature"),
        (60, range(60), r"in 21 of 21 steps.*\(loss nan\); raise frozen\.temperature, or look for vectors"),
        (4, range(4), r"in 4 of 4 steps"),
    ],
)
def test_too_many_skipped_steps_end_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, spoilt: range, said: str
) -> None:
    """A rate that never moved anything is not the cause."""
    spoil(monkeypatch, spoilt)
    with pytest.raises(BidrError, match=said) as refused:
        learned(tmp_path, quick(steps=steps))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "model" / "model.json").exists()


def test_another_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    learned(tmp_path, quick(steps=2))
    with pytest.raises(ConfigError, match="a run with other config"):
        learned(tmp_path, quick(steps=3))


def test_labels_raise_documents_that_vectors_rank_low(tmp_path: Path) -> None:
    """Answers that full vectors do not rank first: every question's answer is the one nearest to its mirror image."""
    documents, questions = made_vectors()
    mirrored = questions.copy()
    mirrored[:, : mirrored.shape[1] // 2] *= -1
    answers = search_vectors(mirrored, documents, 1).rows[:, 0]
    qrels = {str(row): {str(answers[row]): 1} for row in range(TRAIN)}
    config = quick(label_weight=5.0, steps=120)
    without = found_by(learned(tmp_path, quick(steps=120), "without"), documents, questions[TRAIN:])
    given = found_by(learned(tmp_path, config, "with", qrels=qrels), documents, questions[TRAIN:])
    wanted = answers[TRAIN:, None]
    assert compute_found_share(given, wanted) > compute_found_share(without, wanted) + 0.05


def test_without_questions_documents_are_used_as_questions(tmp_path: Path) -> None:
    documents, _ = made_vectors()
    model = bidr.train_vectors(documents, None, tmp_path / "model", quick(questions=200), metric="ip")
    figures = model.training["dev"]
    assert model.training["questions"] == 0
    assert figures[-1]["exact_top_10"] > 0


def test_a_large_corpus_is_sampled_for_training_and_encoded_completely(tmp_path: Path) -> None:
    documents, questions = made_vectors()
    qrels = {str(row): {str(1_000 + row): 1} for row in range(20)}
    config = quick(sample=400, steps=10)
    model = bidr.train_vectors(documents, questions[:TRAIN], tmp_path / "model", config, metric="ip", qrels=qrels)
    assert model.training["sampled_documents"] == 400
    bidr.build_vectors(documents, model, tmp_path / "index")
    with bidr.open_index(tmp_path / "index") as searcher:
        assert searcher.reader.count == len(documents)


def test_text_queries_are_refused(tmp_path: Path) -> None:
    documents, questions = made_vectors()
    model = learned(tmp_path, quick(steps=0))
    bidr.build_vectors(documents, model, tmp_path / "index")
    with bidr.open_index(tmp_path / "index") as searcher:
        with pytest.raises(ConfigError, match="no text encoder"):
            searcher.search("some words")
        with pytest.raises(DataError, match=r"31 dimensions, the model in .* was learned from 32"):
            searcher.search_vectors(questions[:2, 1:])
    with pytest.raises(ModelError, match="kind 'frozen', which has no text encoder"):
        Model(model.folder)
    assert isinstance(open_model(model.folder), CodesOnlyModel)


def test_label_loss_masks_the_other_labels() -> None:
    scores, pool = torch.tensor([[1.0, 2.0, 3.0, 0.5], [0.0, 1.0, 0.0, 2.0]]), torch.tensor([2, 5, 7, 9])
    labelled = torch.tensor([[5, 9], [-1, -1]])
    others = torch.logsumexp(torch.tensor([1.0, 3.0]), 0)
    expected = sum(torch.log(1 + torch.exp(others - own)) for own in (2.0, 0.5))
    torch.testing.assert_close(label_loss(scores, labelled, pool), torch.as_tensor(expected))


@pytest.mark.parametrize(
    ("finer", "size", "expected"),
    [(0.0, 32, (1e-3, 2_048, 0.6, 16)), (1.0, 4, (1e-3, 2_048, 0.6, 16)), (1.0, 32, (2.5e-4, 8_192, 0.3, 32))],
)
def test_more_bytes_give_finer_settings_with_finer(finer, size, expected):
    config = bidr.TrainConfig(bytes_per_doc=size, frozen=CodesOnlyConfig(finer=finer))
    given = EncodedVectors(np.eye(384, dtype=np.float32), np.eye(384, dtype=np.float32))
    found = make_distillation_settings(
        DistillationData(given, given, np.zeros((384, 1), np.int64), np.zeros((384, 0), np.int64)), config
    )
    sharpness = found.temperature / estimate_score_spread(*given)
    assert (found.rate, found.others, sharpness, found.own) == pytest.approx(expected)


def test_share_at_depths_rewards_high_ranks() -> None:
    found = np.arange(200)[None]
    first, last, none = (np.array([[row, -1]]) for row in (3, 150, 999))
    assert compute_found_share(found, first) == compute_found_share(found, last) == 1
    assert compute_share_at_depths(found, first) == 1
    assert compute_share_at_depths(found, last) == 1 / 5  # of 200, 100, 50, 25 and 12
    assert compute_share_at_depths(found, none) == 0
    assert compute_share_at_depths(found[:, :4], first) == 1
