"""Vectors with ids and metadata of any kind become an index."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

import bidr
from bidr.errors import BidrError, ConfigError, DataError

COUNT, DIM = 64, 16
VECTORS = np.random.default_rng(0).normal(size=(COUNT, DIM)).astype(np.float32)
IDS = [f"d{row}" for row in range(COUNT)]
YEARS = [2000 + row % 4 for row in range(COUNT)]
TEXTS = [f"text {row}" for row in range(COUNT)]


def search(folder: Path, **options: Any) -> Any:
    with bidr.open_index(folder) as index:
        return index.load_results(index.search_vectors(VECTORS[5], k=3, candidates=COUNT, **options))[0]


def assert_is_complete(folder: Path) -> None:
    hit = search(folder)[0]
    assert (hit.id, hit.document.text, hit.document.attributes) == ("d5", "text 5", {"year": 2001})
    assert all(hit.document.attributes == {"year": 2001} for hit in search(folder, filter={"year": 2001}))


def make_frame() -> pd.DataFrame:
    return pd.DataFrame({"id": IDS, "text": TEXTS, "year": YEARS, "embedding": list(VECTORS)})


def write_table(folder: Path) -> Path:
    parquet.write_table(pa.Table.from_pandas(make_frame(), preserve_index=False), folder / "t.parquet")
    return folder / "t.parquet"


def write_csv(folder: Path) -> Path:
    make_frame().assign(embedding=[str(row.tolist()) for row in VECTORS]).to_csv(folder / "t.csv", index=False)
    return folder / "t.csv"


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: make_frame(),
        lambda folder: pl.DataFrame(make_frame().to_dict("list")),
        lambda folder: pa.table(make_frame()),
        lambda folder: make_frame().to_dict("records"),
        lambda folder: {"id": IDS, "text": TEXTS, "year": YEARS, "embedding": VECTORS},
        lambda folder: bidr.load(make_frame()),
        write_table,
        write_csv,
    ],
)
def test_a_table_with_a_vector_column_becomes_an_index(make: Any, tmp_path: Path) -> None:
    assert_is_complete(bidr.build_vectors(make(tmp_path), out=tmp_path / "index"))
    assert {path.name for path in tmp_path.iterdir()} <= {"index", "t.parquet", "t.csv"}, "no temporary file is left"


@pytest.mark.parametrize(
    "metadata",
    [
        pd.DataFrame({"text": TEXTS, "year": YEARS}),
        pl.DataFrame({"text": TEXTS, "year": YEARS}),
        {"text": TEXTS, "year": np.array(YEARS)},
        [{"text": text, "year": year} for text, year in zip(TEXTS, YEARS, strict=True)],
    ],
)
@pytest.mark.parametrize(
    "ids", [IDS, np.array(IDS), pd.Series(IDS), pl.Series(IDS)], ids=lambda ids: type(ids).__name__
)
def test_vectors_ids_and_metadata_are_given_apart(metadata: Any, ids: Any, tmp_path: Path) -> None:
    assert_is_complete(bidr.build_vectors(VECTORS, out=tmp_path / "index", ids=ids, metadata=metadata))


def test_metadata_may_bring_the_ids_and_have_no_texts(tmp_path: Path) -> None:
    bidr.build_vectors(VECTORS, out=tmp_path / "index", metadata={"id": IDS, "year": YEARS})
    hit = search(tmp_path / "index")[0]
    assert (hit.id, hit.document.attributes) == ("d5", {"year": 2001})


@pytest.mark.parametrize("kind", ["series", "polars", "lists", "folder", "pattern"])
def test_a_column_of_vectors_and_several_files_are_vectors(kind: str, tmp_path: Path) -> None:
    if kind in ("folder", "pattern"):
        (tmp_path / "parts").mkdir()
        for number, part in enumerate(np.array_split(VECTORS, 3)):
            np.save(tmp_path / "parts" / f"{number}.npy", part)
    vectors: Any = {
        "series": pd.Series(list(VECTORS)),
        "polars": pl.Series(VECTORS.tolist()),
        "lists": VECTORS.tolist(),
        "folder": tmp_path / "parts",
        "pattern": f"{tmp_path}/parts/*.npy",
    }[kind]
    bidr.build_vectors(vectors, out=tmp_path / "index", ids=IDS)
    assert search(tmp_path / "index")[0].id == "d5"


def test_several_files_give_the_same_index_as_one(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    for number, part in enumerate(np.array_split(VECTORS, 3)):
        np.save(tmp_path / "parts" / f"{number}.npy", part)
    folders = [
        bidr.build_vectors(vectors, out=tmp_path / name)
        for vectors, name in ((VECTORS, "one"), (tmp_path / "parts", "many"))
    ]
    files = [{path.name: path.read_bytes() for path in folder.rglob("vectors.npy")} for folder in folders]
    codes = [{path.name: path.read_bytes() for path in folder.rglob("codes*")} for folder in folders]
    assert files[0] == files[1]
    assert codes[0] == codes[1]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no out": ({"vectors": VECTORS, "out": None}, r"out: not given, expected a folder"),
    "no vector column": ({"vectors": {"text": TEXTS}}, r"no column holds vectors; name one with vector_column"),
    "fewer rows": (
        {"vectors": VECTORS, "metadata": {"year": [1]}},
        r"metadata: 1 documents for 64 vectors, expected one",
    ),
    "fewer ids": ({"vectors": VECTORS, "ids": IDS[:-1]}, r"ids has 63 ids for 64 documents"),
    "metadata and data": (
        {"vectors": VECTORS, "metadata": {"year": YEARS}, "data": bidr.load({"text": TEXTS})},
        r"metadata: given with data, expected one of them",
    ),
    "metadata is a number": ({"vectors": VECTORS, "metadata": 3}, r"given 3 \(int\), expected a path"),
    "repeated ids": ({"vectors": {"id": ["a"] * COUNT, "emb": VECTORS}}, r"data row 2: document id 'a' is that of"),
    "missing id": ({"vectors": {"id": [None] * COUNT, "emb": VECTORS}}, r"data row 1: id is None"),
    "text is a number": ({"vectors": VECTORS, "metadata": {"text": [3] * COUNT}}, r"data row 1: text is 3 \(int\)"),
    "series of unequal lengths": ({"vectors": pd.Series([[1.0], [1.0, 2.0]])}, r"vectors: given no array"),
    "series with a gap": ({"vectors": pd.Series([[1.0], None])}, r"vectors: row 1: .*missing"),
}


@pytest.mark.parametrize("case", BAD)
def test_input_that_does_not_fit_is_refused_and_nothing_written(case: str, tmp_path: Path) -> None:
    options, message = BAD[case]
    with pytest.raises((DataError, ConfigError), match=message):
        bidr.build_vectors(**({"out": tmp_path / "index"} | options))
    assert not (tmp_path / "index").exists()


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", VECTORS)
    np.save(tmp_path / "b.npy", VECTORS[:, :8])
    with pytest.raises(DataError, match=r"b\.npy has 8 dimensions of float32, .*a\.npy has 16"):
        bidr.build_vectors(tmp_path, out=tmp_path / "index")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty holds no \.npy file"):
        bidr.build_vectors(tmp_path / "empty", out=tmp_path / "index")


def test_one_query_may_have_one_dimension(tmp_path: Path) -> None:
    bidr.build_vectors(VECTORS, out=tmp_path / "index")
    with bidr.open_index(tmp_path / "index") as index:
        one, many = index.search_vectors(VECTORS[3], k=2), index.search_vectors(VECTORS[3:4], k=2)
        np.testing.assert_array_equal(one.rows, many.rows)
        np.testing.assert_array_equal(index.search_vectors(VECTORS[3].tolist(), k=2).rows, many.rows)
        with pytest.raises(BidrError, match=r"expected"):
            index.search_vectors(VECTORS[None, :2], k=2)
