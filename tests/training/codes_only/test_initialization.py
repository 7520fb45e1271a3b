"""Codes are fitted with several query metrics; the best on held-out questions is where learning begins."""

from pathlib import Path

import numpy as np
import pytest
from sample_vectors import CONFIG, made_vectors, quick

import bidr
from bidr.data.vector_source import VectorSource
from bidr.training.codes_only import initialization
from bidr.training.codes_only.candidate_recall import measure_candidates
from bidr.training.codes_only.data import PreparedDistillation, SourceVectors, prepare_distillation
from bidr.training.codes_only.initialization import EXPONENTS, STARTS, fit_initialization
from bidr.training.codes_only.ranking_distillation import CodesLearner

TRAIN = 300


def prepare(questions: np.ndarray | None = None) -> PreparedDistillation:
    documents, drawn = made_vectors()
    vectors = drawn[:TRAIN] if questions is None else questions
    return prepare_distillation(
        SourceVectors(VectorSource(documents, "d", "ip"), VectorSource(vectors, "q", "ip")), {}, CONFIG
    )


def measure_starts(prepared: PreparedDistillation) -> list[float]:
    starts = [initialization._fit(prepared, CONFIG, "cpu", exponent) for exponent in EXPONENTS]
    return [measure_candidates(CodesLearner(*start), prepared.probe, CONFIG, "codes")["kept_by"] for start in starts]


def test_the_initialization_that_ranks_held_out_questions_best_is_chosen(tmp_path: Path) -> None:
    prepared = prepare()
    shares = measure_starts(prepared)
    chosen = fit_initialization(prepared, CONFIG, tmp_path)
    assert measure_candidates(CodesLearner(*chosen), prepared.probe, CONFIG, "codes")["kept_by"] == max(shares)
    assert shares[1] > shares[0] + 0.03, "these questions use few directions of the documents"


def test_the_choice_follows_the_held_out_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, shares = prepare(), iter([0.5, 0.4])
    monkeypatch.setattr(initialization, "measure_candidates", lambda *given: {"kept_by": next(shares)})
    chosen = fit_initialization(prepared, CONFIG, tmp_path)
    np.testing.assert_array_equal(chosen.additive.document, np.eye(chosen.additive.dim))


@pytest.mark.parametrize("steps", [0, 10])
def test_learned_codes_are_never_behind_their_best_initialization(tmp_path: Path, steps: int) -> None:
    """Held-out figures; the rate of learning is one that destroys the codes."""
    documents, questions = made_vectors()
    config = quick(steps=steps, rate=10.0)
    model = bidr.train_vectors(documents, questions[:TRAIN], tmp_path / "model", config, metric="ip")
    prepared = prepare()
    codes = model.additive.encode(prepared.lessons.own.documents * np.float32(prepared.length))
    share = measure_candidates(CodesLearner(model.additive, codes), prepared.probe, CONFIG, "codes")["kept_by"]
    assert share >= max(measure_starts(prepared)) - 1e-6


def test_an_interrupted_run_fits_only_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents, questions = made_vectors()
    config, fit, fitted = quick(steps=4), initialization.fit_additive, []

    def train(name: str) -> bytes:
        model = bidr.train_vectors(documents, questions[:TRAIN], tmp_path / name, config, metric="ip")
        return b"".join(path.read_bytes() for path in sorted((model.folder / "sparse").iterdir()))

    def stop_second(*given: object, **named: object) -> object:
        fitted.append(named["metric"] is not None)
        if len(fitted) == 2:
            raise MemoryError
        return fit(*given, **named)

    whole = train("whole")
    monkeypatch.setattr(initialization, "fit_additive", stop_second)
    with pytest.raises(MemoryError):
        train("cut")
    assert train("cut") == whole
    assert fitted == [False, True, True]
    assert not list(tmp_path.rglob(STARTS))


def test_fitting_shows_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit_initialization(prepare(), CONFIG, tmp_path)
    assert capsys.readouterr().err.count("fit 2 books of 256 codewords: 4/4 steps") == len(EXPONENTS)
