"""What the extras do, end to end: train, build, search, evaluate, export and serve."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import bidr

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: pip install '.[all]'")
TOPICS = ("river", "castle", "planet", "engine", "violin", "market", "forest", "island")
CONFIG = """
bytes_per_doc = 4
codewords = 16
batch_size = 16
[encoder]
dim = 32
vocabulary = 300
[warmup]
epochs = 1
[sparse]
epochs = 1
[dense]
epochs = 1
[unify]
epochs = 1
"""


def run_bidr(*args: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "bidr", *map(str, args)], capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("full") / "data"
    (folder / "qrels").mkdir(parents=True)
    documents, queries, qrels = [], [], {"train": [], "dev": [], "test": []}
    for number in range(320):
        words = f"{TOPICS[number % 8]} number{number} of {TOPICS[number * 3 % 8]} part{number % 40}"
        documents.append(json.dumps({"_id": f"d{number}", "title": "", "text": words}))
        queries.append(json.dumps({"_id": f"q{number}", "text": f"number{number} {TOPICS[number % 8]}"}))
        split = "test" if number % 8 == 0 else "dev" if number % 8 == 1 else "train"
        qrels[split].append(f"q{number}\td{number}\t1")
    (folder / "corpus.jsonl").write_text("\n".join(documents))
    (folder / "queries.jsonl").write_text("\n".join(queries))
    for split, lines in qrels.items():
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    return folder


def test_texts_are_trained_built_searched_evaluated_exported_and_served(data: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    model, index = tmp_path / "model", tmp_path / "index"
    run_bidr("train", "--data", data, "--out", model, "--config", config)
    run_bidr("build", "--data", data, "--model", model, "--out", index, "--lexical")
    assert "d16" in run_bidr("search", "--index", index, "number16", "river", "--lexical", "20")
    assert "R@10" in run_bidr("evaluate", "--data", data, "--index", index)
    run_bidr("export", "--index", index, "--out", tmp_path / "files")
    run_bidr("export", "--model", model, "--out", tmp_path / "onnx")
    assert {path.name for path in (tmp_path / "onnx").iterdir()} >= {"onnx.json"}
    log = tmp_path / "log"
    command = [sys.executable, "-m", "bidr", "serve", str(index), "--port", "0"]
    with log.open("w") as out, subprocess.Popen(command, stderr=out, stdout=out, env={**os.environ}) as server:
        try:
            with bidr.Client(wait_for_url(log)) as client:
                assert client.search("number24 river", k=5)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)


def wait_for_url(log: Path) -> str:
    """Wait for the line of the log that says where the server listens."""
    for _ in range(600):
        for line in log.read_text().splitlines():
            if line.startswith("{") and "url" in (event := json.loads(line)):
                return str(event["url"])
        time.sleep(0.2)
    raise AssertionError(log.read_text())


def test_codes_are_learned_for_vectors(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((600, 32)).astype(np.float32)
    np.save(tmp_path / "vectors.npy", vectors)
    run_bidr("train", "--vectors", tmp_path / "vectors.npy", "--out", tmp_path / "m", "--bytes-per-doc", "4",
             "--codewords", "16", "--frozen.steps", "4")  # fmt: skip
    run_bidr("build", "--vectors", tmp_path / "vectors.npy", "--model", tmp_path / "m", "--out", tmp_path / "i")
    np.save(tmp_path / "query.npy", vectors[:1])
    assert run_bidr("search", "--index", tmp_path / "i", "--query-vectors", tmp_path / "query.npy")
