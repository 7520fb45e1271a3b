"""The command: rows are finished one by one, never twice, and make a report."""

import json
import re
import sys
from pathlib import Path

import pytest
from cli_data import Run, beir_folder
from fake_diskann import install_fake_diskann
from msmarco_files import write_documents, write_passages
from sample_encoders import bert

from bidr.data.dataset import load
from bidr.errors import DataError, MissingExtraError
from bidr.experiments.reproduce import row_runner
from bidr.experiments.reproduce.paper_settings import make_settings
from bidr.experiments.reproduce.reproduction import cap_candidates, separate_reported_split
from bidr.experiments.reproduce.row_files import RowResult, RowStore
from bidr.experiments.reproduce.row_runner import SeedRunner
from bidr.experiments.reproduce.row_specs import ROWS, RowSpec
from bidr.training.config import TrainConfig

TINY = [
    *("--encoder.dim", "32", "--encoder.vocabulary", "500", "--codewords", "16", "--batch-size", "64"),
    *("--dense.depth", "20", "--warmup.epochs", "1", "--sparse.epochs", "1", "--dense.epochs", "1"),
    *("--frozen.steps", "5", "--frozen.questions", "300", "--device", "cpu"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return beir_folder(tmp_path_factory.mktemp("data") / "small")


def list_times(folder: Path, pattern: str) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob(pattern)}


def test_rows_and_stages_are_finished_once_and_selected_rows_add_to_them(bidr: Run, data: Path, tmp_path: Path) -> None:
    flags = ["reproduce", "--data", data, "--out", tmp_path, *TINY, "--seeds", "1"]
    code, shown, err = bidr(*flags, "--only", "star-opq,bm25", "bidr-random-walk")
    assert code == 0, err
    assert "seed 0: 0 of 3 rows finished; left: star-opq, bm25, bidr-random-walk" in err
    assert [line.partition(":")[0] for line in err.splitlines() if line.startswith("row ")] == [
        f"row {number} of 3" for number in (1, 2, 3)
    ]
    assert f"report: {tmp_path / 'report' / 'report.md'}" in shown
    rows, stages = list_times(tmp_path / "rows", "*.json"), list_times(tmp_path / "work", "done.json")
    assert len(rows) == 3

    code, shown, err = bidr(*flags, "--only", "star-opq", "bm25", "bidr-random-walk", "bidr-random-walk-depths")
    assert code == 0, err
    assert "seed 0: 3 of 4 rows finished; left: bidr-random-walk-depths" in err
    assert list_times(tmp_path / "work", "done.json") == stages, "a stage was trained twice"
    assert rows.items() <= list_times(tmp_path / "rows", "*.json").items()

    depths = RowStore(tmp_path).load("small", "built-in", 0, "bidr-random-walk-depths")
    row = RowStore(tmp_path).load("small", "built-in", 0, "bidr-random-walk")
    assert depths is not None
    assert row is not None
    assert row.candidates == 100, "a tenth of 320 documents, but 100 for R@100"
    answers = row.get_ranks("answers")
    assert answers is not None
    assert depths.curve[0]["candidates"] == 100
    assert depths.curve[0]["R@10"] == pytest.approx(answers.compute_recall(10))
    assert row.values["train_seconds"] > 0
    assert row.ram["total"] >= row.ram["codes"] >= 8
    assert not list((tmp_path / "work").rglob("model.json")), "indexes and models are left when their rows are done"


def test_what_was_finished_before_a_kill_stays(
    bidr: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SeedRunner.measure

    def cut_off(runner: SeedRunner, spec: RowSpec) -> RowResult:
        if spec.name == "dpr-opq":
            raise KeyboardInterrupt
        return real(runner, spec)

    flags = ["reproduce", "--data", data, "--out", tmp_path, *TINY, "--seeds", "1", "--only", "bm25", "dpr-opq"]
    with monkeypatch.context() as patched:
        patched.setattr(SeedRunner, "measure", cut_off)
        assert bidr(*flags).code == 130
    assert [path.name for path in (tmp_path / "rows").iterdir()] == ["small+built-in+seed0+bm25.json"]
    code, _, err = bidr(*flags)
    assert code == 0, err
    assert "seed 0: 1 of 2 rows finished; left: dpr-opq" in err


def test_bm25_removes_nothing_that_others_need(bidr: Run, data: Path, tmp_path: Path) -> None:
    flags = ["reproduce", "--data", data, "--out", tmp_path, *TINY, "--seeds", "1"]
    assert bidr(*flags, "--only", "warmup-opq").code == 0
    before = list_times(tmp_path / "work", "*")
    assert bidr(*flags, "--only", "bm25").code == 0
    assert before.keys() <= list_times(tmp_path / "work", "*").keys()


def test_rows_of_other_settings_are_refused_before_anything_is_trained(bidr: Run, data: Path, tmp_path: Path) -> None:
    flags = ["reproduce", "--data", data, "--out", tmp_path, *TINY, "--seeds", "1", "--only", "bm25"]
    assert bidr(*flags).code == 0
    code, _, err = bidr(*flags, "--dense.rate", "0.5")
    assert code == 2
    assert "was measured with dense.rate 'by default', given 0.5; choose another --out" in err
    code, _, err = bidr(*flags, "--only", "bm25", "bidr-snowball-unified", "--unify.epochs", "0")
    assert (code, "unify.epochs: given 0" in err) == (2, True)


def test_bad_flags_are_one_error(bidr: Run, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "--data: not given" in bidr.refused("reproduce", "--out", out)
    assert "holds no rows" in bidr.refused("reproduce", "--report", "--out", out)
    assert "--plan: give --data or --preset" in bidr.refused("reproduce", "--plan", "--out", out)
    assert "did you mean 'ads'" in bidr.refused("reproduce", "--preset", "adds", "--data", data, "--out", out)
    assert "seeds: given 0" in bidr.refused("reproduce", "--data", data, "--out", out, "--seeds", "0")
    assert "did you mean 'table1'" in bidr.refused("reproduce", "--data", data, "--out", out, "--only", "tabel1")
    assert "has no split nowhere" in bidr.refused("reproduce", "--data", data, "--out", out, "--split", "nowhere")
    assert not out.exists()


def test_diskann_that_cannot_be_installed_is_a_row_that_says_so(
    bidr: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bidr.experiments.reproduce import diskann_baseline

    monkeypatch.setattr(
        diskann_baseline, "install", lambda folder, peers: {"diskann": "cannot be installed: no network"}
    )
    flags = ["reproduce", "--data", data, "--out", tmp_path, *TINY, "--seeds", "1", "--only", "star-diskann"]
    code, _, err = bidr(*flags)
    assert code == 0, err
    assert "star-diskann: not measured, " in err
    assert "DiskANN: cannot be installed: no network" in (tmp_path / "report" / "report.md").read_text()


def test_rows_that_need_a_missing_package_say_so_and_are_tried_again_by_name(
    bidr: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(runner: SeedRunner, spec: RowSpec) -> RowResult:
        raise MissingExtraError("this index", "faiss", "faiss")

    flags = ["reproduce", "--data", data, "--out", tmp_path, *TINY, "--seeds", "1", "--only"]
    with monkeypatch.context() as patched:
        patched.setattr(SeedRunner, "_measure_bm25", fail)
        code, _, err = bidr(*flags, "bm25", "warmup-opq")
    assert code == 0, err
    assert "- bm25: this index needs the package 'faiss'" in (tmp_path / "report" / "report.md").read_text()
    assert "0 of 1 rows finished; left: bm25" in bidr(*flags, "bm25").err
    assert "seed 0: 1 of 1 rows finished\n" in bidr(*flags, "bm25").err


def test_training_never_chooses_on_the_split_that_is_reported(tmp_path: Path) -> None:
    passages, split = separate_reported_split(load(write_passages(tmp_path / "passages")), None)
    assert (split, "dev" in passages.splits()) == ("dev.small", True)
    documents = load(write_documents(tmp_path / "documents"))
    separated, split = separate_reported_split(documents, None)
    assert separated.splits() == ["dev.reported", "train"]
    assert len(separated.split(split).queries) == len(documents.split("dev").queries)
    assert documents.splits() == ["dev", "train"], "the dataset of the caller is as it was"
    with pytest.raises(DataError, match="has no split other"):
        separate_reported_split(documents, "other")


def test_candidates_are_capped_by_the_corpus() -> None:
    config = TrainConfig(candidates=1_000)
    assert cap_candidates(config, 320).candidates == 100
    assert cap_candidates(config, 5_183).candidates == 518
    assert cap_candidates(config, 41_668) is config
    assert cap_candidates(config, 60).candidates == 60


def test_presets_are_the_papers_and_flags_override_them() -> None:
    passages, documents, ads = (make_settings(name, None) for name in ("msmarco-passage", "msmarco-document", "ads"))
    for config in (passages, documents, ads):
        assert (config.candidates, config.dense.depth, config.dense.walk) == (1_000, 200, "paper")
        assert (config.sparse.loss, config.sparse.negatives, config.warmup.negatives) == ("quantized", "bm25", "bm25")
        assert config.encoder.pooling == "cls"
    sizes = [(c.text.document_length, c.batch_size, c.learning_rate, c.books) for c in (passages, documents, ads)]
    assert sizes == [(128, 1_024, 1e-4, 96), (512, 160, 5e-5, 96), (12, 2_048, 2e-4, 8)]
    assert ads.encoder.projection == 64
    built_in = make_settings("ads", "built-in")
    assert (built_in.encoder_kind, built_in.encoder.dim, built_in.encoder.pooling) == ("built-in", 64, None)


def test_msmarco_files_work_with_their_own_names(bidr: Run, tmp_path: Path) -> None:
    passages = write_passages(tmp_path / "passages")
    flags = ["--preset", "msmarco-passage", "--encoder", "built-in", "--batch-size", "64", "--bytes-per-doc", "8"]
    flags += ["--data", passages, "--out", tmp_path / "out", *TINY, "--seeds", "1", "--only", "bidr-snowball,star-opq"]
    code, _, err = bidr("reproduce", *flags)
    assert code == 0, err
    assert "dev queries are also in dev.small: left out of those to choose on" in err
    row = RowStore(tmp_path / "out").load("passages", "built-in", 0, "bidr-snowball")
    assert row is not None
    assert (row.split, row.queries, row.settings["preset"]) == ("dev.small", 25, "msmarco-passage")
    assert row.settings["sparse.loss"] == "quantized"


@pytest.mark.parametrize("preset", ["msmarco-passage", "msmarco-document", "ads"])
def test_a_plan_says_what_a_preset_takes_and_what_it_rests_on(bidr: Run, tmp_path: Path, preset: str) -> None:
    report = tmp_path / "plan.json"
    code, shown, err = bidr("reproduce", "--plan", "--preset", preset, "--out", tmp_path / "out", "--json", report)
    assert code == 0, err
    assert all(re.search(rf"^{word}  ", shown, re.MULTILINE) for word in ("GPU", "disk", "RAM", "rests on"))
    three = json.loads(report.read_text())
    flags = ["reproduce", "--plan", "--preset", preset, "--out", tmp_path / "out", "--json", report, "--seeds", "1"]
    assert bidr(*flags, "--only", "star-opq").code == 0
    one = json.loads(report.read_text())
    assert three["gpu_hours"] == pytest.approx(3 * sum(three["gpu_hours_a_seed"].values()))
    assert three["gpu_hours"] > 3 * one["gpu_hours"] == 3 * sum(one["gpu_hours_a_seed"].values()) > 0
    assert "full vectors in HNSW (table 2)" in three["ram_bytes"]
    assert "full vectors in HNSW (table 2)" not in one["ram_bytes"]
    assert not (tmp_path / "out").exists()


def test_a_plan_counts_the_data_that_is_there(bidr: Run, data: Path, tmp_path: Path) -> None:
    encoder = bert(tmp_path / "bert")
    code, shown, err = bidr("reproduce", "--plan", "--data", data, "--encoder", encoder, "--out", tmp_path / "out")
    assert code == 0, err
    assert "320 documents" in shown
    assert "240 train queries" in shown
    assert str(encoder) in shown


@pytest.mark.slow
def test_every_row_is_measured_and_reported(bidr: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_fake_diskann(tmp_path / "modules", monkeypatch)
    monkeypatch.setattr(row_runner, "find_diskann", lambda folder: sys.executable)
    small = beir_folder(tmp_path / "small", 1_200)
    flags = ["reproduce", "--data", small, "--out", tmp_path / "out", *TINY, "--encoder.dim", "128", "--seeds", "1"]
    tables = "table1,table2,table3,ablation,figure4,figure4-bits,sizes,extras"
    code, shown, err = bidr(*flags, "--only", tables)
    assert code == 0, err
    results = RowStore(tmp_path / "out").load_all()
    assert {result.row for result in results} == {name for name in ROWS if not name.endswith("-64-bits")}
    unmeasured = {result.row: result.notes for result in results if not result.is_measured}
    assert list(unmeasured) == ["bidr-random-walk-1024-bits", "star-opq-1024-bits"], "more books than dimensions"
    assert "must divide the dimension" in unmeasured["star-opq-1024-bits"][0]
    assert "2 not measured" in shown, "256 bits against 1,024, and more than one size of corpus"
    text = (tmp_path / "out" / "report" / "report.md").read_text()
    titles = ("Table 1", "Table 2", "Table 3", "Stage one", "Appendix", "Figure 4", "Recall by size", "RAM, time")
    assert all(f"### {title}" in text for title in titles)
    assert sum(path.stat().st_size for path in (tmp_path / "out" / "rows").iterdir()) < 2_000_000
    (default,) = [result for result in results if result.row == "auto"]
    assert any(note.startswith("chosen on dev: ") for note in default.notes)
    untrained = [result for result in results if result.row == "bidr-random-walk-opq"]
    assert all(result.ranks["candidates"] != result.ranks["answers"] for result in untrained)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["msmarco-passage", "msmarco-document", "ads"])
def test_a_preset_trains_a_transformer_on_files_of_its_format(bidr: Run, tmp_path: Path, preset: str) -> None:
    write = write_documents if preset == "msmarco-document" else write_passages
    flags = ["--preset", preset, "--data", write(tmp_path / "data"), "--encoder", bert(tmp_path / "bert", dim=64)]
    flags += ["--out", tmp_path / "out", "--batch-size", "64", "--codewords", "16", "--device", "cpu", "--seeds", "1"]
    flags += ["--bytes-per-doc", "8", "--warmup.epochs", "1", "--sparse.epochs", "1", "--dense.epochs", "1"]
    code, _, err = bidr("reproduce", *flags, "--only", "star-opq,star-hnsw,bidr-random-walk,bidr-snowball-unified")
    assert code == 0, err
    results = RowStore(tmp_path / "out").load_all()
    assert len(results) == 4
    expected = "dev.reported" if preset == "msmarco-document" else "dev.small"
    assert {(result.split, result.encoder) for result in results} == {(expected, "bert")}


def test_a_row_without_a_recipe_has_no_folder_to_remove() -> None:
    assert [name for name, spec in ROWS.items() if not spec.recipe] == ["bm25"]
    assert all(row_runner.name_index(spec) for spec in ROWS.values() if spec.recipe)
    graph = ROWS["bidr-random-walk"]._replace(engine="graph")
    assert row_runner.name_index(graph) != row_runner.name_index(ROWS["bidr-random-walk"])
