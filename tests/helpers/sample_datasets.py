"""Small data sets, made when a test asks for them."""

import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import zstandard

from bidr.data.types import Document, Query

DOCUMENTS = [
    Document("d1", "First", "alpha beta gamma"),
    Document("d2", "", 'dïe zweite, with \u2028 a separator and a "quote"'),
    Document("d3", "Third", ""),
]
QUERIES = [Query("q2", "second?"), Query("q1", "first?"), Query("q3", "judged irrelevant"), Query("q4", "not judged")]
QRELS = {"train": {"q1": {"d1": 1}}, "test": {"q1": {"d1": 1, "d2": 0}, "q2": {"d3": 2}, "q3": {"d1": 0}}}

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda content: content,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def compress(path: Path, suffix: str) -> None:
    """Replace a file by a compressed one."""
    content = path.read_bytes()
    path.unlink()
    path.with_name(path.name + suffix).write_bytes(COMPRESS[suffix](content))


def beir_folder(
    folder: Path,
    corpus: str = '{"_id": "d1", "title": "t", "text": "one"}\n{"_id": "d2", "text": "two"}\n',
    queries: str = '{"_id": "q1", "text": "one?"}\n{"_id": "q2", "text": "two?"}\n',
    qrels: str = "query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t1\n",
) -> Path:
    """A BEIR folder with exactly these contents."""
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(corpus, encoding="utf-8")
    (folder / "queries.jsonl").write_text(queries, encoding="utf-8")
    (folder / "qrels" / "test.tsv").write_text(qrels, encoding="utf-8")
    return folder


def json_line(**fields: object) -> str:
    return json.dumps(fields) + "\n"
