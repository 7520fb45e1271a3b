"""The whole path: train, build, search, evaluate, inspect, verify, each as a person would type it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_data import COUNT, Made, Run

from bidr.cli.search import clean
from bidr.data.readers.trec import read_run


def value(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def test_from_data_to_answers(bidr: Run, made: Made, tmp_path: Path) -> None:
    document = json.loads((made.data / "corpus.jsonl").read_text().splitlines()[8])
    found = bidr("search", "--index", made.index, "--k", 5, "--json", tmp_path / "s.json", *document["text"].split())
    assert (found.code, found.err) == (0, "")
    shown = value(tmp_path / "s.json")
    answers = shown["answers"]
    assert shown["query"] == document["text"]
    assert [answer["rank"] for answer in answers] == [1, 2, 3, 4, 5]
    assert answers[0]["id"] == document["_id"]
    assert sorted((answer["score"] for answer in answers), reverse=True) == [answer["score"] for answer in answers]
    lines = found.out.splitlines()
    assert len(lines) == 1 + 2 * len(answers) + 1
    for answer, (head, text) in zip(answers, zip(lines[1:-1:2], lines[2:-1:2], strict=True), strict=True):
        assert head.split()[:3] == [str(answer["rank"]), f"{answer['score']:.3f}", str(answer["candidate_rank"])]
        assert head.endswith(answer["title"])
        assert answer["text"].startswith(text.strip().removesuffix("…"))
    assert lines[-1].endswith(f"20 candidates out of {COUNT} documents")
    assert all(step in lines[-1] for step in ("encode", "candidates", "reads", "ranking"))


def test_measures_and_the_run_that_gave_them(bidr: Run, made: Made, tmp_path: Path) -> None:
    common = ("evaluate", "--index", made.index, "--data", made.data)
    found = bidr(*common, "--json", tmp_path / "a.json", "--run", tmp_path / "a.trec")
    assert found.code == 0
    first = value(tmp_path / "a.json")
    assert first["queries"] == COUNT // 8
    assert first["measures"]["R@10"] > 0.6
    assert f"R@10                          {first['measures']['R@10']:.4f}" in found.out
    assert {len(docs) for docs in read_run(tmp_path / "a.trec").values()} == {20}
    again = ("--compare", tmp_path / "a.trec", "--json", tmp_path / "b.json")
    assert bidr(*common, *again, "--measures", "R@10", "nDCG@10").code == 0
    second = value(tmp_path / "b.json")
    assert set(second["measures"]) == {"R@10", "nDCG@10"}
    for name in second["measures"]:  # the file ranks as the index did: no difference at all
        assert second["compared_with"][name] == {"difference": 0, "low": 0, "high": 0, "p": 1, "queries": COUNT // 8}
    worse = bidr(*common, *again, "--measures", "R@10", "--candidates", 2)
    assert value(tmp_path / "b.json")["candidates"] == 2
    assert value(tmp_path / "b.json")["compared_with"]["R@10"]["difference"] < 0
    assert "95 % interval" in worse.out


def test_inspect_shows_index_and_model(bidr: Run, made: Made, tmp_path: Path) -> None:
    found = bidr("inspect", made.index, "--json", tmp_path / "i.json")
    index = value(tmp_path / "i.json")
    assert (index["documents"], index["engine"], index["codes"]["books"]) == (COUNT, "scan", 16)
    assert "in RAM" in found.out
    assert "on disk" in found.out
    found = bidr("inspect", made.model, "--json", tmp_path / "m.json")
    model = value(tmp_path / "m.json")
    assert model["fingerprint"] == index["model"]["fingerprint"]
    assert model["training"]["config"]["encoder"]["dim"] == 32
    assert [line.split()[1] for line in found.out.splitlines() if line.startswith("stage")] == list(
        model["training"]["stages"]
    )
    assert bidr("verify", made.index).out.endswith("every checksum matches\n")


def test_verify_finds_one_changed_byte(bidr: Run, made: Made, tmp_path: Path) -> None:
    copy = shutil.copytree(made.index, tmp_path / "copy")
    path = copy / "000001" / "documents.blob"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    code, out, err = bidr("verify", copy)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith(f"bidr: {path}: damaged, checksum")


def test_search_uses_the_index_built_last(bidr: Run, made: Made, tmp_path: Path) -> None:
    assert "give one with --index" in bidr.refused("search", "anything")
    build = ("build", "--data", made.data, "--model", made.model, "--out", tmp_path / "index", "--engine", "hnsw")
    assert bidr(*build).code == 0
    assert bidr("search", "anything", "--json", tmp_path / "s.json").code == 0
    assert value(tmp_path / "s.json")["index"] == str(tmp_path / "index")
    assert bidr("inspect", tmp_path / "index").out.count("graph over the codes")
    shutil.rmtree(tmp_path / "index")
    assert f"{tmp_path / 'index'}: the index built last is gone" in bidr.refused("search", "anything")


def test_a_build_succeeds_where_its_path_cannot_be_saved(
    bidr: Run, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BIDR_STATE", str(tmp_path / "file" / "state"))
    found = bidr("build", "--data", made.data, "--model", made.model, "--out", tmp_path / "index")
    assert found.code == 0
    assert "give it with --index" in found.err


def test_flags_win_over_the_file(bidr: Run, made: Made, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    tables = "codewords = 16\nbatch_size = 64\nseed = 3\n[encoder]\ndim = 32\nvocabulary = 500\n[dense]\nepochs = 1\n"
    config.write_text("bytes_per_doc = 16\n" + tables)
    found = bidr(
        "train", "--data", made.data, "--out", tmp_path / "run", "--recipe", "bidr", "--config", config,
        "--bytes-per-doc", 4, "--unify.epochs", 0, "--device", "cpu",
    )  # fmt: skip
    assert found.code == 0, found.err
    settings = value(tmp_path / "run" / "work" / "run.json")["config"]
    assert (settings["bytes_per_doc"], settings["seed"], settings["encoder"]["dim"]) == (4, 3, 32)
    assert (settings["dense"]["epochs"], settings["unify"]["epochs"]) == (1, 0)
    assert "one for each side" in bidr("inspect", tmp_path / "run").out


def test_help_is_quick() -> None:
    """One process for all: what any of them loads stays loaded."""
    heavy = ["torch", "faiss", "sentence_transformers", "transformers", "numba", "sklearn", "pyarrow"]
    code = f"""if True:
        import sys, bidr.cli, bidr.cli.registry
        for args in ([], ["--help"], ["--version"], *([verb, "--help"] for verb in bidr.cli.registry.VERBS)):
            assert bidr.cli.main(args) == 0, args
        print([name for name in {heavy} if name in sys.modules])"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert done.stderr == ""


def test_help_tells_the_verbs_and_examples(bidr: Run) -> None:
    shown = bidr()
    assert (shown.code, shown.err) == (0, "")
    assert shown.out == bidr("--help").out
    for verb in ("demo", "train", "build", "search", "evaluate", "inspect", "verify", "compare"):
        assert f"\n  {verb} " in shown.out
    assert shown.out.count("\n  bidr ") == 3


def test_help_of_a_verb_has_every_field(bidr: Run) -> None:
    shown = bidr("train", "--help-all")
    assert shown.code == 0
    for flag in ("--data", "--out", "--config", "--json", "--bytes-per-doc", "--dense.sampler", "--encoder.backbone"):
        assert flag in shown.out
    assert "--settings" not in shown.out
    assert "Code size in bytes per document, kept in RAM." in shown.out


def test_a_reader_who_has_enough_is_no_error(made: Made) -> None:
    command = f"{sys.executable} -m bidr.cli inspect {made.index} | true"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, timeout=240)
    assert done.stderr == ""


def test_texts_cannot_move_the_cursor() -> None:
    assert clean("a\x1b[2Jb\n\n c\u202e", 80) == "a [2Jb c"
    assert clean("word " * 50, 12) == "word word w…"
