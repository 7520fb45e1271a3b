"""Readers follow a writer in another process; snapshots are taken under its feet; drift is told."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from sample_index import clustered, fitted
from sample_live_index import DIM, built, contents, expected, some, writer

from bidr.data.types import Document
from bidr.errors import ConfigError, IndexFolderError
from bidr.index.builder.build import build_index
from bidr.index.live.document_encoder import EncodedBatch
from bidr.index.live.live_reader import LiveIndex
from bidr.index.live.snapshot import write_snapshot
from bidr.index.live.writer import LiveWriter
from bidr.quantization.code_quality import compute_reconstruction_errors
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors

WRITING = """
import sys, time
sys.path.insert(0, sys.argv[2])
from sample_live_index import some, writer
with writer(sys.argv[1], log_documents=15, segments=3) as live:
    for turn in range(60):
        live.add(*some([100 + turn, 5], version=turn + 1))
        print("added", turn, time.time(), flush=True)
        if turn >= 40:
            live.delete([f"doc-{60 + turn}"])
            print("deleted", turn - 40, time.time(), flush=True)
        time.sleep(0.04)
    live.compact()
    print("done", 0, time.time(), flush=True)
    time.sleep(1)
"""


def test_readers_of_another_process_see_each_commit_within_a_second_and_no_deleted_document(tmp_path):
    index = built(tmp_path / "i", 10)
    tests = str(Path(__file__).parents[2] / "helpers")
    child = subprocess.Popen(
        [sys.executable, "-c", WRITING, str(index), tests], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    searcher = Searcher(LiveIndex.open(index))
    queries = some([100])[1]
    at: dict[tuple[str, int], float] = {}
    seen: list[tuple[float, float, set[str]]] = []

    def look() -> None:
        began = time.time()
        answers = searcher.load_results(searcher.search_vectors(QueryVectors(queries, queries), 1000))[0]
        ids = [answer.id for answer in answers]
        assert len(ids) == len(set(ids))  # never two versions of one document
        assert {"doc-5", *(f"doc-{number}" for number in range(10))} <= set(ids)
        seen.append((began, time.time(), set(ids)))

    assert child.stdout is not None

    def listen() -> None:
        for line in child.stdout:
            word, number, moment = line.split()
            at[word, int(number)] = float(moment)

    listener = threading.Thread(target=listen)
    listener.start()
    while child.poll() is None:
        look()
    listener.join()
    assert child.returncode == 0
    time.sleep(max(0.0, at["done", 0] + 1.0 - time.time()))
    look()
    assert len(at) == 81
    checked = {"added": 0, "deleted": 0}
    for began, ended, ids in seen:
        for (word, number), moment in at.items():
            if (
                word == "done"
                or began < moment + 1.0
                or (word == "added" and ended > at.get(("added", number + 40), 1e12))
            ):
                continue
            assert (f"doc-{100 + number}" in ids) == (word == "added")
            checked[word] += 1
    assert min(checked.values()) > 20
    assert seen[-1][2] == {f"doc-{number}" for number in [*range(10), *range(120, 160)]}
    assert len(seen) > 20


def test_a_snapshot_is_an_unchanging_index(tmp_path):
    index = built(tmp_path / "i")
    with writer(index) as live:
        live.add(*some([6]))
        live.delete(["doc-0"])
        live.flush()
        live.add(*some([7]))
        wanted = contents(index)
        write_snapshot(index, tmp_path / "copy")
        live.add(*some([8]))
        live.compact()
    LiveIndex.open(tmp_path / "copy").verify()
    assert contents(tmp_path / "copy") == wanted == {**expected(range(1, 8))}
    with writer(tmp_path / "copy") as live:
        live.add(*some([9]))
        live.compact()
    assert contents(index) == expected(range(1, 9))
    assert contents(tmp_path / "copy") == {**wanted, **expected([9])}
    write_snapshot(built(tmp_path / "plain"), tmp_path / "plain copy")
    assert contents(tmp_path / "plain copy") == expected(range(6))
    with pytest.raises(ConfigError, match="exists already"):
        write_snapshot(index, tmp_path / "copy")
    assert {path.name for path in tmp_path.iterdir()} == {"i", "copy", "plain", "plain copy"}


@pytest.mark.parametrize("copy", [True, False])
def test_a_copy_outlives_damage_to_the_index_and_links_do_not(tmp_path, copy):
    index = built(tmp_path / "i")
    with writer(index) as live:
        live.add(*some([6]))
        live.flush()
        live.delete(["doc-0"])
        live.flush()
        live.add(*some([7]))
    wanted = contents(index)
    write_snapshot(index, tmp_path / "copy", copy=copy)
    LiveIndex.open(tmp_path / "copy").verify()
    ours = {(path.stat().st_dev, path.stat().st_ino) for path in (tmp_path / "copy").rglob("*")}
    theirs = {(path.stat().st_dev, path.stat().st_ino) for path in index.rglob("*")}
    assert bool(ours & theirs) != copy
    for path in index.rglob("*"):
        if path.is_file() and path.stat().st_size and path.name not in ("CURRENT", ".lock"):
            with path.open("r+b") as opened:
                last = opened.seek(-1, 2)
                byte = opened.read(1)[0]
                opened.seek(last)
                opened.write(bytes([byte ^ 1]))
    if copy:
        LiveIndex.open(tmp_path / "copy").verify()
        assert contents(tmp_path / "copy") == wanted
    else:
        with pytest.raises(IndexFolderError):
            LiveIndex.open(tmp_path / "copy").verify()


def replaced_fifth(folder: Path, strangers: np.ndarray) -> tuple[float, float, list[str]]:
    """Recall of the top 10 after a fifth was replaced: live, and of a fresh build by the same codebooks; warnings."""
    vectors = clustered(3_000, DIM, seed=1)
    books, told = fitted(vectors, 4, words=16), []

    def coder(documents, given):
        codes = books.encode(given)
        return EncodedBatch(codes, given, compute_reconstruction_errors(books, given, codes))

    names = [f"d{row}" for row in range(len(vectors))]
    build_index(folder / "live", codebooks=books, codes=books.encode(vectors), vectors=vectors, ids=names)
    now = vectors.copy()
    now[: len(strangers)] = strangers
    with LiveWriter(folder / "live", coder, warn=told.append) as live:
        for start in range(0, len(strangers), 100):
            few = [Document(name, "", "") for name in names[start : start + 100]]
            live.add(few, strangers[start : start + 100])
        found = recall(live.view, now)
    build_index(folder / "fresh", codebooks=books, codes=books.encode(now), vectors=now, ids=names)
    return found, recall(LiveIndex.open(folder / "fresh").latest(), now), told


def recall(view, vectors: np.ndarray) -> float:
    queries = vectors[:: len(vectors) // 200] + 0.05
    ranking = Searcher(view).search_vectors(QueryVectors(queries, queries), 10, candidates=60)
    exact = np.argsort(-(queries @ vectors.T), axis=1)[:, :10]
    hits = [
        len(set(view.documents.ids(rows)) & {f"d{row}" for row in wanted})
        for rows, wanted in zip(ranking.rows, exact, strict=True)
    ]
    return sum(hits) / (10 * len(queries))


def test_drifted_documents_warn_and_are_still_found(tmp_path):
    same = replaced_fifth(tmp_path / "same", clustered(600, DIM, seed=2))
    random = np.random.default_rng(3)
    other = (random.standard_normal((3, DIM))[random.integers(0, 3, 600)] * 3).astype(np.float32)
    other += random.standard_normal(other.shape).astype(np.float32)
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    strange = replaced_fifth(tmp_path / "other", other)
    for live, fresh, _ in (same, strange):
        assert abs(live - fresh) <= 0.005
    assert same[2] == []
    assert "fit the codebooks badly" in strange[2][0]
