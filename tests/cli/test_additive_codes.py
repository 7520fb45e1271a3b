"""Codes that are sums, from the command line."""

from pathlib import Path

from cli_data import Run, beir_folder

WIDE = ["--encoder.dim", "32", "--encoder.vocabulary", "500", "--bytes-per-doc", "2", "--candidates", "20"]
QUICK = ["--batch-size", "64", "--dense.depth", "20", "--device", "cpu", "--frozen.steps", "10"]


def test_a_distilled_model_is_trained_described_built_and_searched(tmp_path: Path, bidr: Run):
    data, model, index = beir_folder(tmp_path / "data"), tmp_path / "run", tmp_path / "index"
    trained = bidr("train", "--data", data, "--out", model, "--recipe", "star-distilled", *WIDE, *QUICK)
    assert trained.code == 0, trained.err
    assert "10 steps, best dev exact top 10" in trained.out
    assert bidr("inspect", model).code == 0
    assert "codewords are summed" in (model / "README.md").read_text()
    assert bidr("build", "--data", data, "--model", model, "--out", index).code == 0
    assert bidr("search", "--index", index, "about").code == 0


def test_a_damaged_run_is_one_line(tmp_path: Path, bidr: Run):
    data, out = beir_folder(tmp_path / "data"), tmp_path / "run"
    (out / "work").mkdir(parents=True)
    (out / "work" / "run.json").write_text("{")
    assert "run.json cannot be read" in bidr.refused("train", "--data", data, "--out", out, *WIDE)
    assert "run.json cannot be read" in bidr.refused("inspect", out)


def test_a_comparison_refuses_a_unified_recipe_without_unification(tmp_path: Path, bidr: Run):
    given = ["compare", "--data", beir_folder(tmp_path / "data"), "--out", tmp_path / "out", *WIDE]
    assert "the recipe 'bidr-jpq' fits" in bidr.refused(*given, "--recipes", "bidr-jpq", "--unify.epochs", "0")
    assert "distil.teacher: not given" in bidr.refused(*given, "--recipes", "bidr-taught")
    assert not (tmp_path / "out").exists()
