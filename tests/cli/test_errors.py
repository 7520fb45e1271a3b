"""Whatever is wrong with the input: exit code 2, one line that names it, and nothing half-written."""

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_data import TINY, Made, Run, beir_folder

from bidr.cli import explain_error, main
from bidr.errors import DataError


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data set to spoil."""
    return beir_folder(tmp_path / "data", 40)


def append(path: Path, text: str) -> Path:
    path.write_text(path.read_text() + text)
    return path


def spoil_json(data: Path) -> list[str]:
    return [f"{append(data / 'corpus.jsonl', '{oops')} line 41"]


def spoil_judgment(data: Path) -> list[str]:
    path = append(data / "qrels" / "train.tsv", "q2\tghost\t1\n")
    return [f"{path} line {len(path.read_text().splitlines())}", "'ghost'", "corpus.jsonl"]


def repeat_document(data: Path) -> list[str]:
    path = data / "corpus.jsonl"
    append(path, path.read_text().splitlines()[3] + "\n")
    return [f"{path} line 41", f"{path} line 4", "'d3'"]


def empty_corpus(data: Path) -> list[str]:
    (data / "corpus.jsonl").write_text("")
    return [f"{data / 'corpus.jsonl'} has no documents"]


def empty_queries(data: Path) -> list[str]:
    (data / "queries.jsonl").write_text("")
    return [f"{data / 'queries.jsonl'} has no queries"]


def lose_folder(data: Path) -> list[str]:
    shutil.rmtree(data)
    return [f"{data} does not exist"]


def lose_corpus(data: Path) -> list[str]:
    (data / "corpus.jsonl").unlink()
    return [f"{data} is not a readable dataset", "corpus.jsonl"]


def lose_queries(data: Path) -> list[str]:
    (data / "queries.jsonl").unlink()
    return [str(data / "queries.jsonl")]


def lose_train_judgments(data: Path) -> list[str]:
    (data / "qrels" / "train.tsv").unlink()
    return ["no split 'train'", "dev, test"]


SPOILS = [
    spoil_json,
    spoil_judgment,
    repeat_document,
    empty_corpus,
    empty_queries,
    lose_folder,
    lose_corpus,
    lose_queries,
    lose_train_judgments,
]


@pytest.mark.parametrize("spoil", SPOILS)
def test_training_on_spoiled_data(bidr: Run, data: Path, tmp_path: Path, spoil: Callable[[Path], list[str]]) -> None:
    expected = spoil(data)
    line = bidr.refused("train", "--data", data, "--out", tmp_path / "out", *TINY)
    for part in expected:
        assert part in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("spoil", [spoil_json, repeat_document, empty_corpus, lose_folder, lose_corpus])
def test_building_from_spoiled_data(
    bidr: Run, made: Made, data: Path, tmp_path: Path, spoil: Callable[[Path], list[str]]
) -> None:
    expected = spoil(data)
    line = bidr.refused("build", "--data", data, "--model", made.model, "--out", tmp_path / "out")
    for part in expected:
        assert part in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--bytes-per-doc", "7", "--encoder.dim", "256"], ["bytes_per_doc: given 7", "256 dimensions"]),
        (["--bytes-per-doc", "0"], ["bytes_per_doc", "0"]),
        (["--codewords", "256", "--min-dev-queries", "0"], ["256", "40 documents", "use 16"]),
        (["--dense.sampler", "snowbal"], ["--dense.sampler", "'snowbal'", "snowball", "bidr train --help"]),
        (["--bytes-per-dok", "8"], ["--bytes-per-dok", "did you mean --bytes-per-doc?"]),
        (["--seed", "many"], ["--seed", "'many'"]),
        (["--device", "cuda:77"], ["cuda:77"]),
        (["--warmup.epochs", "0"], ["warmup.epochs", "0"]),
    ],
)
def test_flags_that_cannot_work(
    bidr: Run, data: Path, tmp_path: Path, flags: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bidr.training.run_context.say", lambda text: None)
    monkeypatch.setattr("bidr.utils.progress._LineReporter.print_line", lambda self: None)
    line = bidr.refused("train", "--data", data, "--out", tmp_path / "out", *TINY, *flags)
    for part in expected:
        assert part in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("bytes_per_dok = 8", ["unknown key 'bytes_per_dok'", "did you mean 'bytes_per_doc'?"]),
        ("[dense]\nsample = 'mined'", ["unknown key 'dense.sample'", "did you mean 'dense.sampler'?"]),
        ("sampler = 'mined'", ["unknown key 'sampler'", "did you mean 'dense.sampler'?"]),
        ("qqqq = 1", ["unknown key 'qqqq'", "known are method, bytes_per_doc"]),
        ("[dense]\nsampler = 'snowbal'", ["key 'dense.sampler' is 'snowbal'", "did you mean 'snowball'?"]),
        ("bytes_per_doc = 'eight'", ["key 'bytes_per_doc' is 'eight'", "expected a whole number"]),
        ("bytes_per_doc = true", ["key 'bytes_per_doc' is True", "expected a whole number"]),
        ("clip = 'x'", ["key 'clip' is 'x'", "expected a number"]),
        ("codewords = 17", ["key 'codewords' is 17", "expected 256 or 16"]),
        ("dense = 3", ["key 'dense' is 3", "expected a table"]),
        ("bytes_per_doc = 0", ["bytes_per_doc", "0", "1 or more"]),
        ("seed = 1\nbytes_per_doc = x", ["is not TOML", "line 2"]),
    ],
)
def test_settings_that_cannot_work(bidr: Run, data: Path, tmp_path: Path, content: str, expected: list[str]) -> None:
    config = tmp_path / "run.toml"
    config.write_text(content)
    line = bidr.refused("train", "--data", data, "--out", tmp_path / "out", "--config", config)
    for part in [str(config), *expected]:
        assert part in line
    assert not (tmp_path / "out").exists()


def test_a_missing_settings_file_is_an_error(bidr: Run, data: Path, tmp_path: Path) -> None:
    line = bidr.refused("train", "--data", data, "--out", tmp_path / "out", f"--config={tmp_path / 'no.toml'}")
    assert f"{tmp_path / 'no.toml'} cannot be read" in line


def test_folders_of_something_else_stay_as_they_are(bidr: Run, made: Made, tmp_path: Path) -> None:
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "chapter.tex").write_text("years of work")
    assert f"{out} is not empty" in bidr.refused("train", "--data", made.data, "--out", out, *TINY)
    assert f"{out} holds something else" in bidr.refused(
        "build", "--data", made.data, "--model", made.model, "--out", out
    )
    assert [path.name for path in out.rglob("*")] == ["chapter.tex"]
    assert "another config.seed" in bidr.refused("train", "--data", made.data, "--out", made.model, *TINY, "--seed", 5)


def other_model(made: Made, folder: Path) -> tuple[Path, str]:
    """A model that differs in the most tokens of a query alone."""
    from bidr.models.saved_model import TextSettings, compute_fingerprint
    from bidr.utils.files import write_signed_json

    copy = shutil.copytree(made.model, folder, ignore=shutil.ignore_patterns("work"))
    about = json.loads((copy / "model.json").read_text())
    about["text"]["query_length"] += 1
    about["fingerprint"] = compute_fingerprint(copy, TextSettings(**about["text"]))
    write_signed_json(copy / "model.json", about)
    return copy, about["fingerprint"]


def test_index_of_another_model(bidr: Run, made: Made, tmp_path: Path) -> None:
    model, fingerprint = other_model(made, tmp_path / "other")
    own = json.loads((made.model / "model.json").read_text())["fingerprint"]
    for verb in (["search", "words"], ["evaluate", "--data", made.data]):
        line = bidr.refused(*verb, "--index", made.index, "--model", model)
        assert own in line
        assert fingerprint in line


@pytest.mark.parametrize("name", ["vectors.npy", "codes.npy", "documents.blob", "manifest.json"])
def test_truncated_index(bidr: Run, made: Made, tmp_path: Path, name: str) -> None:
    path = shutil.copytree(made.index, tmp_path / "index") / "000001" / name
    path.write_bytes(path.read_bytes()[:-10])
    for verb in (["search", "words", "--index"], ["inspect"], ["verify"]):
        assert str(path) in bidr.refused(*verb, tmp_path / "index")


def test_evaluation_refuses_inconsistent_inputs(bidr: Run, made: Made, data: Path, tmp_path: Path) -> None:
    common = ("evaluate", "--index", made.index)
    assert "no split 'tset'" in bidr.refused(*common, "--data", made.data, "--split", "tset")
    assert "'R@ten'" in bidr.refused(*common, "--data", made.data, "--measures", "R@ten")
    assert "candidates: given 0" in bidr.refused(*common, "--data", made.data, "--candidates", 0)
    (data / "qrels" / "test.tsv").write_text("q0\tghost\t1\n")
    line = bidr.refused(*common, "--data", data)
    assert "'ghost'" in line
    assert str(made.index) in line
    other = tmp_path / "other.trec"
    other.write_text("nobody Q0 d1 1 1.0 x\n")
    assert f"{other} has no query" in bidr.refused(*common, "--data", made.data, "--compare", other)
    other.write_text("q0 Q0 d1 1\n")
    assert f"{other} line 1" in bidr.refused(*common, "--data", made.data, "--compare", other)


def test_files_that_could_not_be_written_are_refused_first(bidr: Run, made: Made, tmp_path: Path) -> None:
    nowhere = tmp_path / "no" / "file"
    for verb in (["inspect", made.index], ["evaluate", "--data", tmp_path / "nothing"], ["demo"]):
        assert f"cannot write {nowhere}" in bidr.refused(*verb, "--json", nowhere)
    assert f"cannot write {tmp_path}" in bidr.refused("evaluate", "--data", made.data, "--run", tmp_path)


def test_words_that_are_no_command(bidr: Run, tmp_path: Path) -> None:
    assert "unknown verb 'serch'; did you mean 'search'?" in bidr.refused("serch", "x")
    assert "no query" in bidr.refused("search", "  ")
    assert "--data" in bidr.refused("train", "--out", tmp_path)
    assert "neither an index" in bidr.refused("inspect", tmp_path)
    assert "no index here" in bidr.refused("verify", tmp_path)
    assert "--k" in bidr.refused("search", "x", "--k", "few")
    assert "documents: given 0" in bidr.refused("demo", "--documents", 0)


def test_a_model_that_is_none(bidr: Run, made: Made, tmp_path: Path) -> None:
    line = bidr.refused("build", "--data", made.data, "--model", tmp_path, "--out", tmp_path / "out")
    assert f"{tmp_path} has no model.json" in line
    assert not (tmp_path / "out").exists()


def limited(size: int, args: list[object]) -> subprocess.CompletedProcess[str]:
    """`bidr` where no file can grow beyond so many bytes."""
    return subprocess.run(
        [sys.executable, "-m", "bidr.cli", *map(str, args)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
        capture_output=True,
        text=True,
        check=False,
        timeout=480,
    )


@pytest.mark.parametrize("size", [400, 40_000, 200_000])
def test_a_full_disk_while_training(bidr: Run, data: Path, tmp_path: Path, size: int) -> None:
    """The sizes stop it at the settings, at the first encoder and at the first checkpoint."""
    command = ["train", "--data", data, "--out", tmp_path / "out", *TINY, "--encoder.dim", "128"]
    done = limited(size, command)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("bidr: ")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "model.json").exists()
    assert bidr(*command).code == 0  # what is left does not stand in the way


def test_a_full_disk_while_building(bidr: Run, made: Made, tmp_path: Path) -> None:
    index = tmp_path / "index"
    command = ["build", "--data", made.data, "--model", made.model, "--out", index]
    done = limited(10_000, command)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"bidr: cannot write {index}")
    assert not (index / "CURRENT").exists()
    assert bidr(*command).code == 0
    before = (index / "CURRENT").read_bytes()
    assert limited(10_000, command).returncode == 2
    assert (index / "CURRENT").read_bytes() == before
    assert bidr("verify", index).code == 0


def test_what_else_can_go_wrong(bidr: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    code, message = explain_error(KeyboardInterrupt())
    assert code == 130
    assert "run the same command again" in message
    assert explain_error(OSError(28, "No space left on device", "a/b")) == (2, "a/b: No space left on device")
    assert explain_error(MemoryError())[0] == 2
    assert explain_error(ZeroDivisionError("division by zero"))[0] == 1

    def fail(args: list[str]) -> None:
        raise DataError("two\nlines")

    monkeypatch.setattr("bidr.cli._run", fail)
    assert bidr.refused("search") == "bidr: two lines"


def test_debug_shows_the_traceback(bidr: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError):
        main(["--debug", "train", "--data", str(tmp_path / "no"), "--out", str(tmp_path / "out")])
    monkeypatch.setenv("BIDR_DEBUG", "1")
    with pytest.raises(DataError):
        main(["train", "--data", str(tmp_path / "no"), "--out", str(tmp_path / "out")])
    monkeypatch.setenv("BIDR_DEBUG", "0")
    assert "does not exist" in bidr.refused("train", "--data", tmp_path / "no", "--out", tmp_path / "out")
