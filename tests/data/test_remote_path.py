"""Datasets are read from fsspec addresses as from local folders."""

import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from sample_datasets import DOCUMENTS, QRELS, QUERIES

from bidr.data.dataset import load
from bidr.data.readers.beir import write_beir
from bidr.data.types import Document
from bidr.errors import DataError, MissingExtraError

upath = pytest.importorskip("upath")


@pytest.fixture
def memory() -> Iterator[Any]:
    folder = upath.UPath("memory://bidr-test")
    folder.mkdir(parents=True, exist_ok=True)
    yield folder
    folder.fs.rm(folder.path, recursive=True)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_beir_folder_is_read_from_an_address(memory: Any, tmp_path: Path, suffix: str) -> None:
    write_beir(tmp_path / "set", DOCUMENTS, QUERIES, QRELS)
    for path in (tmp_path / "set").rglob("*"):
        if path.is_file():
            target = memory / "set" / path.relative_to(tmp_path / "set").as_posix()
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    dataset = load("memory://bidr-test/set")
    assert list(dataset.corpus) == DOCUMENTS
    assert dataset.split("test").queries == QUERIES[:2]
    state = dataset.corpus.fingerprint()
    assert dataset.corpus.fingerprint() == state


def test_tables_and_texts_are_read_from_an_address(memory: Any, tmp_path: Path) -> None:
    parquet.write_table(pa.table({"id": ["a"], "text": ["b"], "n": [1]}), tmp_path / "t.parquet")
    (memory / "t.parquet").write_bytes((tmp_path / "t.parquet").read_bytes())
    (memory / "t.csv").write_bytes(b"id,text,n\na,b,1\n")
    (memory / "t.jsonl").write_bytes(b'{"id": "a", "text": "b", "n": 1}\n')
    (memory / "texts").mkdir()
    (memory / "texts" / "x.md").write_bytes(b"# T\nwords")
    for name in ("t.parquet", "t.csv", "t.jsonl"):
        assert list(load(f"memory://bidr-test/{name}").corpus) == [Document("a", "", "b", {"n": 1})]
    assert [document.id for document in load("memory://bidr-test/texts").corpus] == ["x.md#1"]


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_table_is_read_over_http(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    (tmp_path / "t.csv").write_text("id,text\na,b\n", encoding="utf-8")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_address[1]}"
        assert list(load(f"{address}/t.csv").corpus) == [Document("a", "", "b")]
        with pytest.raises(DataError, match=r"none\.csv does not exist"):
            load(f"{address}/none.csv")
    finally:
        server.shutdown()
        server.server_close()


def test_addresses_that_cannot_be_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"'nope' is not a file system that fsspec knows"):
        load("nope://bucket/t.csv")
    with pytest.raises(DataError, match=r"memory://bidr-test/none.csv does not exist"):
        load("memory://bidr-test/none.csv")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(DataError, match=r"s3://bucket/t\.csv: .*pip install s3fs"):
        load("s3://bucket/t.csv")
    monkeypatch.setitem(sys.modules, "upath", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[remote\]'"):
        load("s3://bucket/t.csv")


def test_a_file_address_is_a_local_path(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text\nb\n", encoding="utf-8")
    assert list(load(f"file://{tmp_path}/t.csv").corpus) == [Document("0", "", "b")]
