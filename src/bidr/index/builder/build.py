"""Building an index folder from codebooks, codes, vectors and documents: in steps, each streamed, and kept if asked."""

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.data.dataset import Titles
from bidr.data.types import Document
from bidr.data.vector_source import check_dims
from bidr.errors import DataError
from bidr.index.builder import coarse_clustering as clusters
from bidr.index.builder.block_centroid_step import write_means
from bidr.index.builder.block_centroids import means_of
from bidr.index.builder.cluster_input import Decoded, Source, source_of
from bidr.index.builder.inputs import Names, Stored, check_arrays, check_settings, stamps_of
from bidr.index.builder.journal import Files, Step, Work, forget, write_array, write_rows
from bidr.index.builder.partitioning import Division, as_learned, by_kmeans, ordered, write_lists
from bidr.index.code_packing import pack
from bidr.index.documents.document_store import write_documents
from bidr.index.engines.block_centroids import count_blocks, has_block_centroids
from bidr.index.engines.engine_files import (
    CODES_FILE,
    GRAPH_FILE,
    ORDER_FILE,
    get_order_dtype,
    open_array,
    write_codebooks,
)
from bidr.index.engines.factory import choose_engine
from bidr.index.engines.pshufb import BLOCK
from bidr.index.lexical.postings_files import LexicalIndexWriter
from bidr.index.storage.commit import Begin, new_generation
from bidr.index.storage.manifest import Manifest, ModelStamp, Spread, checksum
from bidr.index.types import EF_CONSTRUCTION
from bidr.index.vectors import WRITE_ROWS, StorageKind, VectorWriter
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.learned_ivf import LearnedLists
from bidr.utils.array_types import Codes
from bidr.utils.progress import show_progress
from bidr.utils.step_timer import time_step

VECTORS_FILE = "vectors.npy"


def build_index(
    folder: Path | str,
    *,
    codebooks: Codebooks,
    codes: Codes,
    vectors: npt.NDArray[Any],
    documents: Iterable[Document] | None = None,
    ids: Iterable[str | Document] | None = None,
    model: ModelStamp | None = None,
    engine: str = "auto",
    ef_construction: int = EF_CONSTRUCTION,
    keep: int = 0,
    begin: Begin = new_generation,
    stored: StorageKind = "fp16",
    unit: bool = False,
    dims: int | None = None,
    whole: int | None = None,
    code_error: Spread | None = None,
    lexical: Titles | None = None,
    lists: LearnedLists | None = None,
    work: Work | None = None,
    named: Any = None,
) -> Path:
    """Write an index and put it in force; returns the folder of the new generation.

    codes:     (n, M) uint8, array or memmap, made with `codebooks`.
    vectors:   (n, dim) of any float type, array or memmap; ranked by inner product.
    documents: ids and texts, in the order of the rows; or only `ids`; or neither, and row numbers are the ids.
    model:     what made codes and vectors; a reader can then refuse queries of another model.
    engine:    "scan", "lists", "hnsw", or "auto": by the number of documents, and again whenever they are compacted.
    stored:    "fp16", or "int8": half the disk, a scale a row.
    unit:      whether the vectors were brought to length 1, as what is added and asked later must be then.
    dims:      store and rank by the first so many numbers of the vectors, of length 1 again where `unit`; None: by all.
    whole:     how many dimensions vectors had that are cut already, as those of queries and additions still have.
    code_error: how far codes are from whole vectors, for who adds such vectors to an index of cut ones.
    lexical:   also index the words of the texts, with those of titles ("prepend") or without ("ignore").
    lists:     with engine "lists", those that the model learned; by default they are found by k-means.
    keep:      how many earlier generations to leave in the folder.
    begin:     how the folder is begun: an index that is added to begins its segments itself.
    work:      where steps are kept, so that a build that was killed goes on; without it, it begins again.
    named:     with `work`, what tells these documents or ids from others (JSON).

    An index that is already there is served until the new one is whole, and if anything fails.
    """
    check_arrays(codebooks, codes, vectors)
    check_settings(documents is not None, ids is not None, lexical, ef_construction)
    dims, chosen = check_dims(dims, vectors.shape[1]), choose_engine(engine, len(codes), codebooks.bits)
    with begin(Path(folder), keep) as generation:
        desk = work or Work(generation.aside, kept=False)
        build = _Build(desk, codebooks, codes, vectors, chosen)
        build.learned = lists if chosen == "lists" else None
        build.run(Names(documents, ids, named, lexical), Stored(stored, dims, unit), ef_construction)
        desk.clear()
        generation.adopt(desk.folder, build.files)
        cut = {"dims": dims} if whole is None else {"dims": vectors.shape[1], "dim": whole}
        about = {**cut, "unit": unit, "code_error": code_error, "model": model, "ef_construction": ef_construction}
        about["auto"] = engine == "auto"
        return generation.commit(partial(build.manifest, about))


class _Build:
    """The steps of one build. `files`: those of the index that are written."""

    def __init__(self, work: Work, codebooks: Codebooks, codes: Codes, vectors: npt.NDArray[Any], engine: str) -> None:
        self.work, self.codebooks, self.given, self.rows = work, codebooks, codes, vectors
        self.engine, self.sources, self.count = engine, stamps_of(work, codes, vectors), len(codes)
        self.books = checksum(b"".join(array.tobytes() for array in codebooks if array is not None))
        self.files: Files = {}
        self.places: npt.NDArray[Any] | None = None
        """The row of each place; None: as they were given."""
        self.learned: LearnedLists | None = None
        self.source: Source = Decoded(codebooks, codes)
        """What lists and blocks are made by."""

    def run(self, names: Names, stored: Stored, ef_construction: int) -> None:
        """All of them, in the order in which they need each other."""
        if names.titles is None:  # before the rest: bad names are found at once
            self.names(names)
        self.order()
        if names.titles is not None:  # words are written by place
            self.names(names)
        self.vectors(stored)
        self.codes()
        if self.engine == "hnsw":
            self.graph(ef_construction)
        if has_block_centroids(self.engine, self.count):
            self.means()
        if self.sources != stamps_of(self.work, self.given, self.rows):
            raise DataError("vectors: changed while the index was made of them; build it again")

    def manifest(self, about: dict[str, Any], files: Files) -> Manifest:
        """What is to be said of the index. about: fields that the build does not need."""
        known = {
            "count": self.count,
            "dim": self.rows.shape[1],
            "code_dim": self.codebooks.dim,
            "books": self.codebooks.books,
            "words": self.codebooks.words,
            "engine": self.engine,
            "files": dict(files),
        }
        return Manifest(**(known | about))

    def names(self, names: Names) -> None:
        """Ids and texts; and their words, where `titles` says whether those of titles count."""
        documents, ids, stamp, titles = names
        given = ids if documents is None else documents
        if given is None:
            return

        def write(step: Step) -> None:
            words = None if titles is None else LexicalIndexWriter(self.work.folder, titles)
            passing = given if words is None else words.watch(given)
            texts = documents is not None
            with show_progress("Writing documents" if texts else "Writing ids", self.count, "documents") as advance:
                write_documents(step.file, self.work.folder, passing, self.count, advance, texts=texts)
            if words is not None:
                with time_step("words"):
                    words.write(step, self.places)

        made_from = None if stamp is None else [stamp, self.count]
        if made_from is not None and titles is not None:
            made_from = [made_from, titles, self._order]
        self.files |= self.work.run("names", made_from, write)

    def order(self) -> None:
        """Cluster the documents and write in which order they stand."""
        if self.engine == "scan" and self.count < clusters.ORDERED_DOCUMENTS:
            return
        if self.engine == "lists" and self.learned is None:
            self.source = source_of(self.codebooks, self.given, self.rows)
        division = self._division()
        means, lists, blocked = division.means, len(division.means), has_block_centroids(self.engine, self.count)
        made_from = [self.books, self.sources, lists, checksum(means.tobytes()), self.source.name]

        def assigned(first: int) -> Iterator[npt.NDArray[Any]]:
            yield from self._forgetting(clusters.assigned(division.source, means, first), division.source.array)

        of = self.work.rows("clusters.npy", made_from, "<i4", (self.count,), assigned, "Dividing into clusters")

        def write(step: Step) -> None:
            offsets = clusters.offsets_of(of, lists)
            blocks = ordered(self.work, self.engine, self.source, means, of, offsets, made_from)
            write_array(step, ORDER_FILE, get_order_dtype(self.count), (self.count,), blocks)
            if self.engine == "lists":
                write_lists(step, division, offsets)

        self.files |= self.work.run("order", [made_from, self.engine, blocked, *division.stamp], write)
        self.places = open_array(self.work.folder / ORDER_FILE, get_order_dtype(self.count), 1)

    def _division(self) -> Division:
        if self.learned is not None:
            return as_learned(self.codebooks, self.given, self.learned)
        # An order alone needs no fine clusters.
        lists = clusters.lists_for(self.count) // (4 if self.engine == "scan" else 1)
        made_from = [self.books, self.sources, lists, self.source.name]
        return by_kmeans(self.work, self.source, lists, made_from, near=has_block_centroids(self.engine, self.count))

    def vectors(self, stored: Stored) -> None:
        count, dim = self.rows.shape[0], stored.dims or self.rows.shape[1]

        def write(step: Step) -> None:
            with (
                show_progress("Writing vectors", count, "documents", step.done) as advance,
                VectorWriter(step.file, count, dim, stored.kind, written=step.done) as out,
            ):
                for block in self._placed(self.rows, step.done):
                    out.write(stored.cut(block))
                    if len(block) == WRITE_ROWS:  # which ends with a block of the file, and so with its checksum
                        step.mark(out.written)
                    advance(len(block))

        made_from = [self.sources, self._order, stored.kind]
        if stored.dims is not None:
            made_from += [stored.dims, stored.unit]
        self.files |= self.work.run("vectors", made_from, write)

    def codes(self) -> None:
        width = (self.codebooks.books * self.codebooks.bits + 7) // 8

        def packed(first: int) -> Iterator[Codes]:
            return (pack(block, self.codebooks.bits) for block in self._placed(self.given, first))

        def write(step: Step) -> None:
            write_rows(step, CODES_FILE, np.dtype(np.uint8), (self.count, width), packed)

        self.files |= self.work.run("codebooks", self.books, lambda step: write_codebooks(step.file, self.codebooks))
        self.files |= self.work.run("codes", [self.sources, self._order, self.codebooks.bits], write)

    def means(self) -> None:
        """The means of blocks of documents as they stand."""

        def means(first: int) -> Iterator[npt.NDArray[Any]]:
            return (means_of(self.source.floats(block)) for block in self._placed(self.source.array, BLOCK * first))

        shape = (count_blocks(self.count), self.codebooks.dim)
        self.files |= write_means(self.work, shape, means, [self.sources, self.books, self._order])

    def graph(self, ef_construction: int) -> None:
        """The links, in two passes over the groups by place; both go on where they were cut off."""
        from bidr.index.engines.graph import build as linking
        from bidr.index.engines.graph.engine import get_candidate_count

        near, groups, nodes = (
            get_candidate_count(ef_construction),
            linking.count_groups(self.count),
            linking.count_nodes(self.count),
        )
        made_from = [self.sources, self.books, ef_construction, self._order]
        # By group: what an earlier version left by document is not gone on with.
        linked_from, shape = (
            [made_from, groups, linking.MAX_CANDIDATES, linking.LINK_WORDS],
            (self.count, self.codebooks.books),
        )
        placed = self.work.rows("placed.npy", made_from, np.uint8, shape, lambda at: self._placed(self.given, at))
        noted = self.work.rows(
            "noted.npy",
            linked_from,
            np.int32,
            (groups, linking.MAX_CANDIDATES),
            lambda first: linking.choose_links(self.codebooks, placed, near, first),
            "Choosing links",
            "groups",
        )

        def packed(first: int) -> Iterator[npt.NDArray[Any]]:
            return linking.pack_links(noted, first)

        def write(step: Step) -> None:
            shape = (nodes, linking.LINK_WORDS)
            write_rows(step, GRAPH_FILE, np.dtype("<u8"), shape, packed, "Writing links", "lists")

        self.files |= self.work.run("graph", linked_from, write)

    @property
    def _order(self) -> Any:
        """What tells one order from another."""
        return self.files.get(ORDER_FILE)

    def _placed(self, array: npt.NDArray[Any], first: int) -> Iterator[npt.NDArray[Any]]:
        """Rows of an array or memmap in the order in which they will stand, from a place on, some at a time."""

        def blocks() -> Iterator[npt.NDArray[Any]]:
            for start in range(first, len(array), WRITE_ROWS):
                part = slice(start, start + WRITE_ROWS)
                if self.places is None:
                    yield array[part]
                else:
                    wanted = np.asarray(self.places[part])
                    rows = np.sort(wanted)  # read forwards: the array may be a file
                    yield array[rows][np.searchsorted(rows, wanted)]

        return self._forgetting(blocks(), array)

    @staticmethod
    def _forgetting(blocks: Iterator[npt.NDArray[Any]], array: Any) -> Iterator[npt.NDArray[Any]]:
        """Blocks that are made from a file, of which this process then keeps no pages."""
        for block in blocks:
            yield block
            forget(array)
