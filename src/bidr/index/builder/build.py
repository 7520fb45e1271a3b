"""Build an index folder from codebooks, codes, vectors and documents, in resumable streaming steps."""

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
from bidr.index.builder import coarse_clustering
from bidr.index.builder.block_centroid_builder import compute_block_centroids, write_block_centroids
from bidr.index.builder.clustering_vectors import DecodedCodes, VectorInput, choose_cluster_input
from bidr.index.builder.inputs import DocumentInput, VectorFormat, check_arrays, check_settings, fingerprint_inputs
from bidr.index.builder.journal import Files, Step, WorkFolder, release_pages, write_array, write_rows
from bidr.index.builder.partitioning import (
    Partitioning,
    order_documents,
    partition_by_kmeans,
    use_learned_lists,
    write_lists,
)
from bidr.index.candidate_source import EF_CONSTRUCTION
from bidr.index.code_packing import pack
from bidr.index.documents.document_store import write_documents
from bidr.index.engines.block_centroids import count_blocks, has_block_centroids
from bidr.index.engines.engine_choice import choose_engine
from bidr.index.engines.engine_files import (
    CODES_FILE,
    GRAPH_FILE,
    ORDER_FILE,
    get_order_dtype,
    open_array,
    write_codebooks,
)
from bidr.index.engines.fast_scan_kernels import BLOCK
from bidr.index.lexical.postings_files import LexicalIndexWriter
from bidr.index.storage.commit import BeginGeneration, lock_and_begin_generation
from bidr.index.storage.manifest import METRIC, EncoderReference, ErrorStats, Manifest, ModelReference, hash_bytes
from bidr.index.vectors import WRITE_ROWS, StorageKind, VectorWriter
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.learned_ivf import LearnedIvf
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
    model: ModelReference | None = None,
    encoder: EncoderReference | None = None,
    engine: str = "auto",
    ef_construction: int = EF_CONSTRUCTION,
    keep: int = 0,
    begin: BeginGeneration = lock_and_begin_generation,
    stored: StorageKind = "fp16",
    unit: bool = False,
    metric: str = METRIC,
    dims: int | None = None,
    full_dim: int | None = None,
    code_error: ErrorStats | None = None,
    lexical: Titles | None = None,
    lists: LearnedIvf | None = None,
    work: WorkFolder | None = None,
    documents_stamp: Any = None,
) -> Path:
    """Write an index and make it current; the previous one is served until then, and if the build fails.

    Args:
        folder: the index folder.
        codebooks: of the codes.
        codes: (n, M) uint8, array or memmap.
        vectors: (n, dim) of any float type, array or memmap; ranked by inner product.
        documents: ids and texts, in the order of the rows.
        ids: ids alone; without both, row numbers are the ids.
        model: the model that made codes and vectors; readers refuse queries of another.
        encoder: the text encoder of the vectors, if there is no model of texts.
        engine: "scan", "lists", "hnsw", or "auto": by the number of documents, and again at each compaction.
        ef_construction: width of the candidate search when a graph is built.
        keep: how many earlier generations to keep.
        begin: opens the generation; a live index opens segments instead.
        stored: "fp16", or "int8" with a scale per row, which takes half the space.
        unit: whether the vectors are L2-normalized; queries and additions then are too.
        metric: of the scores, inner product or L2; codebooks of distances are needed for L2.
        dims: store and rank by this many leading dimensions, normalized again if `unit`; None: all.
        full_dim: dimensions of queries and additions, if the given vectors are truncated already.
        code_error: quantization error with respect to the full vectors, for additions to an index of truncated ones.
        lexical: index the texts for BM25, with titles ("prepend") or without ("ignore").
        lists: learned IVF lists for engine "lists"; by default k-means finds them.
        work: where to store the steps, to resume a build that was killed.
        documents_stamp: identifies documents or ids (JSON) when a build is resumed.

    Returns:
        The folder of the new generation.
    """
    check_arrays(codebooks, codes, vectors)
    check_settings(documents is not None, ids is not None, lexical, ef_construction)
    dims, engine_name = check_dims(dims, vectors.shape[1]), choose_engine(engine, len(codes), codebooks.bits)
    with begin(Path(folder), keep) as generation:
        work = work or WorkFolder(generation.staging, resumable=False)
        build = _IndexBuild(work, codebooks, codes, vectors, engine_name)
        build.learned = lists if engine_name == "lists" else None
        document_input = DocumentInput(documents, ids, documents_stamp, lexical)
        build.run(document_input, VectorFormat(stored, dims, unit), ef_construction)
        work.remove_intermediate()
        generation.adopt(work.folder, build.files)
        dim_fields = {"dims": dims} if full_dim is None else {"dims": vectors.shape[1], "dim": full_dim}
        fields = {**dim_fields, "unit": unit, "metric": metric, "code_error": code_error, "model": model}
        fields |= {"encoder": encoder, "ef_construction": ef_construction, "auto": engine == "auto"}
        return generation.commit(partial(build.make_manifest, fields))


class _IndexBuild:
    """The steps of one build. `files`: the files of the index written so far."""

    def __init__(
        self, work: WorkFolder, codebooks: Codebooks, codes: Codes, vectors: npt.NDArray[Any], engine: str
    ) -> None:
        self.work, self.codebooks, self.codes, self.vectors = work, codebooks, codes, vectors
        self.engine, self.fingerprints, self.count = engine, fingerprint_inputs(work, codes, vectors), len(codes)
        self.codebooks_hash = hash_bytes(b"".join(array.tobytes() for array in codebooks if array is not None))
        self.files: Files = {}
        self.order: npt.NDArray[Any] | None = None
        """The row at each position; None: input order."""
        self.learned: LearnedIvf | None = None
        self.source: VectorInput = DecodedCodes(codebooks, codes)
        """What lists and blocks are clustered by."""

    def run(self, document_input: DocumentInput, vector_format: VectorFormat, ef_construction: int) -> None:
        """Run all steps in order of their dependencies."""
        if document_input.titles is None:  # first, to fail early on invalid ids
            self.write_documents(document_input)
        self.write_order()
        if document_input.titles is not None:  # postings are written by position
            self.write_documents(document_input)
        self.write_vectors(vector_format)
        self.write_codes()
        if self.engine == "hnsw":
            self.write_graph(ef_construction)
        if has_block_centroids(self.engine, self.count):
            self.write_block_centroids()
        if self.fingerprints != fingerprint_inputs(self.work, self.codes, self.vectors):
            raise DataError("vectors: changed during the build; build the index again")

    def make_manifest(self, fields: dict[str, Any], files: Files) -> Manifest:
        """Return the manifest. fields: those that the steps do not depend on."""
        build_fields = {
            "count": self.count,
            "dim": self.vectors.shape[1],
            "code_dim": self.codebooks.dim,
            "books": self.codebooks.books,
            "words": self.codebooks.words,
            "engine": self.engine,
            "files": dict(files),
        }
        return Manifest(**(build_fields | fields))

    def write_documents(self, document_input: DocumentInput) -> None:
        """Write ids and texts, and postings if titles are given."""
        documents, ids, stamp, titles = document_input
        records = ids if documents is None else documents
        if records is None:
            return

        def write(step: Step) -> None:
            postings = None if titles is None else LexicalIndexWriter(self.work.folder, titles)
            stream = records if postings is None else postings.watch(records)
            has_texts = documents is not None
            with show_progress("write documents" if has_texts else "write ids", self.count, "documents") as advance:
                write_documents(step.open_file, self.work.folder, stream, self.count, advance, texts=has_texts)
            if postings is not None:
                with time_step("words"):
                    postings.write(step, self.order)

        inputs = None if stamp is None else [stamp, self.count]
        if inputs is not None and titles is not None:
            inputs = [inputs, titles, self._order_entry]
        self.files |= self.work.run_step("names", inputs, write)

    def write_order(self) -> None:
        """Cluster the documents and write their order."""
        if self.engine == "scan" and self.count < coarse_clustering.MIN_ORDERED_DOCUMENTS:
            return
        if self.engine == "lists" and self.learned is None:
            self.source = choose_cluster_input(self.codebooks, self.codes, self.vectors)
        partitioning = self._partition()
        centroids, lists = partitioning.centroids, len(partitioning.centroids)
        centroids_hash, has_blocks = hash_bytes(centroids.tobytes()), has_block_centroids(self.engine, self.count)
        inputs = [self.codebooks_hash, self.fingerprints, lists, centroids_hash, self.source.name]

        def assign(first: int) -> Iterator[npt.NDArray[Any]]:
            blocks = coarse_clustering.assign_clusters(partitioning.source, centroids, first)
            yield from self._release_pages_of(blocks, partitioning.source.array)

        assignments = self.work.build_array(
            "clusters.npy", inputs, "<i4", (self.count,), assign, "Dividing into clusters"
        )

        def write(step: Step) -> None:
            offsets = coarse_clustering.compute_offsets(assignments, lists)
            blocks = order_documents(self.work, self.engine, self.source, centroids, assignments, offsets, inputs)
            write_array(step, ORDER_FILE, get_order_dtype(self.count), (self.count,), blocks)
            if self.engine == "lists":
                write_lists(step, partitioning, offsets)

        self.files |= self.work.run_step("order", [inputs, self.engine, has_blocks, *partitioning.stamp], write)
        self.order = open_array(self.work.folder / ORDER_FILE, get_order_dtype(self.count), 1)

    def _partition(self) -> Partitioning:
        if self.learned is not None:
            return use_learned_lists(self.codebooks, self.codes, self.learned)
        # Coarser clusters are enough for an order alone.
        lists = coarse_clustering.choose_list_count(self.count) // (4 if self.engine == "scan" else 1)
        inputs = [self.codebooks_hash, self.fingerprints, lists, self.source.name]
        has_blocks = has_block_centroids(self.engine, self.count)
        return partition_by_kmeans(self.work, self.source, lists, inputs, sort=has_blocks)

    def write_vectors(self, vector_format: VectorFormat) -> None:
        count, dim = self.vectors.shape[0], vector_format.dims or self.vectors.shape[1]

        def write(step: Step) -> None:
            with (
                show_progress("write vectors", count, "documents", step.completed) as advance,
                VectorWriter(step.open_file, count, dim, vector_format.kind, written=step.completed) as out,
            ):
                for block in self._iter_ordered(self.vectors, step.completed):
                    out.write(vector_format.truncate(block))
                    if len(block) == WRITE_ROWS:  # only there a block of the file and its checksum end
                        step.checkpoint(out.written)
                    advance(len(block))

        inputs = [self.fingerprints, self._order_entry, vector_format.kind]
        if vector_format.dims is not None:
            inputs += [vector_format.dims, vector_format.unit]
        self.files |= self.work.run_step("vectors", inputs, write)

    def write_codes(self) -> None:
        width = (self.codebooks.books * self.codebooks.bits + 7) // 8

        def iter_packed(first: int) -> Iterator[Codes]:
            return (pack(block, self.codebooks.bits) for block in self._iter_ordered(self.codes, first))

        def write(step: Step) -> None:
            write_rows(step, CODES_FILE, np.dtype(np.uint8), (self.count, width), iter_packed)

        self.files |= self.work.run_step(
            "codebooks", self.codebooks_hash, lambda step: write_codebooks(step.open_file, self.codebooks)
        )
        self.files |= self.work.run_step("codes", [self.fingerprints, self._order_entry, self.codebooks.bits], write)

    def write_block_centroids(self) -> None:
        def compute(first: int) -> Iterator[npt.NDArray[Any]]:
            blocks = self._iter_ordered(self.source.array, BLOCK * first)
            return (compute_block_centroids(self.source.to_floats(block)) for block in blocks)

        shape = (count_blocks(self.count), self.codebooks.dim)
        inputs = [self.fingerprints, self.codebooks_hash, self._order_entry]
        self.files |= write_block_centroids(self.work, shape, compute, inputs)

    def write_graph(self, ef_construction: int) -> None:
        """Write the links in two passes over groups of positions; both can be resumed."""
        from bidr.index.engines.graph import construction as graph_build
        from bidr.index.engines.graph.engine import get_candidate_count

        candidates = get_candidate_count(ef_construction)
        groups, nodes = graph_build.count_groups(self.count), graph_build.count_nodes(self.count)
        inputs = [self.fingerprints, self.codebooks_hash, ef_construction, self._order_entry]
        # Group shapes are inputs: another version, with links by document, is not resumed.
        link_inputs = [inputs, groups, graph_build.MAX_CANDIDATES, graph_build.LINK_WORDS]
        shape = (self.count, self.codebooks.books)
        codes = self.work.build_array(
            "placed.npy", inputs, np.uint8, shape, lambda first: self._iter_ordered(self.codes, first)
        )
        links = self.work.build_array(
            "noted.npy",
            link_inputs,
            np.int32,
            (groups, graph_build.MAX_CANDIDATES),
            lambda first: graph_build.choose_links(self.codebooks, codes, candidates, first),
            "Choosing links",
            "groups",
        )

        def iter_packed(first: int) -> Iterator[npt.NDArray[Any]]:
            return graph_build.pack_links(links, first)

        def write(step: Step) -> None:
            shape = (nodes, graph_build.LINK_WORDS)
            write_rows(step, GRAPH_FILE, np.dtype("<u8"), shape, iter_packed, "write links", "lists")

        self.files |= self.work.run_step("graph", link_inputs, write)

    @property
    def _order_entry(self) -> Any:
        """The order file with its checksum, as an input of steps that depend on the order."""
        return self.files.get(ORDER_FILE)

    def _iter_ordered(self, array: npt.NDArray[Any], first: int) -> Iterator[npt.NDArray[Any]]:
        """Yield blocks of rows of an array in index order, from a position on."""

        def iter_blocks() -> Iterator[npt.NDArray[Any]]:
            for start in range(first, len(array), WRITE_ROWS):
                block = slice(start, start + WRITE_ROWS)
                if self.order is None:
                    yield array[block]
                else:
                    rows = np.asarray(self.order[block])
                    sorted_rows = np.sort(rows)  # sequential reads: the array may be a file
                    yield array[sorted_rows][np.searchsorted(sorted_rows, rows)]

        return self._release_pages_of(iter_blocks(), array)

    @staticmethod
    def _release_pages_of(blocks: Iterator[npt.NDArray[Any]], array: Any) -> Iterator[npt.NDArray[Any]]:
        """Yield blocks that are read from a file, and unmap its pages after each."""
        for block in blocks:
            yield block
            release_pages(array)
