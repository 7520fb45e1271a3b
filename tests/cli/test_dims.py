"""bidr build --dims: the index is what `bidr compare --shrink` promises, with texts and with vectors."""

import json
from pathlib import Path

import numpy as np
import pytest
from cli_data import Made, Run

import bidr as package
from bidr.search.truncated_searcher import TruncatedSearcher

DIMS = 8


def test_truncated_text_indexes_rank_as_compare_predicts(made: Made, bidr: Run, tmp_path: Path) -> None:
    build = ["build", "--data", made.data, "--model", made.model, "--out", tmp_path / "cut"]
    shown = bidr(*build, "--dims", DIMS)
    assert shown.code == 0, shown.err
    assert f"32 for the codes, the first {DIMS} of 32 for the vectors" in shown.out
    words = [query.text for query in package.load(made.data).split("test").queries][:20]
    with package.open_index(made.index) as whole, package.open_index(tmp_path / "cut") as cut:
        promised = TruncatedSearcher(whole, dims=DIMS).search(words, 10, 10**6)
        found = cut.search(words, 10, 10**6)
    for mine, theirs in zip(found, promised, strict=True):
        assert [one.score for one in mine] == pytest.approx([one.score for one in theirs], abs=2e-3)
    added = tmp_path / "new.jsonl"
    added.write_text(json.dumps({"_id": "new", "title": "", "text": words[0]}) + "\n")
    done = bidr("add", tmp_path / "cut", added)
    assert done.code == 0, done.err
    with package.open_index(tmp_path / "cut") as cut:
        assert cut.reader.vectors.read(cut.reader.latest().places()[-1:]).shape == (1, DIMS)
        assert "new" in [one.id for one in cut.search(words[0], 10, 10**6)]
    for wrong in (0, 33):
        said = bidr.refused(*build[:-1], tmp_path / "none", "--dims", wrong)
        assert f"dims: given {wrong}, expected a whole number from 1 to 32" in said


def test_vectors_with_a_model_and_without(bidr: Run, tmp_path: Path) -> None:
    random, dim = np.random.default_rng(0), 16
    vectors = random.normal(size=(320, dim)).astype(np.float32)
    questions = (vectors + 0.3 * random.normal(size=vectors.shape)).astype(np.float32)
    for name, array in (("d", vectors), ("q", questions), ("one", questions[:1])):
        np.save(tmp_path / f"{name}.npy", array)
    quick = ["--bytes-per-doc", 2, "--candidates", 20, "--frozen.steps", 10, "--frozen.batch-size", 32]
    files = ["--vectors", tmp_path / "d.npy", "--query-vectors", tmp_path / "q.npy"]
    trained = bidr("train", *files, "--out", tmp_path / "model", *quick)
    assert trained.code == 0, trained.err
    first = [each[:, :DIMS] / np.linalg.norm(each[:, :DIMS], axis=1, keepdims=True) for each in (questions, vectors)]
    exact = np.sort(first[0] @ first[1].T)[:, ::-1][:, :10]
    for name, how in (("learned", ["--model", tmp_path / "model"]), ("plain", ["--bytes-per-doc", 4])):
        build = ["build", "--vectors", tmp_path / "d.npy", "--out", tmp_path / name, *how, "--stored", "int8"]
        assert "dims: given 17, expected" in bidr.refused(*build, "--dims", 17)
        done = bidr(*build, "--dims", DIMS)
        assert done.code == 0, done.err
        with package.open_index(tmp_path / name) as index:
            found = index.search_vectors(questions, 10, 320)
            assert index.reader.manifest.code_error is not None
        np.testing.assert_allclose(found.scores, exact, atol=0.02)
        told = bidr("inspect", tmp_path / name)
        assert f"the first {DIMS} of 16 for the vectors" in told.out
        assert bidr("search", "--index", tmp_path / name, "--query-vectors", tmp_path / "one.npy").code == 0
