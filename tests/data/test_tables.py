"""Tables of any kind are read as documents: one content, written in every format, gives one corpus."""

import json
import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import dataset as arrow_dataset
from pyarrow import parquet
from sample_datasets import compress

from bidr.data.attribute_conversion import UNSUPPORTED, convert_attribute
from bidr.data.dataset import check_corpus, load
from bidr.data.readers import csv_file
from bidr.data.types import Document
from bidr.errors import BidrError, ConfigError, DataError

VECTORS = np.arange(12, dtype=np.float32).reshape(3, 4) / 8
COLUMNS: dict[str, list[Any]] = {
    "docid": [10, 11, 12],
    "Body": ["first", "second, with comma", 'third "quoted"\nin two lines'],
    "title": ["One", None, "Three ä"],
    "year": [2020, 2021, None],
    "price": [1.5, None, 2.0],
    "new": [True, False, None],
    "lang": ["en", "de", None],
    "embedding": VECTORS.tolist(),
}
DOCUMENTS = [
    Document("10", "One", "first", {"year": 2020, "price": 1.5, "new": True, "lang": "en"}),
    Document("11", "", "second, with comma", {"year": 2021, "new": False, "lang": "de"}),
    Document("12", "Three ä", 'third "quoted"\nin two lines', {"price": 2.0}),
]
RECORDS = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]


def make_frame() -> pd.DataFrame:
    return pd.DataFrame(COLUMNS | {"year": pd.array([2020, 2021, None], dtype="Int64")})


def write_parquet(folder: Path) -> Path:
    parquet.write_table(pa.table(COLUMNS), folder / "table.parquet")
    return folder / "table.parquet"


def write_shards(folder: Path) -> Path:
    (folder / "shards").mkdir()
    for number in range(3):
        parquet.write_table(pa.table(COLUMNS).slice(number, 1), folder / "shards" / f"{number}.parquet")
    return folder / "shards"


def write_csv(folder: Path, name: str = "table.csv", **options: Any) -> Path:
    make_frame().to_csv(folder / name, index=False, **options)
    return folder / name


def write_json_lines(folder: Path, name: str = "table.jsonl") -> Path:
    (folder / name).write_text("".join(json.dumps(record) + "\n" for record in RECORDS), encoding="utf-8")
    return folder / name


def write_json_array(folder: Path) -> Path:
    (folder / "table.json").write_text(json.dumps(RECORDS, indent=1), encoding="utf-8")
    return folder / "table.json"


def make_hugging_face(_: Path) -> Any:
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict(COLUMNS)


class Records:
    """Records that an iteration makes anew."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(RECORDS)


SOURCES: dict[str, Callable[[Path], Any]] = {
    "pandas": lambda _: make_frame(),
    "polars": lambda _: pl.DataFrame(COLUMNS),
    "pyarrow table": lambda _: pa.table(COLUMNS),
    "pyarrow stream": lambda _: pa.table(COLUMNS).to_reader(max_chunksize=2),
    "pyarrow dataset": lambda folder: arrow_dataset.dataset(write_parquet(folder)),
    "Hugging Face": make_hugging_face,
    "list of dicts": lambda _: RECORDS,
    "iterable of dicts": lambda _: Records(),
    "dict of columns": lambda _: COLUMNS | {"embedding": VECTORS},
    "parquet": write_parquet,
    "parquet folder": write_shards,
    "pattern": lambda folder: f"{write_shards(folder)}/*.parquet",
    "csv": write_csv,
    "csv with semicolons": lambda folder: write_csv(folder, sep=";"),
    "tsv": lambda folder: write_csv(folder, "table.tsv", sep="\t"),
    "csv.gz": lambda folder: write_csv(folder, "table.csv.gz"),
    "json lines": write_json_lines,
    "ndjson": lambda folder: write_json_lines(folder, "table.ndjson"),
    "json array": write_json_array,
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_of_table_gives_the_same_corpus_and_vectors(kind: str, tmp_path: Path) -> None:
    dataset = load(SOURCES[kind](tmp_path))
    assert list(dataset.corpus) == DOCUMENTS
    assert list(dataset.corpus) == DOCUMENTS, "a corpus can be iterated twice"
    assert [type(value) for document in dataset.corpus for value in (document.attributes or {}).values()] == [
        type(value) for document in DOCUMENTS for value in (document.attributes or {}).values()
    ]
    check_corpus(dataset, tmp_path)
    assert dataset.corpus.count() == 3
    assert dataset.read_vectors is not None
    np.testing.assert_array_equal(np.concatenate(list(dataset.read_vectors())), VECTORS)
    assert dataset.corpus.fingerprint() == dataset.corpus.fingerprint()


@pytest.mark.parametrize("kind", ["csv", "json lines", "parquet", "list of dicts"])
def test_a_dataset_can_be_pickled(kind: str, tmp_path: Path) -> None:
    dataset = pickle.loads(pickle.dumps(load(SOURCES[kind](tmp_path))))
    assert list(dataset.corpus) == DOCUMENTS


def test_the_fingerprint_changes_with_a_value_and_with_the_columns(tmp_path: Path) -> None:
    first = load(RECORDS).corpus.fingerprint()
    changed = [RECORDS[0] | {"lang": "fr"}, *RECORDS[1:]]
    assert load(changed).corpus.fingerprint() != first
    path = write_csv(tmp_path)
    assert load(path).corpus.fingerprint() != load(path, metadata=["lang"]).corpus.fingerprint()


def test_columns_are_named_by_options() -> None:
    frame = pd.DataFrame({"key": ["a"], "text": ["not this"], "words": ["this"], "head": ["H"], "x": [1], "y": [2]})
    dataset = load(frame, text_column="words", id_column="key", title_column="head", metadata=["y"])
    assert list(dataset.corpus) == [Document("a", "H", "this", {"y": 2})]


def test_without_an_id_column_row_numbers_are_the_ids(capfd: pytest.CaptureFixture[str]) -> None:
    dataset = load([{"text": "a"}, {"text": "b"}])
    assert [document.id for document in dataset.corpus] == ["0", "1"]
    assert "ids are row numbers" in capfd.readouterr().err


def test_what_was_taken_is_said(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    load(write_parquet(tmp_path))
    said = " ".join(capfd.readouterr().err.split())
    assert "id from 'docid', text from 'Body', title from 'title', vector from 'embedding'" in said
    assert "attributes: 'year', 'price', 'new', 'lang'" in said


def test_records_may_have_different_fields_and_nested_metadata() -> None:
    dataset = load([{"text": "a", "metadata": {"lang": "en", "deep": {"x": 1}}}, {"text": "b", "later": 3}])
    first, second = dataset.corpus
    assert (first.attributes, second.attributes) == ({"lang": "en"}, {"later": 3})
    assert dataset.corpus.dropped_fields is not None
    assert dataset.corpus.dropped_fields.fields == {"deep": 1}


def test_columns_that_cannot_be_attributes_are_named_and_counted(capfd: pytest.CaptureFixture[str]) -> None:
    dataset = load({"text": ["a", "b"], "nested": [{"x": 1}, None], "not": [1, 2], "numbers": [[1], [2]]})
    assert [document.attributes for document in dataset.corpus] == [None, None]
    assert "no attribute can have such a name: 'not'" in " ".join(capfd.readouterr().err.split())
    assert dataset.corpus.dropped_fields is not None
    assert dataset.corpus.dropped_fields.fields == {"nested": 1, "numbers": 2}


def test_a_column_that_only_sounds_like_vectors_is_an_attribute() -> None:
    dataset = load({"text": ["a"], "vector": ["north"]})
    assert dataset.read_vectors is None
    assert next(iter(dataset.corpus)).attributes == {"vector": "north"}


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "-2", ""], [1, -2, None]),
        (["1", "2.5", "NA"], [1.0, 2.5, None]),
        (["007", "10"], ["007", "10"]),
        (["1234567890123456789"], ["1234567890123456789"]),
        (["true", "False", ""], [True, False, None]),
        (["NA", "de"], ["NA", "de"]),
        (["NA", ""], ["NA", None]),
        (["1e3", ".5"], [1000.0, 0.5]),
        (["2024-05-01"], ["2024-05-01"]),
    ],
)
def test_csv_columns_have_one_type(cells: list[str], expected: list[Any], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,x\n" + "".join(f"a,{cell}\n" for cell in cells), encoding="utf-8")
    values = [(document.attributes or {}).get("x") for document in load(tmp_path / "t.csv").corpus]
    assert values == expected
    assert [type(value) for value in values] == [type(value) for value in expected]


def test_ids_and_texts_of_csv_stay_as_written(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,text,title\n007,1.50,true\n", encoding="utf-8")
    assert list(load(tmp_path / "t.csv").corpus) == [Document("007", "true", "1.50")]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (date(2024, 5, 1), "2024-05-01"),
        (datetime(2024, 5, 1, 12, 30), "2024-05-01T12:30:00"),
        (datetime(2024, 5, 1, 12, 30, tzinfo=UTC), "2024-05-01T12:30:00+00:00"),
        (np.datetime64("2024-05-01T12:30:00", "ns"), "2024-05-01T12:30:00"),
        (pd.Timestamp("2024-05-01"), "2024-05-01T00:00:00"),
        (timedelta(minutes=1), 60.0),
        (Decimal("2"), 2),
        (Decimal("2.5"), 2.5),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (np.array(["a", "b"]), ["a", "b"]),
        ({"b", "a"}, ["a", "b"]),
        (None, None),
        (float("nan"), None),
        (pd.NaT, None),
        (pd.NA, None),
        (np.datetime64("NaT"), None),
        (Decimal("nan"), None),
        ([], None),
        (float("inf"), UNSUPPORTED),
        (1 << 63, UNSUPPORTED),
        ("\ud800", UNSUPPORTED),
        ([1, 2], UNSUPPORTED),
        ({"a": 1}, UNSUPPORTED),
        (b"bytes", UNSUPPORTED),
        (object(), UNSUPPORTED),
    ],
)
def test_cells_are_taken_as_what_they_are(value: Any, expected: Any) -> None:
    converted = convert_attribute(value)
    assert converted == expected
    assert type(converted) is type(expected)


def test_times_sort_as_text() -> None:
    times = [datetime(2024, 5, 1, 12, 0, 0, micros, tzinfo=UTC) for micros in (0, 500_000)]
    texts = [convert_attribute(time) for time in (date(2024, 5, 1), *times, date(2024, 5, 2))]
    assert texts == sorted(texts)  # type: ignore[type-var]


BAD_TEXT_COLUMN = {"text": ["a", "b"], "body": ["c", "d"]}
BAD_OBJECTS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "two texts": (BAD_TEXT_COLUMN, {}, r"columns 'text', 'body' could each be the text.*text_column \(--text-column\)"),
    "no text": ([{"a": 1}], {}, r"no column has a usual name of texts.*its columns: 'a'; name one with text_column"),
    "unknown column": ([{"text": "a"}], {"id_column": "x"}, r"id_column: given 'x', expected a column of data.*'text'"),
    "column of no name": ([{"text": "a"}], {"id_column": 3}, r"id_column: given 3 \(int\), expected the name"),
    "metadata as string": ([{"text": "a"}], {"metadata": "text"}, r"metadata: given the string.*\['text'\]"),
    "unknown metadata": ([{"text": "a"}], {"metadata": ["x"]}, r"metadata: given 'x', expected a column of data"),
    "reserved name": ([{"text": "a", "not": 1}], {"metadata": ["not"]}, r"'not', which no attribute can be called"),
    "two roles": ([{"text": "a"}], {"id_column": "text"}, r"id_column and text_column: given 'text' for both"),
    "generator": ((record for record in RECORDS), {}, r"given a generator, which can be read once.*list\(\.\.\.\)"),
    "no records": ([1, 2], {}, r"given a list whose number 1 is 1 \(int\), expected dicts"),
    "a number": (5, {}, r"data: given 5 \(int\), expected a path or address"),
    "lazy frame": (pl.LazyFrame({"text": ["a"]}), {}, r"given a LazyFrame .*call \.collect\(\)"),
    "repeated columns": (pd.DataFrame([["a", "b"]], columns=["text", "text"]), {}, r"unique column names"),
    "repeated Arrow columns": (
        pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]),
        {},
        r"column 'text' occurs twice",
    ),
    "unequal columns": ({"text": ["a"], "id": [1, 2]}, {}, r"different lengths \('text' 1, 'id' 2\)"),
    "string column": ({"text": "abc"}, {}, r"column 'text' is 'abc' \(str\), expected a list"),
    "chunks of a table": (RECORDS, {"chunk_size": 5}, r"chunk_size: given for data, expected text files"),
}


@pytest.mark.parametrize("case", BAD_OBJECTS)
def test_unusable_objects_are_refused_when_loaded(case: str) -> None:
    value, options, message = BAD_OBJECTS[case]
    with pytest.raises((DataError, ConfigError), match=message):
        load(value, **options)


BAD_CONTENT: dict[str, tuple[Any, str]] = {
    "id of None": ([{"id": 1, "text": "a"}, {"id": None, "text": "b"}], r"data record 2: id is None"),
    "id of a float": (pd.DataFrame({"id": [1.0, None], "text": ["a", "b"]}), r"data row 1: id is 1\.0"),
    "id is missing": ([{"id": 1, "text": "a"}, {"text": "b"}], r"data record 2: field 'id' is missing"),
    "text is missing": ([{"text": "a"}, {"t": "b"}], r"data record 2: field 'text' is missing"),
    "text is a number": ({"text": ["a", 3]}, r"data row 2: text is 3 \(int\), expected a string"),
    "no documents": ({"text": []}, r"data has no documents"),
    "repeated ids": ({"id": ["a", "a"], "text": ["x", "y"]}, r"data row 2: document id 'a' is that of data row 1"),
}


@pytest.mark.parametrize("case", BAD_CONTENT)
def test_faults_of_rows_name_the_row(case: str, tmp_path: Path) -> None:
    value, message = BAD_CONTENT[case]
    with pytest.raises(BidrError, match=message):
        check_corpus(load(value), tmp_path)


BAD_VECTORS: dict[str, tuple[Any, str]] = {
    "another length": ([[1.0, 2.0], [1.0]], r"row 2: 'emb' has 1 dimensions, 2 in the rows above"),
    "missing": ([[1.0, 2.0], None], r"row 2: 'emb' is missing, expected a vector"),
    "text": ([[1.0, 2.0], "north"], r"row 2: 'emb' is 'north' \(str\), expected a vector"),
    "list of strings": ([[1.0, 2.0], ["a", "b"]], r"row 2: 'emb' is \['a', 'b'\]"),
    "empty": ([[1.0, 2.0], []], r"row 2: 'emb' is \[\]"),
}


@pytest.mark.parametrize("case", BAD_VECTORS)
@pytest.mark.parametrize("kind", ["columns", "arrow"])
def test_faults_of_vectors_name_the_row(case: str, kind: str) -> None:
    values, message = BAD_VECTORS[case]
    table: Any = {"emb": values}
    if kind == "arrow":
        if case in ("text", "list of strings"):
            pytest.skip("a column of Arrow has one type")
        table = pa.table(table)
    dataset = load(table)
    assert dataset.read_vectors is not None
    with pytest.raises(DataError, match=message):
        list(dataset.read_vectors())


BAD_FILES: dict[str, tuple[str, bytes, str]] = {
    "empty csv": ("t.csv", b"", r"t\.csv is empty, expected a header"),
    "ragged csv": ("t.csv", b"id,text\n1,a\n2,b,c\n", r"t\.csv line 3: 3 fields, expected 2 as in the header"),
    "repeated header": ("t.csv", b"text,text\na,b\n", r"t\.csv: the column 'text' occurs twice"),
    "latin csv": ("t.csv", "text\né\n".encode("latin-1"), r"t\.csv line \d+: byte 0xe9 is not UTF-8"),
    "no header": ("t.csv", b"1,some words\n2,more words\n", r"its columns: '1', 'some words'"),
    "bad json": ("t.jsonl", b'{"text": "a"}\n{"text"\n', r"t\.jsonl line 2: not valid JSON"),
    "list in json": ("t.jsonl", b'{"text": "a"}\n[1]\n', r"t\.jsonl line 2: expected an object"),
    "cut array": ("t.json", b'[{"text": "a"}, {"text"', r"t\.json: not valid JSON"),
    "array without end": ("t.json", b'[{"text": "a"}', r"t\.json: the array has no end"),
    "array of numbers": ("t.json", b"[1]", r"t\.json record 1 is 1 \(int\)"),
    "array without comma": ("t.json", b'[{"text": "a"} {"text": "b"}]', r"t\.json: '{' where ',' was expected"),
    "damaged parquet": ("t.parquet", b"PAR1 and more", r"t\.parquet is (not a readable|damaged)"),
    "vectors": ("t.npy", b"", r"t\.npy: an array of vectors, not documents: give it as vectors \(--vectors\)"),
    "unknown suffix": ("t.doc", b"", r"t\.doc: files with the suffix '\.doc' are not read; expected one of: table"),
    "no suffix": ("table", b"", r"table: a file without a suffix"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_unusable_files_are_refused(case: str, tmp_path: Path) -> None:
    name, content, message = BAD_FILES[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(load(tmp_path / name).corpus)


def test_files_of_several_kinds_or_columns_are_refused(tmp_path: Path) -> None:
    write_csv(tmp_path)
    (tmp_path / "readme.md").write_text("x", encoding="utf-8")
    with pytest.raises(DataError, match=r"several kinds \(1 \.md, 1 \.csv\), expected one; choose it with a pattern"):
        load(tmp_path)
    (tmp_path / "zother.csv").write_text("docid,embedding\n1,[1 2 3 4]\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"no column 'Body', which .*table\.csv has; give files of the"):
        list(load(f"{tmp_path}/*.csv").corpus)
    (tmp_path / "zother.csv").write_text((tmp_path / "table.csv").read_text().replace("Body", "Body,more", 1))
    with pytest.raises(DataError, match=r"zother\.csv: the column 'more', which .*table\.csv lacks"):
        list(load(f"{tmp_path}/*.csv").corpus)
    with pytest.raises(DataError, match=r"none\*\.csv: no file matches"):
        load(f"{tmp_path}/none*.csv")


def test_columns_of_partitions_are_attributes(tmp_path: Path) -> None:
    for year in (2020, 2021):
        folder = tmp_path / f"year={year}" / "lang=en"
        folder.mkdir(parents=True)
        parquet.write_table(pa.table({"id": [f"d{year}"], "text": ["x"]}), folder / "part.parquet")
    assert list(load(tmp_path).corpus) == [
        Document("d2020", "", "x", {"year": 2020, "lang": "en"}),
        Document("d2021", "", "x", {"year": 2021, "lang": "en"}),
    ]


def test_other_fields_of_a_beir_corpus_are_attributes(tmp_path: Path) -> None:
    line = {"_id": "a", "text": "x", "url": "u", "emb": [1.0], "metadata": {"lang": "en", "deep": {"y": 1}}}
    (tmp_path / "corpus.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    dataset = load(tmp_path)
    assert list(dataset.corpus) == [Document("a", "", "x", {"url": "u", "lang": "en"})]
    assert dataset.corpus.dropped_fields is not None
    assert dataset.corpus.dropped_fields.fields == {"emb": 1, "deep": 1}


def test_queries_and_judgments_without_a_corpus_are_no_table(tmp_path: Path) -> None:
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "x"}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"is not a readable dataset; expected one of: corpus\.jsonl"):
        load(tmp_path)


def test_a_truncated_compressed_table_is_refused(tmp_path: Path) -> None:
    path = write_csv(tmp_path)
    compress(path, ".gz")
    packed = tmp_path / "table.csv.gz"
    packed.write_bytes(packed.read_bytes()[:-12])
    with pytest.raises(DataError, match=r"truncated or damaged"):
        list(load(packed).corpus)


def test_a_missing_close_quote_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_file, "MAX_LINE_BYTES", 1_000)
    (tmp_path / "t.csv").write_text('text\n"open\n' + "x" * 2_000, encoding="utf-8")
    with pytest.raises(DataError, match=r"t\.csv line \d+: field larger than field limit.*check the quotes"):
        list(load(tmp_path / "t.csv").corpus)


def test_a_dict_of_splits_is_refused() -> None:
    datasets = pytest.importorskip("datasets")
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": ["a"]})})
    with pytest.raises(DataError, match=r"DatasetDict of the splits 'train', expected one"):
        load(splits)
