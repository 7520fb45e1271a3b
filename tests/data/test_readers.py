"""Every reader returns the dataset that was written."""

import itertools
import json
import pickle
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from sample_datasets import DOCUMENTS, QRELS, QUERIES, beir_folder, compress, json_line

from bidr.data.dataset import Dataset, load
from bidr.data.readers.beir import write_beir
from bidr.data.readers.trec import read_qrels, read_run, write_qrels, write_run
from bidr.data.types import Document, Query
from bidr.errors import DataError


def assert_is_the_made_one(dataset: Dataset) -> None:
    assert list(dataset.corpus) == DOCUMENTS
    assert list(dataset.corpus) == DOCUMENTS, "a corpus can be iterated twice"
    assert dataset.corpus.count() == 3
    assert dataset.splits() == ["test", "train"]
    test = dataset.split("test")
    assert test.queries == QUERIES[:2], "only queries with a relevant document, in the order of the file"
    assert test.qrels == {"q2": {"d3": 2}, "q1": {"d1": 1, "d2": 0}}
    assert dataset.split("train").queries == [QUERIES[1]]


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst"])
def test_beir(tmp_path: Path, suffix: str) -> None:
    write_beir(tmp_path / "set", DOCUMENTS, QUERIES, QRELS)
    if suffix:
        for path in [p for p in (tmp_path / "set").rglob("*") if p.is_file()]:
            compress(path, suffix)
    dataset = load(tmp_path / "set")
    assert dataset.name == "set"
    assert_is_the_made_one(dataset)
    assert_is_the_made_one(pickle.loads(pickle.dumps(dataset)))


def test_beir_accepts_null_titles_unquoted_ids_missing_header_and_half_surrogates(tmp_path: Path) -> None:
    corpus = '{"_id": 7, "title": null, "text": "x"}\n\n{"_id": "8", "text": "\\ud800é"}\n'
    dataset = load(beir_folder(tmp_path / "a", corpus=corpus, qrels="q1\t7\t1\n"))
    documents = list(dataset.corpus)
    assert documents[0] == Document("7", "", "x")
    documents[1].text.encode()
    assert dataset.split("test").qrels == {"q1": {"7": 1}}


def tsv(path: Path, rows: list[tuple[object, ...]], separator: str = "\t") -> None:
    path.write_text("".join(separator.join(map(str, row)) + "\n" for row in rows), encoding="utf-8")


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_msmarco_passages(tmp_path: Path, suffix: str) -> None:
    tsv(tmp_path / "collection.tsv", [(0, "zero"), (1, "one"), (2, "")])
    tsv(tmp_path / "queries.train.tsv", [(10, "ten")])
    tsv(tmp_path / "queries.dev.tsv", [(20, "twenty"), (21, "twenty one")])
    tsv(tmp_path / "qrels.train.tsv", [(10, 0, 1, 1)])
    tsv(tmp_path / "qrels.dev.small.tsv", [(21, 0, 0, 1)])
    tsv(tmp_path / "msmarco-test2019-queries.tsv", [(30, "thirty")])
    tsv(tmp_path / "2019qrels-pass.txt", [(30, "Q0", 2, 3)], separator=" ")
    if suffix:
        for path in list(tmp_path.iterdir()):
            compress(path, suffix)
    dataset = load(str(tmp_path))
    assert list(dataset.corpus) == [Document("0", "", "zero"), Document("1", "", "one"), Document("2", "", "")]
    assert dataset.splits() == ["dev.small", "test2019", "train"]
    assert dataset.split("dev.small").queries == [Query("21", "twenty one")]
    assert dataset.split("test2019").qrels == {"30": {"2": 3}}
    assert dataset.split("train").qrels == {"10": {"1": 1}}


@pytest.mark.parametrize("collection", ["msmarco-docs.tsv", "collection.tsv"])
@pytest.mark.parametrize("queries", ["msmarco-doctrain-queries.tsv", "queries.doctrain.tsv"])
def test_msmarco_documents(tmp_path: Path, collection: str, queries: str) -> None:
    tsv(tmp_path / collection, [("D1", "http://one", "One", "body one"), ("D2", "http://two", "", "body two")])
    tsv(tmp_path / queries, [(1, "one?")])
    tsv(tmp_path / "msmarco-doctrain-qrels.tsv", [(1, 0, "D1", 1)], separator=" ")
    dataset = load(tmp_path)
    assert list(dataset.corpus) == [Document("D1", "One", "body one"), Document("D2", "", "body two")]
    assert dataset.split("train").queries == [Query("1", "one?")]


def test_msmarco_without_the_queries_of_a_split_names_the_file_that_is_missing(tmp_path: Path) -> None:
    tsv(tmp_path / "collection.tsv", [(0, "zero")])
    tsv(tmp_path / "qrels.train.tsv", [(10, 0, 0, 1)])
    with pytest.raises(DataError, match=r"queries\.train\.tsv does not exist"):
        load(tmp_path).split("train")


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize(
    "names", [("_id", "text", "query-id", "corpus-id", "score"), ("id", "contents", "query_id", "doc_id", "relevance")]
)
def test_parquet(tmp_path: Path, parts: bool, names: tuple[str, ...]) -> None:
    identifier, text, query, document, score = names
    rows = [{identifier: d.id, "title": d.title or None, text: d.text} for d in DOCUMENTS]
    if parts:
        (tmp_path / "corpus").mkdir()
        parquet.write_table(pa.Table.from_pylist(rows[:2]), tmp_path / "corpus" / "0.parquet")
        parquet.write_table(pa.Table.from_pylist(rows[2:]), tmp_path / "corpus" / "1.parquet")
    else:
        parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "corpus.parquet")
    parquet.write_table(
        pa.Table.from_pylist([{identifier: q.id, text: q.text} for q in QUERIES]), tmp_path / "queries.parquet"
    )
    (tmp_path / "qrels").mkdir()
    for split, qrels in QRELS.items():
        judged = [{query: q, document: d, score: s} for q, found in qrels.items() for d, s in found.items()]
        name = f"qrels/{split}-00000-of-00001.parquet" if parts else f"qrels.{split}.parquet"
        parquet.write_table(pa.Table.from_pylist(judged), tmp_path / name)
    assert_is_the_made_one(load(tmp_path))


def test_parquet_faults_are_named(tmp_path: Path) -> None:
    (tmp_path / "corpus.parquet").write_bytes(b"PAR1 but no more than that")
    with pytest.raises(DataError, match=r"corpus\.parquet is (not a readable|damaged).*copy it again"):
        list(load(tmp_path).corpus)
    parquet.write_table(pa.table({"name": ["a"], "text": ["b"]}), tmp_path / "corpus.parquet")
    with pytest.raises(DataError, match=r"corpus\.parquet: none of the columns _id, id, .* among name, text"):
        list(load(tmp_path).corpus)
    parquet.write_table(pa.table({"_id": ["a", None], "text": ["b", "c"]}), tmp_path / "corpus.parquet")
    with pytest.raises(DataError, match=r"corpus\.parquet row 2: id is None, expected a string or a whole number"):
        list(load(tmp_path).corpus)


def test_ir_datasets(tmp_path: Path) -> None:
    ir_datasets = pytest.importorskip("ir_datasets")
    tsv(tmp_path / "docs.tsv", [("d1", "one"), ("d2", "two")])
    tsv(tmp_path / "queries.tsv", [("q1", "one?"), ("q2", "two?")])
    tsv(tmp_path / "qrels", [("q2", 0, "d2", 1)], separator=" ")
    tsv(tmp_path / "more", [("q1", 0, "d1", 1)], separator=" ")
    base = ir_datasets.create_dataset(tmp_path / "docs.tsv", tmp_path / "queries.tsv", tmp_path / "qrels")
    extra = ir_datasets.create_dataset(None, tmp_path / "queries.tsv", tmp_path / "more")
    for name, made in {"bidr-made": base, "bidr-made/train": ir_datasets.Dataset(base.docs_handler(), extra)}.items():
        if name not in list(ir_datasets.registry):
            ir_datasets.registry.register(name, made)
    dataset = load("irds:bidr-made/train")
    assert list(dataset.corpus) == [Document("d1", "", "one"), Document("d2", "", "two")]
    assert dataset.splits() == ["test", "train"]
    assert dataset.split("train").qrels == {"q1": {"d1": 1}}
    assert dataset.split("test").queries == [Query("q2", "two?")]
    with pytest.raises(DataError, match="no dataset 'bidr-made/nothing'"):
        load("irds:bidr-made/nothing")


IDS = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=8)


@given(run=st.dictionaries(IDS, st.dictionaries(IDS, st.floats(allow_nan=False, width=32), min_size=1), min_size=1))
def test_run_round_trip(tmp_path_factory: pytest.TempPathFactory, run: dict[str, dict[str, float]]) -> None:
    path = tmp_path_factory.getbasetemp() / "a.run"
    write_run(path, run)
    assert read_run(path) == run
    scores = [list(found.values()) for found in read_run(path).values()]
    assert all(found == sorted(found, reverse=True) for found in scores)


@given(qrels=st.dictionaries(IDS, st.dictionaries(IDS, st.integers(-2, 4), min_size=1), min_size=1))
def test_qrels_round_trip(tmp_path_factory: pytest.TempPathFactory, qrels: dict[str, dict[str, int]]) -> None:
    path = tmp_path_factory.getbasetemp() / "a.qrels"
    write_qrels(path, qrels)
    assert read_qrels(path) == qrels


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("q Q0 d 1 0.5\n", "line 1: 5 columns, expected 6"),
        ("q Q0 d 1 high t\n", "line 1: score 'high' is not a number"),
        ("q Q0 d 1 2 t\nq Q0 d 2 1 t\n", "line 2: document 'd' is ranked twice"),
    ],
)
def test_bad_runs(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.run").write_text(content)
    with pytest.raises(DataError, match=rf"a\.run {message}"):
        read_run(tmp_path / "a.run")


def test_half_a_surrogate_pair_in_an_id_is_refused(tmp_path: Path) -> None:
    dataset = load(beir_folder(tmp_path / "a", corpus='{"_id": "\\ud800", "text": "x"}\n'))
    with pytest.raises(DataError, match=r"corpus\.jsonl.*surrogate"):
        list(dataset.corpus)


def test_ids_that_would_break_a_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="white space"):
        write_run(tmp_path / "a.run", {"q": {"two words": 1.0}})


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    folder = beir_folder(tmp_path / "a")
    with (folder / "corpus.jsonl").open("w") as out:
        for n in range(5_000):
            out.write(json_line(_id=str(n), text="x" * 4_000))
    tracemalloc.start()
    count = sum(1 for _ in load(folder).corpus)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 5_000
    assert peak < 2_000_000, "20 MB on disk"


def test_documents_stream_before_a_later_fault(tmp_path: Path) -> None:
    dataset = load(beir_folder(tmp_path / "a", corpus=json.dumps({"_id": "1", "text": "x"}) + "\nnot json\n"))
    assert [d.id for d in itertools.islice(dataset.corpus, 1)] == ["1"]
    with pytest.raises(DataError, match="line 2"):
        list(dataset.corpus)
