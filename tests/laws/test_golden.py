"""Indexes of earlier formats, kept here: they open, every byte is checked, they answer as they did, and can be added
to (make_golden.py says how they were made).

A change of format that cannot read one of them must refuse it with a word (and then a test here says so).
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_golden import asked_of, made_document, made_vectors

import bidr
from bidr.index.live.live_index import LiveIndex

GOLDEN = Path(__file__).parent / "golden"
KEPT = sorted(folder for folder in GOLDEN.glob("*/*") if (folder / "CURRENT").exists())


def compare(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["documents"] == expected["documents"]
    assert found["texts"] == expected["texts"]
    assert found["found"].keys() == expected["found"].keys()
    for name, answers in expected["found"].items():
        for mine, theirs in zip(found["found"][name], answers, strict=True):
            assert [each[0] for each in mine] == [each[0] for each in theirs], name
            np.testing.assert_allclose([each[1] for each in mine], [each[1] for each in theirs], atol=0.002)


def test_all_kinds_are_kept() -> None:
    assert {folder.name for folder in KEPT} >= {"scan", "lists", "hnsw", "plain"}
    assert sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()) < 400_000


@pytest.mark.parametrize("kept", KEPT, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_an_index_of_an_earlier_format_answers_as_it_did(kept: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(kept, tmp_path / kept.name)
    expected = json.loads((kept.parent / "answers.json").read_text())[kept.name]
    with LiveIndex.open(folder) as index:
        index.verify()
    compare(asked_of(folder), expected)


@pytest.mark.parametrize("kept", KEPT, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_an_index_of_an_earlier_format_is_added_to_and_compacted(kept: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(kept, tmp_path / kept.name)
    vectors = made_vectors(2, 9)
    with bidr.open_writer(folder) as writer:
        before, engine = writer.view.count, writer.view.manifest.engine
        writer.add([made_document(500), made_document(501)], vectors)
        writer.compact()
        assert writer.view.count == before + 2
        assert writer.view.manifest.engine == engine, "nobody said that it was chosen by size"
    with bidr.open_index(folder) as index:
        index.reader.verify()
        assert [one[0].id for one in index.load_results(index.search_vectors(vectors, 3, 90))] == ["doc-500", "doc-501"]
