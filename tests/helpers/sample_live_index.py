"""Live indexes for tests: made-up documents, coded by the codebooks of the index itself."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from sample_index import clustered, random_codebooks, small_index

from bidr.data.types import Document
from bidr.index.live.document_encoder import EncodedBatch
from bidr.index.live.live_reader import LiveIndex
from bidr.index.live.view import LiveView
from bidr.index.live.writer import LiveWriter
from bidr.quantization.code_quality import compute_reconstruction_errors

DIM = 16
BOOKS = random_codebooks(DIM, 4)


def coder(documents: Sequence[Document], vectors: np.ndarray | None) -> EncodedBatch:
    assert vectors is not None
    codes = BOOKS.encode(vectors)
    return EncodedBatch(codes, vectors, compute_reconstruction_errors(BOOKS, vectors, codes))


def writer(folder: Path, **options: object) -> LiveWriter:
    return LiveWriter(folder, coder, **options)


def some(numbers: Sequence[int], version: int = 0) -> tuple[list[Document], np.ndarray]:
    """Documents and vectors that are a function of their numbers and version."""
    documents = [
        Document(f"doc-{number}", f"Title {number}", f"Version {version}", {"n": number, "even": number % 2 == 0})
        for number in numbers
    ]
    vectors = [clustered(1, DIM, seed=1000 * version + number)[0] for number in numbers]
    return documents, np.array(vectors, dtype=np.float32).reshape(-1, DIM)


def contents(index: Path | LiveView) -> dict[str, tuple]:
    """Everything that an index says of every document that it has."""
    view = index if isinstance(index, LiveView) else LiveIndex.open(index).latest()
    found, places = {}, view.places()
    for place, row in zip(places, view.rows_of(places).tolist(), strict=True):
        record = view.documents.record(row)
        vector = view.vectors.read(np.array([place]))[0].astype(np.float16).tobytes()
        found[record.id] = (record.title, record.text, record.attributes, vector)
    assert len(found) == view.count
    return found


def expected(numbers: Sequence[int], version: int = 0) -> dict[str, tuple]:
    documents, vectors = some(numbers, version)
    return {
        document.id: (*document[1:], vector.astype(np.float16).tobytes())
        for document, vector in zip(documents, vectors, strict=True)
    }


def built(folder: Path, count: int = 6, given: Sequence[Document] | None = None, **options: object) -> Path:
    """An index of the first documents, as `build_index` makes it; or of others with their vectors."""
    documents, vectors = some(range(count))
    documents = documents if given is None else list(given)
    from bidr.index.builder.build import build_index

    build_index(folder, codebooks=BOOKS, codes=BOOKS.encode(vectors), vectors=vectors, documents=documents, **options)
    return folder


__all__ = ["BOOKS", "DIM", "built", "clustered", "coder", "contents", "expected", "small_index", "some", "writer"]


def described(count: int) -> list[Document]:
    """Documents with some text, most of them with attributes of every kind."""
    found = []
    for number, document in enumerate(some(range(count))[0]):
        attributes = {"whole": number % 7, "part": number / 7, "even": number % 2 == 0, "name": f"n{number % 5}"}
        lists = {"tags": [f"t{number % 3}", f"t{number % 4}"]}
        text = f"word{number} word{number % 11} " * (1 + number % 40)
        found.append(document._replace(text=text, attributes=None if number % 9 == 0 else attributes | lists))
    return found
