"""A model that learned lists, as a person uses it: built, looked into, added to, compacted."""

from pathlib import Path

import numpy as np
from cli_data import Made, Run

from bidr.models.saved_model import Model, ModelParts, save_model
from bidr.quantization.learned_ivf import LearnedIvf


def test_learned_lists_from_model_to_compacted_index(bidr: Run, made: Made, tmp_path: Path) -> None:
    before = Model(made.model)
    random = np.random.default_rng(0)
    lists = LearnedIvf(*random.standard_normal((2, 30, before.codebooks.dim)).astype(np.float32))
    parts = ModelParts(
        **{name: made.model / name for name in ("sparse", "dense", "query")}, codebooks=before.codebooks, lists=lists
    )
    (tmp_path / "model").mkdir()
    save_model(tmp_path / "model", parts, before.text, candidates=20, training=before.training)
    index, how = tmp_path / "index", ["--data", made.data, "--model", tmp_path / "model", "--engine", "lists"]

    assert bidr("build", *how, "--out", index, "--ram-budget", "8GiB").code == 0
    assert "learned by the model" in bidr("inspect", index).out
    assert "learned: bidr build --engine ivf" in bidr("inspect", tmp_path / "model").out
    assert "by k-means" in bidr("build", *how, "--out", tmp_path / "k-means", "--no-learned-lists").out

    found = [
        bidr("search", "--index", folder, "--ef", "30", "--k", "5", "words").out.splitlines()[:-1]  # the last is times
        for folder in (index, tmp_path / "k-means")
    ]
    assert found[0] == found[1]
    assert len(found[0]) > 5
    assert bidr("delete", index, "d1").code == 0
    assert bidr("compact", index).code == 0
    assert "learned by the model" in bidr("inspect", index).out
