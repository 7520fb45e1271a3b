"""Partition documents into IVF lists, by k-means or by learned centroids, and order them within."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bidr.index.builder import coarse_clustering
from bidr.index.builder.clustering_vectors import BLOCK_ROWS, DecodedCodes, VectorInput
from bidr.index.builder.journal import Array, Step, WorkFolder, release_pages, write_array
from bidr.index.builder.kmeans_checkpoint import SavedKMeansCheckpoint
from bidr.index.builder.reorder import order_for_graph, order_in_blocks, sort_centroids
from bidr.index.engines.block_centroids import has_block_centroids
from bidr.index.engines.engine_files import CENTROIDS_FILE, LEARNED_FILE, OFFSETS_FILE, get_order_dtype
from bidr.index.engines.fast_scan_kernels import BLOCK
from bidr.index.storage.manifest import hash_bytes
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.learned_ivf import LearnedIvf
from bidr.utils.array_types import Codes, Floats, Rows
from bidr.utils.progress import show_progress
from bidr.utils.step_timer import time_step


class Partitioning(NamedTuple):
    """Assignment of documents, as `source` represents them, to the nearest centroid. learned: the model's lists."""

    centroids: Floats
    source: VectorInput
    learned: LearnedIvf | None = None

    @property
    def stamp(self) -> list[str]:
        """What the files of lists depend on besides the centroids."""
        return [hash_bytes(self.learned.to_bytes())] if self.learned else []


def partition_by_kmeans(
    work: WorkFolder, source: VectorInput, lists: int, inputs: list[object], *, sort: bool = False
) -> Partitioning:
    """Run k-means, resuming from its last snapshot. sort: let near centroids follow each other."""
    checkpoint, sample = SavedKMeansCheckpoint(work, inputs), sample_input(work, source, lists, inputs)
    state = checkpoint.load()
    initial = state.rounds * len(sample) + state.rows if state else 0
    bar = show_progress("find clusters", coarse_clustering.ROUNDS * len(sample), "comparisons", initial)
    with time_step("clusters"), bar as advance:

        def report(rows: int) -> None:
            advance(rows)
            release_pages(sample.array)

        centroids = coarse_clustering.find_centroids(sample, lists, checkpoint, report)
    return Partitioning(sort_centroids(centroids) if sort else centroids, source)


def sample_input(work: WorkFolder, source: VectorInput, lists: int, inputs: list[object]) -> VectorInput:
    """Return the sample that k-means trains on: codes in memory, vectors on disk."""
    rows = coarse_clustering.sample_rows(len(source), lists)

    def iter_sample(first: int) -> Iterator[Array]:
        for start in range(first, len(rows), BLOCK_ROWS):
            yield source.array[rows[start : start + BLOCK_ROWS]]
            release_pages(source.array)

    if isinstance(source, DecodedCodes):
        return source.replace_array(np.concatenate(list(iter_sample(0))))
    shape = (len(rows), source.array.shape[1])
    return source.replace_array(work.build_array("sample.npy", inputs, "<f4", shape, iter_sample))


def use_learned_lists(codebooks: Codebooks, codes: Codes, lists: LearnedIvf) -> Partitioning:
    """Return the model's lists. Documents are assigned with the codewords the lists were trained with."""
    lists.check(codebooks.dim)
    if codebooks.choosing is not None and codebooks.document is None:
        codebooks = codebooks._replace(centroids=codebooks.choosing)
    return Partitioning(np.ascontiguousarray(lists.means, dtype=np.float32), DecodedCodes(codebooks, codes), lists)


def order_documents(
    work: WorkFolder,
    engine: str,
    source: VectorInput,
    centroids: Floats,
    assignments: Array,
    offsets: Rows,
    inputs: list[object],
) -> Iterator[Array]:
    """Yield the row at each position, block by block: cluster after cluster, and within one as the engine needs.

    Args:
        work: where intermediate arrays are stored.
        engine: the name of the engine.
        source: the vectors to order by.
        centroids: the centroid of each cluster.
        assignments: the cluster of each row.
        offsets: where clusters start.
        inputs: what the order depends on.
    """
    count, dtype = len(assignments), get_order_dtype(len(assignments))

    def order_by_cluster(first: int) -> Iterator[Array]:
        with work.allocate_scratch("order.raw", dtype, count) as order:
            coarse_clustering.write_order(assignments, offsets, order)
            if engine == "hnsw":
                yield from order_for_graph(source, coarse_clustering.Clusters(centroids, offsets, order))
            elif has_block_centroids(engine, count):
                for rows in order_in_blocks(source, offsets, order, BLOCK, first):
                    yield rows
                    release_pages(source.array)
            else:
                yield from (order[start : start + BLOCK_ROWS] for start in range(0, count, BLOCK_ROWS))

    if not has_block_centroids(engine, count):
        yield from order_by_cluster(0)
        return
    order = work.build_array("arranged.npy", inputs, dtype, (count,), order_by_cluster, "Arranging blocks")
    yield from (order[start : start + BLOCK_ROWS] for start in range(0, count, BLOCK_ROWS))


def write_lists(step: Step, partitioning: Partitioning, offsets: Rows) -> None:
    """Write the centroids and offsets of IVF lists.

    Empty learned lists are left out, so that probing a share of the lists scans that share of documents. A separate
    file has all of them, for compaction.
    """
    centroids = partitioning.centroids
    if partitioning.learned is not None:
        is_filled = np.diff(offsets) > 0
        centroids, offsets = partitioning.learned.learned[is_filled], np.append(offsets[:-1][is_filled], offsets[-1])
        with step.open_file(LEARNED_FILE) as out:
            out.write(partitioning.learned.to_bytes())
    write_array(step, CENTROIDS_FILE, np.dtype("<f4"), centroids.shape, [centroids])
    write_array(step, OFFSETS_FILE, np.dtype("<i8"), offsets.shape, [offsets])
