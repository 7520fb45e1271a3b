"""Pages of Parquet files are bounded before they are decompressed."""

import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from bidr.data.parquet_pages import find_largest_page
from bidr.data.readers.parquet import read_documents
from bidr.errors import DataError

MIB = 1 << 20


def write(path: Path, texts: list[str] | pa.Array, **options) -> Path:
    parquet.write_table(pa.table({"_id": [str(row) for row in range(len(texts))], "text": texts}), path, **options)
    return path


def measure_largest_page(path: Path) -> int:
    with parquet.ParquetFile(path) as file:
        return find_largest_page(path, file.metadata, ("text",))


@pytest.mark.parametrize(
    "options", [{}, {"data_page_version": "2.0"}, {"use_dictionary": False}, {"compression": None}]
)
def test_the_largest_page_is_read_from_the_headers(tmp_path, options):
    texts = [f"{row} " * 500 for row in range(3_000)]
    size = measure_largest_page(write(tmp_path / "corpus.parquet", texts, row_group_size=1_000, **options))
    assert MIB // 2 < size < 4 * MIB
    wide = measure_largest_page(write(tmp_path / "wide.parquet", ["a" * 3 * MIB, "b"], **options))
    assert 3 * MIB <= wide < 3 * MIB + 4_096


def test_a_page_that_decompresses_beyond_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("bidr.data.readers.parquet._MAX_PAGE_BYTES", MIB)
    path = write(tmp_path / "corpus.parquet", ["a" * 2 * MIB], compression="zstd")
    assert path.stat().st_size < 20_000
    with pytest.raises(DataError, match=r"corpus\.parquet: a page of .* bytes, expected 1,048,576 at most"):
        list(read_documents([path]))


def test_a_value_that_all_rows_share_is_not_held_once_a_row(tmp_path, monkeypatch):
    monkeypatch.setattr("bidr.data.readers.parquet._BATCH_BYTES", 8 * MIB)
    path = write(tmp_path / "corpus.parquet", ["a" * MIB] * 500, dictionary_pagesize_limit=4 * MIB)
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    for number, document in read_documents([path]):
        assert len(document.text) == MIB
        if number > 100:
            break
        assert pa.total_allocated_bytes() - before < 64 * MIB
    assert tracemalloc.get_traced_memory()[1] < 64 * MIB
    tracemalloc.stop()


def test_headers_that_cannot_be_read_are_a_data_error(tmp_path):
    path = write(tmp_path / "corpus.parquet", ["text"] * 10, compression=None)
    content = bytearray(path.read_bytes())
    with parquet.ParquetFile(path) as file:
        offset = file.metadata.row_group(0).column(1).dictionary_page_offset
    for damage in (b"\xff" * 8, b"\x00", b"\x15\x00\x15\x01\x15\x00\x00"):
        path.write_bytes(content[:offset] + damage + content[offset + len(damage) :])
        with pytest.raises(DataError, match=r"corpus\.parquet is not a readable parquet file"):
            list(read_documents([path]))
