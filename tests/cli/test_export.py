"""bidr export, and the model card's own commands."""

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from cli_data import COUNT, Made, Run

import bidr as bidr_api
from bidr.models.corpus_encoding import encode_texts
from bidr.models.saved_model import Model

pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")


def test_a_model_is_exported_once(bidr: Run, made: Made, tmp_path: Path) -> None:
    command = ("export", "--model", made.model, "--out", tmp_path / "onnx", "--json", tmp_path / "e.json")
    done = bidr(*command)
    assert done.code == 0, done.err
    about = json.loads((tmp_path / "e.json").read_text())
    assert about["documents"]["codes"]["encoder"] == "sparse"
    rows = [line.split()[0] for line in done.out.splitlines() if "model.onnx" in line]
    assert rows == [f"{name}/model.onnx" for name in about["encoders"]]
    assert "holds something already" in bidr.refused(*command)
    assert "has no model.json" in bidr.refused("export", "--model", tmp_path, "--out", tmp_path / "other")


def test_the_commands_of_the_model_card_work(
    bidr: Run, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command and every line of Python in it, as they stand there."""
    shutil.copytree(made.model, tmp_path / "RUN")
    (tmp_path / "DATA").symlink_to(made.data)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    card = (tmp_path / "RUN" / "README.md").read_text()
    commands = [shlex.split(line)[1:] for line in re.findall(r"^    (bidr .*)$", card, re.MULTILINE)]
    assert [words[0] for words in commands] == ["build", "search", "evaluate", "export", "export"]
    for words in commands:
        done = bidr(*words)
        assert done.code == 0, done.err
    assert json.loads((tmp_path / "figures.json").read_text())["measures"]["R@10"] > 0.6
    names = python_in(card)
    assert names["scores"].shape == (1, 1)
    assert len(names["codes"]) == len(names["vectors"]) == COUNT
    check_docs_page(Model("RUN"))


def check_docs_page(model: Model) -> None:
    """docs/how-to/export.md names the same folders."""
    names = python_in((Path(__file__).parents[2] / "docs" / "how-to" / "export.md").read_text())
    question = model.encode_queries(["words of a question"])[1][0]
    assert np.allclose(names["questions"][0], question, atol=1e-5)
    assert np.allclose(names["encoded"][0], question, atol=1e-5)
    with bidr_api.open_index("INDEX", "RUN") as searcher:
        wanted = [int(answer.id.removeprefix("d")) for answer in searcher.search("words of a question", k=10)]
    assert names["best"].tolist() == wanted
    assert names["names"] == [f"d{row}" for row in wanted]
    vectors = encode_texts(model.sparse, ["a document"], prompt="", max_length=256)
    assert names["code"].tolist() == model.codebooks.encode(vectors)[0].tolist()


def python_in(page: str) -> dict:
    """What the page's Python leaves."""
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)
    return names
