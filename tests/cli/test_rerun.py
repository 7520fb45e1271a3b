"""The same command again, after something changed: it goes on, or says what is different."""

import shutil
from pathlib import Path

import pytest
from cli_data import TINY, Made, Run, beir_folder


def test_the_same_folder_by_another_path_is_the_same_run(
    bidr: Run, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = shutil.copytree(made.model, tmp_path / "model")
    monkeypatch.chdir(made.data.parent)
    code, _, err = bidr("train", "--data", made.data.name, "--out", out, *TINY)
    assert code == 0, err


def test_changed_judgments_are_another_run(bidr: Run, tmp_path: Path) -> None:
    data, out = beir_folder(tmp_path / "data"), tmp_path / "model"
    assert bidr("train", "--data", data, "--out", out, *TINY).code == 0
    with (data / "qrels" / "train.tsv").open("a") as judgments:
        judgments.write("q2\td5\t1\n")
    assert "the train and dev files" in bidr.refused("train", "--data", data, "--out", out, *TINY)


def test_a_moved_model_must_be_named(bidr: Run, made: Made, tmp_path: Path) -> None:
    model = shutil.copytree(made.model, tmp_path / "model")
    index = tmp_path / "index"
    assert bidr("build", "--data", made.data, "--model", model, "--out", index).code == 0
    moved = model.rename(tmp_path / "moved")
    assert "--model" in bidr.refused("search", "--index", index, "words")
    assert bidr("search", "--index", index, "--model", moved, "words").code == 0


def test_a_build_that_was_killed_at_its_end_writes_nothing_again(
    bidr: Run, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["build", "--data", made.data, "--model", made.model, "--out", tmp_path / "index"]
    with monkeypatch.context() as patched:
        patched.setattr("bidr.index.storage.commit.GenerationWriter.commit", lambda *given: 1 / 0)
        assert bidr(*command).code != 0
    work = tmp_path / "index" / ".work"
    before = {path: path.stat().st_mtime_ns for path in work.rglob("*") if path.is_file() and "tokens" not in str(path)}
    assert {"vectors.npy", "names.mark.json", "codes.mark.json"} <= {path.name for path in before}
    kept: dict[Path, int] = {}

    def look(folder: Path) -> None:
        if folder.is_dir():  # moved aside at the end, before it is removed
            kept.update({path: (folder / path.relative_to(work)).stat().st_mtime_ns for path in before})

    monkeypatch.setattr("bidr.index.builder.journal.remove", look)
    assert bidr(*command).code == 0
    assert kept == before


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--device", "foo"), ("--dense.depth", "-1"), ("--sparse.temperature", "0"), ("--dense.batch-size", "1")],
)
def test_a_setting_that_cannot_work_is_refused_by_name(
    bidr: Run, made: Made, tmp_path: Path, flag: str, value: str
) -> None:
    line = bidr.refused("train", "--data", made.data, "--out", tmp_path / "out", flag, value)
    assert flag.removeprefix("--").replace("-", "_") in line
    assert value in line
    assert not (tmp_path / "out").exists()


def test_a_demo_of_another_size_is_refused(bidr: Run, tmp_path: Path) -> None:
    assert "256 or more" in bidr.refused("demo", "--out", tmp_path / "demo", "--documents", 100)
    assert not (tmp_path / "demo").exists()
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "data.json").write_text('{"documents": 300}')
    assert "another number of documents" in bidr.refused("demo", "--out", tmp_path / "demo", "--documents", 400)
