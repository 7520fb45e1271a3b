"""Indexes written by earlier versions open, verify, return the same results and accept updates.

`make_golden.py` wrote them. A change of format that cannot read one of them must refuse it with a message, and a test
here must say so.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_golden import make_document, make_vectors, search_index

import bidr
from bidr.index.live.live_reader import LiveIndex

GOLDEN = Path(__file__).parent / "golden"
INDEXES = sorted(path.parent for path in GOLDEN.glob("*/*/CURRENT"))


def assert_same_results(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert actual["documents"] == expected["documents"]
    assert actual["texts"] == expected["texts"]
    assert actual["found"].keys() == expected["found"].keys()
    for name, expected_hits in expected["found"].items():
        for hits, golden_hits in zip(actual["found"][name], expected_hits, strict=True):
            assert [hit[0] for hit in hits] == [hit[0] for hit in golden_hits], name
            np.testing.assert_allclose([hit[1] for hit in hits], [hit[1] for hit in golden_hits], atol=0.002)


def test_there_is_a_golden_index_of_every_kind() -> None:
    assert {folder.name for folder in INDEXES} >= {"scan", "lists", "hnsw", "plain"}
    assert sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()) < 400_000


@pytest.mark.parametrize("golden", INDEXES, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_golden_index_returns_the_same_results(golden: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(golden, tmp_path / golden.name)
    expected = json.loads((golden.parent / "answers.json").read_text())[golden.name]
    with LiveIndex.open(folder) as index:
        index.verify()
    assert_same_results(search_index(folder), expected)


@pytest.mark.parametrize("golden", INDEXES, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_golden_index_accepts_updates_and_compaction(golden: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(golden, tmp_path / golden.name)
    vectors = make_vectors(2, 9)
    with bidr.open_writer(folder) as writer:
        count, engine = writer.view.count, writer.view.manifest.engine
        writer.add([make_document(500), make_document(501)], vectors)
        writer.compact()
        assert writer.view.count == count + 2
        assert writer.view.manifest.engine == engine, "the engine was not chosen by document count"
    with bidr.open_index(folder) as index:
        index.reader.verify()
        results = index.load_results(index.search_vectors(vectors, 3, 90))
        assert [hits[0].id for hits in results] == ["doc-500", "doc-501"]
