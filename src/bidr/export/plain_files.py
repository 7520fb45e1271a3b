"""Export an index as plain files for Faiss and numpy.

OUT/README.md       description of the files, and code that reads them
OUT/codes.faiss     the codes as a Faiss index by inner product; ids are rows
OUT/codes.npy       (documents, books): the number of a codeword in each book
OUT/codebooks.npy   (books, codewords, width), and rotation.npy: the rotation of queries
OUT/choosing.npy    with centre.npy and document.npy: the encoding of documents, where it differs from that of queries
OUT/vectors.npy     (documents, dimensions)
OUT/ids.jsonl       one id per line, as JSON; absent if ids are row numbers

All files are in row order. The folder is created atomically.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.errors import ConfigError, StorageError
from bidr.index.documents.document_store import IDS
from bidr.index.engines.engine_choice import ALIASES
from bidr.index.engines.ivf import get_default_nprobe
from bidr.index.faiss_conversion import IvfLists, export_faiss, export_lists
from bidr.index.live.compaction import MergedCodes
from bidr.index.live.segment import Segment, unpack_bits
from bidr.index.live.view import LiveView
from bidr.index.vectors import write_npy_header
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.distance_codes import add_query_component
from bidr.utils.array_types import Rows
from bidr.utils.faiss_loader import load_faiss
from bidr.utils.files import NewFile, make_folder, remove, storage_errors, sync_file, sync_folder
from bidr.utils.progress import show_progress

ENGINES = ("scan", "lists", "hnsw")
CODES, VECTORS, IDS_FILE, FAISS, README = "codes.npy", "vectors.npy", "ids.jsonl", "codes.faiss", "README.md"
ARRAYS = {
    "codebooks": "centroids",
    "rotation": "rotation",
    "choosing": "choosing",
    "centre": "centre",
    "document": "document",
}
# Numbers of a block: 16 MB of float32.
NUMBERS_PER_BLOCK = 1 << 22

README_TEMPLATE = """\
# {count:,} documents as plain files

Row i of every file is document i{order}.

| file | content |
|---|---|
{files}

{questions}

With numpy, in this folder:

```python
import json
import numpy as np

codes, books, rotation = (np.load(f"{{name}}.npy") for name in ("codes", "codebooks", "rotation"))
parts = (rotation @ {queries}[0]).reshape(len(books), -1)  # one part per book
table = np.einsum("bd,bwd->bw", parts, books)  # score of each codeword
scores = sum(column[numbers] for column, numbers in zip(table, codes.T))
rows = np.argsort(-scores)[:200]  # candidates, by their codes
vectors = np.load("vectors.npy", mmap_mode="r")
{near}
best = rows[np.argsort(-near)[:10]]  # ranked by their vectors
{names}
```

With Faiss the candidates are:

```python
import faiss

index = faiss.read_index("codes.faiss"){visits}
rows = index.search({queries}, 200)[1][0]
```

{coding}
"""
PQ_ENCODING = """\
The code of another vector is, in each book, the number of the codeword of `{books}.npy` nearest to its part of
`rotation @ vector`:

```python
chosen = np.load("{books}.npy")
parts = (vector @ rotation.T).reshape(len(chosen), 1, -1)
code = np.square(chosen - parts).sum(axis=2).argmin(axis=1)
```"""
DISTANCE_ENCODING = (
    PQ_ENCODING.format(books="choosing")
    .replace("vector @", "np.append(vector, 0) @")
    .replace("rotation @ vector", "rotation @ [vector, 0]")
)
INNER_PRODUCTS = "near = vectors[rows].astype(np.float32) @ questions[0]{cut}"
DISTANCES = "near = -np.square(vectors[rows].astype(np.float32) - questions[0]{cut}).sum(axis=1)"
DISTANCE_QUERIES = """

Vectors are ranked by Euclidean distance. Queries for the codes have one more component; inner products with them rank
by distance:

```python
import numpy as np

code_questions = np.pad(questions, ((0, 0), (0, 1)), constant_values={scale}).astype(np.float32)
```"""
ADDITIVE_ENCODING = """\
Codewords are summed: the code of another vector are those codewords of `choosing.npy`, one from each book, whose sum is
nearest to `document @ (vector - centre)`, found by beam search (`bidr.quantization.additive_quantizer`); {groups}."""


class QueryEncoders(NamedTuple):
    """Names of the encoders of queries for the codes and for the vectors, for the README."""

    codes: str = "the model that made the vectors"
    vectors: str = "the model that made the vectors"


class ExportedIndex(NamedTuple):
    """An exported index: folder, number of documents, and the size of every file."""

    folder: Path
    documents: int
    files: dict[str, int]


def write_export(
    view: LiveView,
    out: Path,
    engine: str = "scan",
    *,
    adapted: Codebooks | None = None,
    encoders: QueryEncoders | None = None,
) -> ExportedIndex:
    """Write the state of an index into a new or empty folder.

    Args:
        engine: of codes.faiss: "scan" (`IndexPQ`), "hnsw" (`IndexHNSWPQ`, built now), or "lists" (`IndexIVFPQ`, if the
            index has lists and no changes).
        adapted: codebooks with the query adapter in the rotation, if the model has one.
        encoders: the encoders of queries, for the README.
    """
    engine = ALIASES.get(engine, engine)
    _check(view, out, engine)
    export = _Export(view, engine)
    out = out.absolute()
    staging = out.with_name(f".{out.name}.new")
    with storage_errors(out):
        try:
            remove(staging)
            make_folder(staging)
            export.write(staging, adapted or view.codebooks)
            with NewFile(staging / README) as file:
                file.write(
                    format_readme(
                        view, engine, adapted or view.codebooks, encoders or QueryEncoders(), export.has_ids
                    ).encode()
                )
            files = {path.name: path.stat().st_size for path in sorted(staging.iterdir())}
            sync_folder(staging)
            os.rename(staging, out)
        except BaseException:
            remove(staging)
            raise
        sync_folder(out.parent)
    return ExportedIndex(out, len(export), files)


def _check(view: LiveView, out: Path, engine: str) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} holds something already; choose another folder or empty it")
    if engine not in ENGINES:
        raise ConfigError(f"engine: given {engine!r}, expected one of {', '.join((*ENGINES, *ALIASES))}")
    if not view.count:
        raise ConfigError(f"{view.folder}: no documents in it, expected at least one to export; add some first")


class _Export:
    """The documents of a view in row order. Opens all files at once, since a writer may remove them meanwhile."""

    def __init__(self, view: LiveView, engine: str) -> None:
        self.view, self.engine = view, engine
        live = [_list_live_rows(part) for part in view.segments]
        self.rows, self.positions = [rows for rows, _ in live], [positions for _, positions in live]
        self.codes = MergedCodes(list(view.segments), self.positions)
        files = [part.reader.manifest.files for part in view.segments]
        # After deletions, exported rows differ from the rows that are the implicit ids.
        self.has_ids = view.has_changes or any(f"{IDS}.blob" in names for names in files)
        self.lists: tuple[IvfLists, MergedCodes] | None = None
        if engine == "lists":
            reader = view.get_unchanged("be exported as lists").reader
            self.lists = reader.export_ivf_lists(), MergedCodes(list(view.segments), [np.arange(reader.count)])

    def __len__(self) -> int:
        return self.view.count

    def write(self, folder: Path, codebooks: Codebooks) -> None:
        with show_progress("export", len(self), "documents") as advance:
            _write_rows(folder / CODES, np.dtype(np.uint8), (len(self), codebooks.books), self._iter_codes())
            _write_rows(folder / VECTORS, self._dtype, (len(self), self.view.vectors.dim), self._iter_vectors(advance))
        for name, field in ARRAYS.items():
            array = getattr(codebooks, field)
            if array is not None:
                _write_rows(folder / f"{name}.npy", np.dtype("<f4"), array.shape, iter([array]))
        if self.has_ids:
            with NewFile(folder / IDS_FILE) as out:
                for names in self._iter_ids():
                    out.write("".join(json.dumps(name) + "\n" for name in names).encode())
        self._write_faiss(folder, codebooks)

    @property
    def _dtype(self) -> np.dtype[Any]:
        """float16, unless int8 vectors are stored, whose scaled values may exceed it."""
        kinds = {part.reader.vectors.kind for part in self.view.segments}
        return np.dtype("<f2" if kinds == {"fp16"} else "<f4")

    def _iter_codes(self) -> Iterator[npt.NDArray[Any]]:
        for start in range(0, len(self.codes), NUMBERS_PER_BLOCK // self.codes.shape[1]):
            yield self.codes[start : start + NUMBERS_PER_BLOCK // self.codes.shape[1]]
        yield self.view.memtable.codes[self.view.memtable_rows]

    def _iter_vectors(self, advance: Any) -> Iterator[npt.NDArray[Any]]:
        size = max(1, NUMBERS_PER_BLOCK // self.view.vectors.dim)
        firsts = [part.start for part in self.view.segments]
        for first, positions in zip(
            [*firsts, self.view.memtable_start], [*self.positions, self.view.memtable_rows], strict=True
        ):
            for start in range(0, len(positions), size):
                block = positions[start : start + size]
                yield self.view.vectors.read(first + block)
                advance(len(block))

    def _iter_ids(self) -> Iterator[list[str]]:
        for part, rows in zip(self.view.segments, self.rows, strict=True):
            for start in range(0, len(rows), NUMBERS_PER_BLOCK >> 6):
                yield part.reader.documents.ids(rows[start : start + (NUMBERS_PER_BLOCK >> 6)])
        yield [self.view.memtable.documents[row].id for row in self.view.memtable_rows.tolist()]

    def _write_faiss(self, folder: Path, codebooks: Codebooks) -> None:
        own_codebooks, rotation = self.view.codebooks, codebooks.rotation
        if self.lists is not None:
            lists, codes = self.lists
            index = export_lists(own_codebooks, codes, lists, get_default_nprobe(len(lists.centroids)), rotation)  # type: ignore[arg-type]
        else:
            stored_codes = np.load(folder / CODES, mmap_mode="r")
            index = export_faiss(own_codebooks, stored_codes, engine=self.engine, rotation=rotation)
        try:
            load_faiss().write_index(index, str(folder / FAISS))
        except RuntimeError as error:  # raised by Faiss on a write error
            reason = str(error).splitlines()[0]
            raise StorageError(
                f"cannot write {folder / FAISS} ({reason}); free some space or choose another folder"
            ) from error
        sync_file(folder / FAISS)


def _list_live_rows(part: Segment) -> tuple[Rows, Rows]:
    """Return the rows of a segment that are not deleted, and their positions."""
    alive = None if part.deleted is None else ~unpack_bits(part.deleted, part.count)
    rows = np.arange(part.count) if alive is None else np.flatnonzero(alive)
    order = part.order
    if order is None:
        return rows, rows
    positions = np.empty(part.count, dtype=np.int64)
    positions[order] = np.arange(part.count)
    return rows, positions if alive is None else positions[rows]


def _write_rows(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], blocks: Iterator[npt.NDArray[Any]]) -> None:
    """Write an .npy file block by block."""
    with NewFile(path) as out:
        write_npy_header(out, dtype, shape)
        for block in blocks:
            out.write(np.ascontiguousarray(block, dtype=dtype).tobytes())


def format_readme(view: LiveView, engine: str, codebooks: Codebooks, encoders: QueryEncoders, has_ids: bool) -> str:
    """Return the README of an exported index."""
    manifest, apart = view.manifest, encoders.codes != encoders.vectors
    cut = f"[:{manifest.stored_dim}]" if manifest.dims is not None else ""
    visits = "\nfaiss.extract_index_ivf(index).nprobe = 64  # lists to visit; by default as many as bidr does"
    return README_TEMPLATE.format(
        count=view.count,
        order="" if view.has_changes else ", in the order in which they were given",
        files="\n".join(
            f"| `{name}` | {text} |" for name, text in _describe_files(view, engine, codebooks, has_ids).items()
        ),
        questions=_describe_queries(encoders, manifest.unit, manifest.dims) + _describe_component(codebooks),
        queries="code_questions" if apart or codebooks.are_of_distances else "questions",
        near=(DISTANCES if view.manifest.similarity == "l2" else INNER_PRODUCTS).format(cut=cut),
        names='ids = [json.loads(line) for line in open("ids.jsonl")]\nnames = [ids[row] for row in best]'
        if has_ids
        else "names = best  # no ids were given: a row's number is its id",
        visits=visits if engine == "lists" else "",
        coding=_describe_encoding(codebooks),
    )


def _describe_files(view: LiveView, engine: str, codebooks: Codebooks, has_ids: bool) -> dict[str, str]:
    kind = {"scan": "IndexPQ", "lists": "IndexIVFPQ", "hnsw": "IndexHNSWPQ"}[engine]
    files = {
        "codes.faiss": f"the codes as a Faiss {kind}, by inner product",
        "codes.npy": f"(documents, {codebooks.books}): the number of a codeword in each book",
        "codebooks.npy": f"{codebooks.centroids.shape}: books, codewords, numbers of each",
        "rotation.npy": f"{codebooks.rotation.shape}: projection of queries for the codes",
    }
    if codebooks.choosing is not None:
        files["choosing.npy"] = "codewords for encoding documents"
    if codebooks.centre is not None and codebooks.document is not None:
        files["centre.npy"] = "subtracted from a document before encoding"
        files["document.npy"] = f"{codebooks.document.shape}: projection of documents before encoding"
    files["vectors.npy"] = f"(documents, {view.manifest.stored_dim}): the stored vectors"
    if has_ids:
        files["ids.jsonl"] = "one id per line, as JSON"
    return files


def _describe_queries(encoders: QueryEncoders, unit: bool, dims: int | None) -> str:
    length = ", of length 1" if unit else ""
    text = f"`questions` are rows of float32 from {encoders.vectors}{length}"
    text += "." if encoders.codes == encoders.vectors else f", `code_questions` from {encoders.codes}."
    return (
        text if dims is None else f"{text} They have all dimensions; of document vectors, the first {dims} are stored."
    )


def _describe_component(codebooks: Codebooks) -> str:
    """Describe the last component of queries for codebooks of distances."""
    if not codebooks.are_of_distances:
        return ""
    scale = float(add_query_component(codebooks, np.zeros((1, codebooks.dim - 1), dtype=np.float32))[0, -1])
    return DISTANCE_QUERIES.format(scale=scale)


def _describe_encoding(codebooks: Codebooks) -> str:
    if codebooks.are_of_distances:
        return DISTANCE_ENCODING
    if codebooks.document is None:
        return PQ_ENCODING.format(books="codebooks" if codebooks.choosing is None else "choosing")
    groups = len(codebooks.document) // codebooks.centroids.shape[2]
    split = f"the books in {groups} groups, each for a slice of it" if groups > 1 else "all books for all of it"
    return ADDITIVE_ENCODING.format(groups=split)
