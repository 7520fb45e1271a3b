import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from cli_data import Made, Run

import bidr as package
from bidr.text import Document

WORDS = "zanzibar quixotic"


@pytest.fixture
def index(made: Made, tmp_path: Path) -> Path:
    return shutil.copytree(made.index, tmp_path / "index")


def documents(path: Path, *records: dict) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_add_search_delete_compact_snapshot(bidr: Run, index: Path, tmp_path: Path) -> None:
    texts = [{"_id": f"new{n}", "title": WORDS, "text": f"{WORDS} {n}", "metadata": {"n": n}} for n in range(3)]
    added = bidr("add", index, documents(tmp_path / "new.jsonl", *texts, {"_id": "d1", "text": WORDS}))
    assert added.code == 0, added.err
    assert "3 added, 1 replaced; 323 documents" in added.out
    out = tmp_path / "found.json"
    assert bidr("search", "--index", index, "--json", out, "--filter", '{"n": {"gte": 1}}', WORDS).code == 0
    found = json.loads(out.read_text())["answers"]
    assert {answer["id"] for answer in found} == {"new1", "new2"}
    assert found[0]["attributes"]["n"] in (1, 2)
    assert "1 deleted; 322 documents" in bidr("delete", index, "new1").out
    assert bidr("snapshot", index, tmp_path / "copy").code == 0
    shown = bidr("inspect", index).out
    assert "320 documents, 1 deleted" in shown
    assert "log" in shown
    assert bidr("verify", index).code == 0
    assert bidr("compact", index).code == 0
    for folder in (index, tmp_path / "copy"):
        assert bidr("verify", folder).code == 0
        assert bidr("search", "--index", folder, "--json", out, "--k", 400, WORDS).code == 0
        found = {answer["id"] for answer in json.loads(out.read_text())["answers"]}
        assert len(found) == 322
        assert "new1" not in found


def test_an_added_text_gets_what_a_build_gives_it(bidr: Run, made: Made, index: Path, tmp_path: Path) -> None:
    """The same documents added to an index are where a build puts them: same scores."""
    with package.open_index(made.index) as built, package.open_index(index) as live:
        query = built.reader.documents.document(7).text
        before = [(answer.id, answer.score) for answer in built.search(query, 5)]
        with package.open_writer(index) as writer:
            writer.add([Document(*built.reader.documents.document(row)) for row in range(40)])
        live.reader.now()
        after = [(answer.id, answer.score) for answer in live.search(query, 5)]
    assert [name for name, _ in before] == [name for name, _ in after]
    np.testing.assert_allclose([score for _, score in before], [score for _, score in after], atol=2e-3)


def test_what_is_wrong_is_said_and_changes_nothing(bidr: Run, index: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in index.rglob("*") if path.is_file()}
    good = {"_id": "x", "text": "words"}
    assert "occurs twice" in bidr.refused("add", index, documents(tmp_path / "a", good, good))
    assert "line 2" in bidr.refused("add", index, documents(tmp_path / "b", good, {"_id": "y"}))
    assert "metadata" in bidr.refused("add", index, documents(tmp_path / "c", {**good, "metadata": 3}))
    assert '"not"' in bidr.refused("add", index, documents(tmp_path / "d", {**good, "metadata": {"not": 3}}))
    assert "no documents" in bidr.refused("add", index, documents(tmp_path / "e"))
    np.save(tmp_path / "v.npy", np.ones((1, 8), dtype=np.float32))
    given = documents(tmp_path / "v", good)
    assert "encodes texts itself" in bidr.refused("add", index, given, "--vectors", tmp_path / "v.npy")
    assert "does not exist" in bidr.refused("add", index, tmp_path / "nothing")
    assert "no index here" in bidr.refused("add", tmp_path / "no", documents(tmp_path / "f", good))
    assert "no document 'ghost'" in bidr.refused("delete", index, "ghost")
    assert "no ids given" in bidr.refused("delete", index)
    assert "exists already" in bidr.refused("snapshot", index, tmp_path)
    assert "not JSON" in bidr.refused("search", "--index", index, "--filter", "{", "words")
    assert "filter" in bidr.refused("search", "--index", index, "--filter", '{"a": null}', "words")
    after = {path: path.read_bytes() for path in index.rglob("*") if path.is_file() and path.name != ".lock"}
    assert {path: content for path, content in after.items() if path in before} == {
        path: content for path, content in before.items() if path.name not in ("CURRENT", ".lock")
    } | {index / "CURRENT": after[index / "CURRENT"]}
    assert bidr("verify", index).code == 0
