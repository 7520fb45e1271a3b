"""An index as plain files, for programs without bidr: codes as a Faiss index and as numpy, vectors and ids by document.

OUT/README.md       what lies there, and the lines that read it
OUT/codes.faiss     the codes, searched by inner product; it answers with rows
OUT/codes.npy       (documents, books): the number of a codeword in each book
OUT/codebooks.npy   (books, codewords, width), and rotation.npy: what queries are mapped by before they are compared
OUT/choosing.npy    with centre.npy and document.npy: what new documents are coded by, where that is not the above
OUT/vectors.npy     (documents, dimensions)
OUT/ids.jsonl       an id a line, as JSON; absent where a row's number is its id

All rows stand in the order in which documents were given. The folder appears whole or not at all.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.errors import ConfigError, StorageError
from bidr.export.readme import Asked, readme
from bidr.index.documents.document_store import IDS
from bidr.index.engines.ivf import get_default_nprobe
from bidr.index.faiss_conversion import IvfLists, export_faiss, export_lists
from bidr.index.live.segment import Part, unpack
from bidr.index.live.segment_merge import CodesOf
from bidr.index.live.view import LiveView
from bidr.index.vectors import write_npy_header
from bidr.quantization.codebooks import Codebooks
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
# Of vectors at once: 16 MB.
NUMBERS = 1 << 22


class ExportedIndex(NamedTuple):
    """What an export left: its folder, how many documents, and the size of every file."""

    folder: Path
    documents: int
    files: dict[str, int]


def write_export(
    view: LiveView, out: Path, engine: str = "scan", *, adapted: Codebooks | None = None, asked: Asked | None = None
) -> ExportedIndex:
    """Write what an index is at one moment into a new or empty folder.

    engine:  of codes.faiss: "scan" (`IndexPQ`), "hnsw" (`IndexHNSWPQ`, linked now), or "lists" (`IndexIVFPQ`), of an
             index with lists that is as it was built.
    adapted: the codebooks for queries as users have them, where those of the index are for adapted ones.
    asked:   what encodes questions, for the README.
    """
    _check(view, out, engine)
    leaving = _Leaving(view, engine)
    out = out.absolute()
    aside = out.with_name(f".{out.name}.new")
    with storage_errors(out):
        try:
            remove(aside)
            make_folder(aside)
            leaving.write(aside, adapted or view.codebooks)
            with NewFile(aside / README) as file:
                file.write(readme(view, engine, adapted or view.codebooks, asked or Asked(), leaving.named).encode())
            files = {path.name: path.stat().st_size for path in sorted(aside.iterdir())}
            sync_folder(aside)
            os.rename(aside, out)
        except BaseException:
            remove(aside)
            raise
        sync_folder(out.parent)
    return ExportedIndex(out, len(leaving), files)


def _check(view: LiveView, out: Path, engine: str) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} holds something already; choose another folder or empty it")
    if engine not in ENGINES:
        raise ConfigError(f"engine: given {engine!r}, expected one of {', '.join(ENGINES)}")
    if not view.count:
        raise ConfigError(f"{view.folder}: no documents in it, expected at least one to export; add some first")


class _Leaving:
    """The documents of a view in the order of their rows. Opens now what a writer could remove meanwhile."""

    def __init__(self, view: LiveView, engine: str) -> None:
        self.view, self.engine = view, engine
        found = [_in_order(part) for part in view.parts]
        self.rows, self.places = [rows for rows, _ in found], [places for _, places in found]
        self.codes = CodesOf(list(view.parts), self.places)
        files = [part.open.reader.manifest.files for part in view.parts]
        # Where a document was deleted, the place of those after it in the files is no longer their row's number.
        self.named = view.changed or any(f"{IDS}.blob" in own for own in files)
        self.lists: tuple[IvfLists, CodesOf] | None = None
        if engine == "lists":
            reader = view.unchanged("leave as lists").open.reader
            self.lists = reader.export_ivf_lists(), CodesOf(list(view.parts), [np.arange(reader.count)])

    def __len__(self) -> int:
        return self.view.count

    def write(self, folder: Path, codebooks: Codebooks) -> None:
        with show_progress("export", len(self), "documents") as advance:
            _write_rows(folder / CODES, np.dtype(np.uint8), (len(self), codebooks.books), self._codes())
            _write_rows(folder / VECTORS, self._dtype, (len(self), self.view.vectors.dim), self._vectors(advance))
        for name, field in ARRAYS.items():
            array = getattr(codebooks, field)
            if array is not None:
                _write_rows(folder / f"{name}.npy", np.dtype("<f4"), array.shape, iter([array]))
        if self.named:
            with NewFile(folder / IDS_FILE) as out:
                for names in self._ids():
                    out.write("".join(json.dumps(name) + "\n" for name in names).encode())
        self._write_faiss(folder, codebooks)

    @property
    def _dtype(self) -> np.dtype[Any]:
        """What holds the numbers that rank: those of int8 with their scale may not fit into fp16."""
        kinds = {part.open.reader.vectors.kind for part in self.view.parts}
        return np.dtype("<f2" if kinds == {"fp16"} else "<f4")

    def _codes(self) -> Iterator[npt.NDArray[Any]]:
        for start in range(0, len(self.codes), NUMBERS // self.codes.shape[1]):
            yield self.codes[start : start + NUMBERS // self.codes.shape[1]]
        yield self.view.memory.codes[self.view.in_log]

    def _vectors(self, advance: Any) -> Iterator[npt.NDArray[Any]]:
        size = max(1, NUMBERS // self.view.vectors.dim)
        firsts = [part.start for part in self.view.parts]
        for first, places in zip([*firsts, self.view.start], [*self.places, self.view.in_log], strict=True):
            for start in range(0, len(places), size):
                block = places[start : start + size]
                yield self.view.vectors.read(first + block)
                advance(len(block))

    def _ids(self) -> Iterator[list[str]]:
        for part, rows in zip(self.view.parts, self.rows, strict=True):
            for start in range(0, len(rows), NUMBERS >> 6):
                yield part.open.reader.documents.ids(rows[start : start + (NUMBERS >> 6)])
        yield [self.view.memory.documents[row].id for row in self.view.in_log.tolist()]

    def _write_faiss(self, folder: Path, codebooks: Codebooks) -> None:
        own, rotation = self.view.codebooks, codebooks.rotation
        if self.lists is not None:
            lists, codes = self.lists
            index = export_lists(own, codes, lists, get_default_nprobe(len(lists.centroids)), rotation)  # type: ignore[arg-type]
        else:
            written = np.load(folder / CODES, mmap_mode="r")
            index = export_faiss(own, written, engine=self.engine, rotation=rotation)
        try:
            load_faiss().write_index(index, str(folder / FAISS))
        except RuntimeError as error:  # how Faiss says that the disk refuses
            reason = str(error).splitlines()[0]
            raise StorageError(
                f"cannot write {folder / FAISS} ({reason}); free some space or choose another folder"
            ) from error
        sync_file(folder / FAISS)


def _in_order(part: Part) -> tuple[Rows, Rows]:
    """The rows of a part that are alive, in their order, and where each stands."""
    alive = None if part.deleted is None else ~unpack(part.deleted, part.count)
    rows = np.arange(part.count) if alive is None else np.flatnonzero(alive)
    order = part.open.order
    if order is None:
        return rows, rows
    places = np.empty(part.count, dtype=np.int64)
    places[order] = np.arange(part.count)
    return rows, places if alive is None else places[rows]


def _write_rows(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], blocks: Iterator[npt.NDArray[Any]]) -> None:
    """An .npy file, some rows at a time."""
    with NewFile(path) as out:
        write_npy_header(out, dtype, shape)
        for block in blocks:
            out.write(np.ascontiguousarray(block, dtype=dtype).tobytes())
