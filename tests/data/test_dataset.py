"""Dataset errors are one line that names the file and the line."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_datasets import DOCUMENTS, QRELS, QUERIES, beir_folder, json_line

from bidr.data.dataset import Dataset, check, compose_text, load
from bidr.data.id_map import IdMap
from bidr.data.types import Document
from bidr.errors import ConfigError, DataError

D1, D2 = json_line(_id="d1", text="one"), json_line(_id="d2", text="two")
Q1, Q2 = json_line(_id="q1", text="one?"), json_line(_id="q2", text="two?")
HEADER = "query-id\tcorpus-id\tscore\n"

FAULTS = {
    "malformed JSON": ({"corpus": D1 + '{"_id": "d2", \n'}, r"corpus\.jsonl line 2: not valid JSON"),
    "not an object": ({"corpus": D1 + "[1, 2]\n"}, r"corpus\.jsonl line 2: expected an object"),
    "document without _id": ({"corpus": D1 + json_line(text="x")}, r"corpus\.jsonl line 2: field '_id' is missing"),
    "document without text": ({"corpus": json_line(_id="x")}, r"corpus\.jsonl line 1: field 'text' is missing"),
    "text that is null": ({"corpus": json_line(_id="x", text=None)}, r"corpus\.jsonl line 1: field 'text'"),
    "title that is a number": (
        {"corpus": json_line(_id="x", text="", title=3)},
        r"corpus\.jsonl line 1: field 'title'",
    ),
    "duplicate document": (
        {"corpus": D1 + "\n" + D2 + D1},
        r"corpus\.jsonl line 4: document id 'd1' is that of .* line 1",
    ),
    "empty corpus": ({"corpus": "\n"}, r"corpus\.jsonl has no documents"),
    "query without text": ({"queries": Q1 + json_line(_id="q2")}, r"queries\.jsonl line 2: field 'text' is missing"),
    "duplicate query": ({"queries": Q1 + Q2 + Q1}, r"queries\.jsonl line 3: query id 'q1' occurs twice"),
    "no queries": ({"queries": ""}, r"queries\.jsonl has no queries"),
    "no judgments": ({"qrels": HEADER}, r"test\.tsv has no judgments"),
    "nothing relevant": ({"qrels": HEADER + "q1\td1\t0\n"}, r"test\.tsv has no judgment with a score above 0"),
    "unknown document": ({"qrels": HEADER + "q1\td1\t1\nq1\td9\t1\n"}, r"test\.tsv line 3: .*'d9'.*corpus\.jsonl"),
    "unknown query": ({"qrels": HEADER + "q1\td1\t1\nq9\td1\t1\n"}, r"test\.tsv line 3: .*'q9'.*queries\.jsonl"),
    "columns": ({"qrels": HEADER + "q1\td1\n"}, r"test\.tsv line 2: 2 columns between tabs, expected 3"),
    "score": ({"qrels": HEADER + "q1\td1\t0.5\n"}, r"test\.tsv line 2: score '0\.5' is not an integer"),
    "contradiction": ({"qrels": HEADER + "q1\td1\t1\nq1\td1\t0\n"}, r"test\.tsv line 3: .*judged 1 before and 0 here"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault(tmp_path: Path, fault: str) -> None:
    content, message = FAULTS[fault]
    dataset = load(beir_folder(tmp_path / "a", **content))
    with pytest.raises(DataError, match=message) as caught:
        check(dataset)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv"])
def test_undecodable_bytes(tmp_path: Path, name: str) -> None:
    folder = beir_folder(tmp_path / "a")
    with (folder / name).open("ab") as out:
        out.write(b"\xff\n")
    with pytest.raises(DataError, match=rf"{name} line \d: byte 0xff is not UTF-8"):
        check(load(folder))


def test_check_returns_the_ids_in_order(tmp_path: Path) -> None:
    assert list(check(load(beir_folder(tmp_path / "a")))) == ["d1", "d2"]


def test_check_ignores_other_splits(tmp_path: Path) -> None:
    folder = beir_folder(tmp_path / "a")
    (folder / "qrels" / "dev.tsv").write_text("q1\td9\t1\n")
    assert len(check(load(folder), ["test"])) == 2
    with pytest.raises(DataError, match=r"dev\.tsv line 1"):
        check(load(folder))


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing does not exist; give a file or folder.*irds:"):
        load(tmp_path / "nothing")
    with pytest.raises(DataError, match=r"expected one of: corpus\.jsonl.*collection\.tsv.*corpus\.parquet"):
        load(tmp_path)
    folder = beir_folder(tmp_path / "a")
    assert list(load(folder / "corpus.jsonl").corpus) == list(load(folder).corpus)
    (folder / "queries.jsonl").unlink()
    with pytest.raises(DataError, match=r"queries\.jsonl does not exist"):
        load(folder).split("test")
    with pytest.raises(DataError, match="no split 'dev'; its splits with judgments: test"):
        load(folder).split("dev")


def test_from_records() -> None:
    dataset = Dataset.from_records("made", DOCUMENTS, QUERIES, QRELS)
    assert list(check(dataset)) == ["d1", "d2", "d3"]
    assert dataset.splits() == ["train", "test"]
    assert [query.id for query in dataset.split("test").queries] == ["q2", "q1"]


def test_an_in_memory_dataset_is_re_iterable_and_fingerprinted_by_content() -> None:
    first, second = (
        Dataset.from_records("made", (one._replace(text=one.text + more) for one in DOCUMENTS), iter(QUERIES), QRELS)
        for more in ("", "!")
    )
    assert list(first.corpus) == list(first.corpus) == DOCUMENTS
    same = Dataset.from_records("made", DOCUMENTS, QUERIES, QRELS)
    assert same.corpus.fingerprint() == first.corpus.fingerprint() != second.corpus.fingerprint()
    other = Dataset.from_records("made", DOCUMENTS, QUERIES, QRELS | {"train": QRELS["test"]})
    assert other.fingerprint(["test"]) == first.fingerprint(["test"])
    assert other.fingerprint(["train"]) != first.fingerprint(["train"])


def test_fingerprint_changes_with_the_file(tmp_path: Path) -> None:
    folder = beir_folder(tmp_path / "a")
    before = load(folder).corpus.fingerprint()
    assert load(folder).corpus.fingerprint() == before
    with (folder / "corpus.jsonl").open("a") as out:
        out.write(json_line(_id="d3", text="three"))
    assert load(folder).corpus.fingerprint() != before


def test_titles() -> None:
    assert compose_text(Document("1", "Title", "text"), "prepend") == "Title text"
    assert compose_text(Document("1", "", "text"), "prepend") == "text"
    assert compose_text(Document("1", "Title", "text"), "ignore") == "text"
    with pytest.raises(ConfigError, match="choose 'prepend' or 'ignore'"):
        compose_text(Document("1", "Title", "text"), "append")  # type: ignore[arg-type]


@given(ids=st.lists(st.text(max_size=4)), other=st.text(max_size=4))
def test_ids_behave_as_a_list_of_strings(ids: list[str], other: str) -> None:
    packed = IdMap(ids)
    assert list(packed) == ids
    assert packed[:2] == ids[:2]
    for identifier in [*ids, other]:
        assert (identifier in packed) == (identifier in ids)
        assert packed.find_row(identifier) == (ids.index(identifier) if identifier in ids else None)
    repeated = packed.find_duplicate()
    assert (repeated is None) == (len(set(ids)) == len(ids))
    if repeated is not None:
        assert ids[repeated[0]] == ids[repeated[1]]
        assert repeated[0] < repeated[1]


def test_ids_beyond_one_block() -> None:
    packed = IdMap(str(n) for n in range(150_000))
    assert packed[149_999] == "149999"
    assert packed.find_duplicate() is None
    np.testing.assert_array_equal(packed.find_rows(["149999", "x", "0", "70000"]), [149_999, -1, 0, 70_000])


def test_dropped_metadata_is_reported_once(tmp_path, capsys):
    row = {"_id": "a", "text": "", "metadata": {"lang": "en", "of": {"x": 1}}}
    (tmp_path / "corpus.jsonl").write_text(json.dumps(row) + "\n")
    corpus = load(tmp_path).corpus
    corpus.report_dropped_fields()
    assert (corpus.dropped_fields, corpus.has_attributes, capsys.readouterr().err) == (None, None, "")
    for _ in range(2):  # a build reads a corpus several times
        assert [document.attributes for document in corpus] == [{"lang": "en"}]
        corpus.report_dropped_fields()
    assert corpus.has_attributes
    assert capsys.readouterr().err.count("1 values of metadata were left out, of 'of' (1)") == 1
