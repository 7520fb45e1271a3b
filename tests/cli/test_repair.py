"""bidr repair at the command line, with a model that encodes texts."""

import json
import shutil
from pathlib import Path

import pytest
from cli_data import Made, Run
from damage import delete, flip_byte, zero_block


@pytest.fixture
def index(made: Made, tmp_path: Path) -> Path:
    return shutil.copytree(made.index, tmp_path / "index")


def answers(bidr: Run, index: Path, out: Path) -> list[tuple[str, float]]:
    ran = bidr("search", "--index", index, "--json", out, "--candidates", 320, "--k", 10, "about words")
    assert ran.code == 0, ran.err
    return [(each["id"], round(each["score"], 4)) for each in json.loads(out.read_text())["answers"]]


def test_an_index_that_is_not_damaged_is_copied_and_the_code_is_0(bidr: Run, index: Path, tmp_path: Path) -> None:
    ran = bidr("repair", index, "--out", tmp_path / "new")
    assert ran.code == 0, ran.err
    assert "320 documents" in ran.out
    assert "nothing found" in ran.out
    assert bidr("verify", tmp_path / "new").code == 0
    assert answers(bidr, tmp_path / "new", tmp_path / "a.json") == answers(bidr, index, tmp_path / "b.json")
    assert not (tmp_path / "new.lost.jsonl").exists()


@pytest.mark.parametrize("name", ["codes.npy", "codebooks.safetensors"])
@pytest.mark.parametrize("harm", [flip_byte, delete])
def test_codes_and_codebooks_come_back_from_the_model(bidr: Run, index: Path, tmp_path: Path, name: str, harm) -> None:
    before = answers(bidr, index, tmp_path / "before.json")
    codes = (index / "000001" / "codes.npy").read_bytes()
    harm(index / "000001" / name, 700)
    assert "bidr repair" in bidr.refused("search", "--index", index, "words")
    ran = bidr("repair", index, "--out", tmp_path / "new")
    assert ran.code == 0, ran.err
    assert name in ran.out
    assert "model" in ran.out
    assert answers(bidr, tmp_path / "new", tmp_path / "after.json") == before
    assert (tmp_path / "new" / "000001" / "codes.npy").read_bytes() == codes


def test_what_is_lost_is_listed_and_can_be_added_again(bidr: Run, index: Path, tmp_path: Path) -> None:
    before = answers(bidr, index, tmp_path / "before.json")
    zero_block(index / "000001" / "vectors.npy", 8_192)
    ran = bidr("repair", index, "--out", tmp_path / "new", "--json", tmp_path / "report.json")
    assert ran.code == 3, ran.err
    assert len(ran.out.splitlines()) <= 24
    report = json.loads((tmp_path / "report.json").read_text())
    lost = [json.loads(line) for line in (tmp_path / "new.lost.jsonl").read_text().splitlines()]
    assert len(lost) == report["lost"] == report["again"] == 320 - report["saved"] > 0
    assert {tuple(each["lost"]) for each in lost} == {("vector",)}
    ids = {each["id"] for each in lost}
    left = [each for each in before if each[0] not in ids]
    assert left == answers(bidr, tmp_path / "new", tmp_path / "after.json")[: len(left)]
    assert bidr("add", tmp_path / "new", tmp_path / "new.again.jsonl").code == 0
    assert answers(bidr, tmp_path / "new", tmp_path / "after.json") == before


def test_what_cannot_be_is_refused_in_one_line(bidr: Run, index: Path, tmp_path: Path) -> None:
    assert "only reads" in bidr.refused("repair", index, "--out", index / "new")
    assert "exists already" in bidr.refused("repair", index, "--out", tmp_path)
    (tmp_path / "new.lost.jsonl").touch()
    assert "--lost" in bidr.refused("repair", index, "--out", tmp_path / "new")
    for path in index.glob("0*/vectors.npy"):
        path.unlink()
    (index / "000001" / "documents.blob").unlink()
    line = bidr.refused("repair", index, "--out", tmp_path / "other")
    assert "nothing can be saved" in line
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("other")]


def test_texts_are_saved_where_no_vector_is(bidr: Run, made: Made, index: Path, tmp_path: Path) -> None:
    before = answers(bidr, index, tmp_path / "before.json")
    (index / "000001" / "vectors.npy").unlink()
    line = bidr.refused("repair", index, "--out", tmp_path / "other")
    assert "320 are in" in line
    assert not (tmp_path / "other").exists()
    (tmp_path / "data").mkdir()
    (tmp_path / "other.again.jsonl").rename(tmp_path / "data" / "corpus.jsonl")
    ran = bidr("build", "--model", made.model, "--data", tmp_path / "data", "--out", tmp_path / "new")
    assert ran.code == 0, ran.err
    assert answers(bidr, tmp_path / "new", tmp_path / "after.json") == before
