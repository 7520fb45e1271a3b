"""Words beside codes, as a person would type it."""

import json
from pathlib import Path

import pytest
from cli_data import Made, Run

from bidr.cli import main


@pytest.fixture(scope="module")
def index(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lexical") / "index"
    data, model = ("--data", str(made.data)), ("--model", str(made.model))
    assert main(["build", *data, *model, "--out", str(folder), "--lexical"]) == 0
    return folder


def value(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def test_bm25_finds_documents_that_short_codes_miss(bidr: Run, made: Made, index: Path, tmp_path: Path) -> None:
    common = ("evaluate", "--index", index, "--data", made.data, "--candidates", 5, "--measures", "R@5")
    recalls = []
    for more in ((), ("--lexical", 5), ("--lexical", 5, "--lexical-weight", 1)):
        assert bidr(*common, *more, "--json", tmp_path / "e.json").code == 0
        found = value(tmp_path / "e.json")
        recalls.append((found["candidate_recall"], found["measures"]["R@5"]))
    assert recalls[1][0] == recalls[2][0] > recalls[0][0]
    assert recalls[2][1] >= recalls[1][1] > recalls[0][1]


def test_an_added_document_is_found_by_its_words(bidr: Run, index: Path, tmp_path: Path) -> None:
    copy, new = tmp_path / "copy", tmp_path / "new.jsonl"
    new.write_text(json.dumps({"_id": "new", "title": "", "text": "quokkas smile " * 3}) + "\n", encoding="utf-8")
    assert bidr("snapshot", index, copy).code == 0
    asked = ("search", "--index", copy, "--candidates", 1, "--k", 1, "--lexical", 3, "--lexical-weight", 10, "quokka")
    for step in (("add", copy, new), ("compact", copy)):
        assert bidr(*step).code == 0
        found = bidr(*asked, "--json", tmp_path / "s.json")
        assert value(tmp_path / "s.json")["answers"][0]["id"] == "new"
        assert value(tmp_path / "s.json")["answers"][0]["word_rank"] == 1
        assert "1 candidates and 3 by words out of" in found.out
    assert bidr("verify", copy).code == 0
    assert bidr("delete", copy, "new").code == 0
    bidr(*asked, "--json", tmp_path / "s.json")
    assert value(tmp_path / "s.json")["answers"][0]["id"] != "new"


def test_what_cannot_be_meant_is_refused(bidr: Run, made: Made, index: Path, tmp_path: Path) -> None:
    assert "built without lexical index" in bidr.refused("search", "--index", made.index, "--lexical", 5, "a")
    assert "lexical: given -1" in bidr.refused("search", "--index", index, "--lexical", -1, "a")
    vectors = tmp_path / "v.npy"
    asked = ("search", "--index", index, "--query-vectors", vectors, "--lexical", 5)
    assert "--lexical and --query-vectors" in bidr.refused(*asked)  # without words
    built = ("build", "--vectors", vectors, "--out", tmp_path / "i", "--lexical")
    assert "no texts given" in bidr.refused(*built)
