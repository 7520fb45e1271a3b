"""What documents are divided by: means that k-means finds, or lists that their model has learned."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.index.builder import coarse_clustering as clusters
from bidr.index.builder.cluster_input import AT_ONCE, Decoded, Source
from bidr.index.builder.journal import Array, Step, Work, forget, write_array
from bidr.index.builder.reorder import arranged, in_a_row, in_blocks
from bidr.index.builder.snapshots import KeptRounds
from bidr.index.engines.block_centroids import has_block_centroids
from bidr.index.engines.engine_files import CENTROIDS_FILE, LEARNED_FILE, OFFSETS_FILE, get_order_dtype
from bidr.index.engines.pshufb import BLOCK
from bidr.index.storage.manifest import checksum
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.learned_ivf import LearnedLists
from bidr.utils.array_types import Codes, Floats
from bidr.utils.progress import show_progress
from bidr.utils.step_timer import time_step

Places = npt.NDArray[np.int64]


class Division(NamedTuple):
    """Documents, as `source` has them, go to the nearest mean. learned: the lists of the model, if taken."""

    means: Floats
    source: Source
    learned: LearnedLists | None = None

    @property
    def stamp(self) -> list[str]:
        """What tells the lists' files from others beyond the means."""
        return [checksum(self.learned.to_bytes())] if self.learned else []


def by_kmeans(work: Work, source: Source, lists: int, made_from: list[object], *, near: bool = False) -> Division:
    """Means of so many clusters; where steps are kept, those of k-means are. near: near ones follow each other."""
    rounds, sample = KeptRounds(work, made_from), sample_of(work, source, lists, made_from)
    state = rounds.last()
    before = state.rounds * len(sample) + state.rows if state else 0
    shown = show_progress("Finding clusters", clusters.ROUNDS * len(sample), "comparisons", before)
    with time_step("clusters"), shown as advance:

        def compared(rows: int) -> None:
            advance(rows)
            forget(sample.array)

        means = clusters.find_centroids(sample, lists, rounds, compared)
    return Division(in_a_row(means) if near else means, source)


def sample_of(work: Work, source: Source, lists: int, made_from: list[object]) -> Source:
    """What k-means looks at: codes in memory, vectors on disk."""
    rows = clusters.sample_rows(len(source), lists)

    def some(first: int) -> Iterator[Array]:
        for at in range(first, len(rows), AT_ONCE):
            yield source.array[rows[at : at + AT_ONCE]]
            forget(source.array)

    if isinstance(source, Decoded):
        return source.of(np.concatenate(list(some(0))))
    shape = (len(rows), source.array.shape[1])
    return source.of(work.rows("sample.npy", made_from, "<f4", shape, some))


def as_learned(codebooks: Codebooks, codes: Codes, lists: LearnedLists) -> Division:
    """The model's lists. Where its codewords learned on, documents stay in the lists of the codewords before."""
    lists.check(codebooks.dim)
    if codebooks.choosing is not None and codebooks.document is None:
        codebooks = codebooks._replace(centroids=codebooks.choosing)
    return Division(np.ascontiguousarray(lists.means, dtype=np.float32), Decoded(codebooks, codes), lists)


def ordered(
    work: Work, engine: str, source: Source, means: Floats, of: Array, offsets: Places, made_from: list[object]
) -> Iterator[Array]:
    """Which document stands where, some at a time: cluster after cluster, and within one as the engine needs them.

    of, offsets: the cluster of each document, and where clusters begin.
    """
    count, dtype = len(of), get_order_dtype(len(of))

    def by_cluster(first: int) -> Iterator[Array]:
        with work.scattered("order.raw", dtype, count) as order:
            clusters.put_in_order(of, offsets, order)
            if engine == "hnsw":
                yield from arranged(source, clusters.Clusters(means, offsets, order))
            elif has_block_centroids(engine, count):
                for rows in in_blocks(source, offsets, order, BLOCK, first):
                    yield rows
                    forget(source.array)
            else:
                yield from (order[at : at + AT_ONCE] for at in range(0, count, AT_ONCE))

    if not has_block_centroids(engine, count):
        yield from by_cluster(0)
        return
    placed = work.rows("arranged.npy", made_from, dtype, (count,), by_cluster, "Arranging blocks")
    yield from (placed[at : at + AT_ONCE] for at in range(0, count, AT_ONCE))


def write_lists(step: Step, division: Division, offsets: Places) -> None:
    """Where lists begin and what queries are compared with.

    Of learned ones, those without a document are left out, so that visiting a share of the lists visits documents; all
    are kept beside, for when the index is compacted.
    """
    centroids = division.means
    if division.learned is not None:
        filled = np.diff(offsets) > 0
        centroids, offsets = division.learned.learned[filled], np.append(offsets[:-1][filled], offsets[-1])
        with step.file(LEARNED_FILE) as out:
            out.write(division.learned.to_bytes())
    write_array(step, CENTROIDS_FILE, np.dtype("<f4"), centroids.shape, [centroids])
    write_array(step, OFFSETS_FILE, np.dtype("<i8"), offsets.shape, [offsets])
