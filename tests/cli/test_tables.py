"""Tables and text folders on the command line."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_data import Run

VECTORS = np.random.default_rng(0).normal(size=(40, 16)).astype(np.float32)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    frame = pd.DataFrame({"key": [f"k{row}" for row in range(40)], "words": "some text", "year": range(2000, 2040)})
    frame["secret"] = "x"
    frame["emb"] = [str(row.tolist()) for row in VECTORS]
    frame.to_csv(tmp_path / "table.csv", index=False)
    np.save(tmp_path / "query.npy", VECTORS[7])
    return tmp_path / "table.csv"


COLUMNS = ("--id-column", "key", "--text-column", "words", "--metadata", "year")


@pytest.mark.parametrize("flag", ["--data", "--vectors"])
def test_a_table_with_vectors_is_built_and_searched(bidr: Run, table: Path, tmp_path: Path, flag: str) -> None:
    assert bidr("build", flag, table, "--out", tmp_path / "index", *COLUMNS).code == 0
    query = ("--query-vectors", tmp_path / "query.npy", "--filter", '{"year": {"gte": 2005}}')
    result = bidr("search", "--index", tmp_path / "index", *query, "--json", tmp_path / "hits.json")
    assert result.code == 0
    (answer,) = json.loads((tmp_path / "hits.json").read_text())["results"]
    hit = answer["answers"][0]
    assert (hit["id"], hit["text"], hit["attributes"]) == ("k7", "some text", {"year": 2007})


def test_vectors_of_an_array_and_documents_of_a_table(bidr: Run, table: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "vectors.npy", VECTORS)
    build = ("build", "--vectors", tmp_path / "vectors.npy", "--data", table, "--out", tmp_path / "index")
    assert bidr(*build, *COLUMNS).code == 0


def test_rows_of_a_table_are_added_with_their_vectors(bidr: Run, table: Path, tmp_path: Path) -> None:
    assert bidr("build", "--data", table, "--out", tmp_path / "index", *COLUMNS).code == 0
    more = pd.read_csv(table).head(3).assign(key=["k0", "new1", "new2"])
    more.to_parquet(tmp_path / "more.parquet")
    result = bidr("add", tmp_path / "index", tmp_path / "more.parquet", *COLUMNS)
    assert "2 added, 1 replaced; 42 documents" in result.out
    more.drop(columns="key").to_csv(tmp_path / "anonymous.csv", index=False)
    refused = bidr("add", tmp_path / "index", tmp_path / "anonymous.csv", "--text-column", "words")
    assert refused.code == 2
    assert "no column of ids, expected one" in refused.err
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"_id": "x", "text": "y"}\n', encoding="utf-8")
    refused = bidr("add", tmp_path / "index", lines, "--text-column", "text")
    assert "--text-column: given with" in refused.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--vectors", "query.npy", "--text-column", "x"), "--text-column: given without a table"),
        (("--data", "table.csv", "--text-column", "x"), "text_column: given 'x', expected a column of"),
        (("--data", "table.csv", "--metadata", "x,year"), "metadata: given 'x', expected a column of"),
        (("--data", "table.csv", "--chunk-size", "5"), "chunk_size: given for"),
        (("--data", "none.csv"), "none.csv does not exist"),
        (("--vectors", "none.csv"), "none.csv does not exist"),
        (("--vectors", "s3x://a/b.csv"), "'s3x' is not a file system"),
    ],
)
def test_wrong_flags_are_one_line_with_exit_code_2(
    bidr: Run, table: Path, flags: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(table.parent)
    result = bidr("build", *flags, "--out", "index")
    assert result.code == 2
    assert message in " ".join(result.err.split())
    assert not (table.parent / "index").exists()
