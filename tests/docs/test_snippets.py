"""Python blocks of the documentation: names resolve, and the scripts of the tutorials run on tiny data."""

import ast
import importlib
import inspect
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sample_server import running

import bidr
from bidr.cli import main
from bidr.client.client import Client
from bidr.index.live.writer import LiveWriter
from bidr.pipeline.open import OpenIndex

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Methods are looked up by the name that the documentation gives an object.
OBJECTS = {"bidr": (bidr,), "searcher": (OpenIndex, Client), "writer": (LiveWriter,)}
SIZES = {"20_000": "600", "2_000": "60", "200)": "40)", "8_000": "60", "(50, 100, 200, 400)": "(50,)"}


def read_blocks(page: Path) -> list[str]:
    return PYTHON_BLOCK.findall(page.read_text())


def shrink(block: str) -> str:
    for size, tiny in SIZES.items():
        block = block.replace(size, tiny)
    return block


def run_script(block: str, folder: Path, *arguments: str) -> str:
    (folder / "script.py").write_text(shrink(block))
    command = [sys.executable, "-W", "error::DeprecationWarning:__main__", "script.py", *arguments]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.parametrize("page", [page for page in PAGES if read_blocks(page)], ids=lambda page: page.stem)
def test_python_blocks_parse_and_their_names_resolve(page: Path) -> None:
    for block in read_blocks(page):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bidr"):
                module = importlib.import_module(node.module or "")
                assert not [name.name for name in node.names if not hasattr(module, name.name)], page
            if isinstance(node, ast.Import):
                for name in node.names:
                    assert not name.name.startswith("bidr") or importlib.import_module(name.name)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                for kind in OBJECTS.get(node.value.id, ()):
                    assert inspect.getattr_static(kind, node.attr, None) is not None or hasattr(kind, node.attr), (
                        f"{page}: {node.value.id}.{node.attr}"
                    )


@pytest.mark.parametrize("page", [page for page in PAGES if read_blocks(page)], ids=lambda page: page.stem)
def test_python_blocks_use_no_deprecated_method(page: Path) -> None:
    for block in read_blocks(page):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                for kind in OBJECTS.get(node.value.id, ()):
                    attribute = inspect.getattr_static(kind, node.attr, None)
                    assert type(attribute).__name__ != "DeprecatedAlias", f"{page}: {node.value.id}.{node.attr}"


def test_scripts_of_the_vector_tutorial_run(tmp_path: Path) -> None:
    draw, search = read_blocks(ROOT / "docs" / "tutorials" / "your-vectors.md")
    run_script(draw, tmp_path)
    bidr.build_vectors(tmp_path / "docs.npy", None, tmp_path / "index", plain=bidr.PlainCodes(8))
    assert "50 candidates: recall@10 " in run_script(search, tmp_path, "index")


def test_the_tutorial_of_texts_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs" / "tutorials" / "your-texts.md"
    make, search, ask = read_blocks(page)
    commands = [line.strip()[2:] for line in page.read_text().splitlines() if line.strip().startswith("$ bidr")]
    assert len(search.splitlines()) + len(commands) < 20
    run_script(make, tmp_path)
    monkeypatch.chdir(tmp_path)
    build, find, serve = (shlex.split(command)[1:] for command in commands)
    assert main(build) == 0
    assert main([*find, "--json", "hits.json"]) == 0
    hits = json.loads(Path("hits.json").read_text())["answers"]
    assert all("market sells fish" in hit["text"] and hit["attributes"]["year"] >= 2020 for hit in hits)
    assert run_script(search, tmp_path).startswith("1 1.")
    with running(Path(serve[1]), tmp_path / "log") as server:
        assert "market sells fish" in run_script(ask.replace("http://127.0.0.1:8000", server.url), tmp_path)


def test_the_table_tutorial_searches_with_a_filter_in_under_ten_lines(tmp_path: Path) -> None:
    make, search = read_blocks(ROOT / "docs" / "tutorials" / "your-table.md")
    assert len([line for line in search.splitlines() if line]) < 10
    run_script(make, tmp_path)
    output = run_script(search, tmp_path)
    assert "3 hits in" in output
    assert "Article 4535" in output


def test_the_script_of_the_training_tutorial_writes_pairs(tmp_path: Path) -> None:
    write, _ = read_blocks(ROOT / "docs" / "tutorials" / "train-on-your-own-pairs.md")
    run_script(write, tmp_path)
    assert bidr.load(tmp_path / "pairs").corpus.count() == 60


def test_the_python_block_of_the_readme_runs(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((300, 32)).astype(np.float32)
    np.save(tmp_path / "docs.npy", vectors)
    np.save(tmp_path / "questions.npy", vectors[:20])
    (block,) = read_blocks(ROOT / "README.md")
    untrained = re.sub(r"^model = .*$", "model = None", block, flags=re.MULTILINE)
    assert untrained != block
    assert run_script(untrained, tmp_path).startswith("1 0 0.99")


def test_the_commands_of_the_readme_make_the_index_of_its_python_block() -> None:
    text = (ROOT / "README.md").read_text()
    (block,) = read_blocks(ROOT / "README.md")
    (size,) = re.findall(r"bytes_per_doc=(\d+)", block)
    train = next(line for line in text.splitlines() if line.strip().startswith("bidr train  --vectors"))
    build = next(line for line in text.splitlines() if line.strip().startswith("bidr build  --vectors"))
    search = next(line for line in text.splitlines() if line.strip().startswith("bidr search --index runs/v"))
    assert f"--bytes-per-doc {size} --out runs/v" in train
    assert "--model runs/v --out runs/v/index" in build
    assert "--candidates 400" in search


def test_the_readme_names_the_metric() -> None:
    assert "cosine" in (ROOT / "README.md").read_text()
