"""Words beside codes, as a person would type it."""

import json
import shutil
from pathlib import Path

import pytest
from cli_data import Made, Run

from bidr.cli import main
from bidr.utils.files import write_signed_json


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
        assert "1 candidate and 3 by words out of" in found.out
    assert bidr("verify", copy).code == 0
    assert bidr("delete", copy, "new").code == 0
    bidr(*asked, "--json", tmp_path / "s.json")
    assert value(tmp_path / "s.json")["answers"][0]["id"] != "new"


def test_what_the_model_recommends_is_built_and_searched(bidr: Run, made: Made, index: Path, tmp_path: Path) -> None:
    """Without flags: postings, and the ranking of the same fusion by flags; each can be refused."""
    model, built = tmp_path / "model", tmp_path / "index"
    shutil.copytree(made.model, model)
    fields = json.loads((model / "model.json").read_text())
    write_signed_json(model / "model.json", fields | {"search": {"lexical": 5, "lexical_weight": 1}})
    assert bidr("build", "--data", made.data, "--model", model, "--out", built).code == 0

    question = json.loads((made.data / "queries.jsonl").read_text(encoding="utf-8").splitlines()[0])["text"]

    def rank(folder: Path, *flags: object) -> list[tuple[str, int]]:
        asked = ("search", "--index", folder, *flags, "--candidates", 5, "--json", tmp_path / "s.json")
        assert bidr(*asked, question).code == 0
        return [(hit["id"], hit["word_rank"]) for hit in value(tmp_path / "s.json")["answers"]]

    fused = ("--lexical", 5, "--lexical-weight", 1)
    assert rank(built) == rank(index, *fused)
    assert rank(built, "--lexical", 0) == rank(index)
    common = ("evaluate", "--data", made.data, "--candidates", 5, "--measures", "R@5", "--json", tmp_path / "e.json")
    recalls = []
    for folder, flags in ((built, ()), (index, fused), (built, ("--lexical", 0)), (index, ())):
        assert bidr(*common, "--index", folder, *flags).code == 0
        recalls.append(value(tmp_path / "e.json")["measures"]["R@5"])
    assert recalls[0] == recalls[1] > recalls[2] == recalls[3]
    assert "5 candidates with weight 1" in bidr("inspect", model).out
    assert bidr("build", "--data", made.data, "--model", model, "--out", tmp_path / "plain", "--no-lexical").code == 0
    assert rank(tmp_path / "plain") == rank(index)
    assert "built without lexical index" in bidr.refused("search", "--index", tmp_path / "plain", "--lexical", 5, "a")
    both = ("build", "--data", made.data, "--model", model, "--out", tmp_path / "i", "--lexical", "--no-lexical")
    assert "expected one of them" in bidr.refused(*both)


def test_what_cannot_be_meant_is_refused(bidr: Run, made: Made, index: Path, tmp_path: Path) -> None:
    assert "built without lexical index" in bidr.refused("search", "--index", made.index, "--lexical", 5, "a")
    assert "lexical: given -1" in bidr.refused("search", "--index", index, "--lexical", -1, "a")
    vectors = tmp_path / "v.npy"
    asked = ("search", "--index", index, "--query-vectors", vectors, "--lexical", 5)
    assert "--lexical and --query-vectors" in bidr.refused(*asked)  # without words
    built = ("build", "--vectors", vectors, "--out", tmp_path / "i", "--lexical")
    assert "no texts given" in bidr.refused(*built)
