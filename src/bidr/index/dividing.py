"""What documents are divided by: means that k-means finds, or lists that their model has learned."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.codes.codebooks import Codebooks, Codes, Floats
from bidr.codes.learned import LearnedLists
from bidr.index.engines import clusters
from bidr.index.engines.arrange import in_a_row
from bidr.index.engines.files import CENTROIDS_FILE, LEARNED_FILE, OFFSETS_FILE
from bidr.index.folder import checksum
from bidr.index.kept import KeptRounds
from bidr.index.work import Step, Work, write_array
from bidr.progress import bar
from bidr.spent import spending


class Division(NamedTuple):
    """Documents, decoded by `codebooks`, go to the nearest mean. learned: the lists of the model, if taken."""

    means: Floats
    codebooks: Codebooks
    learned: LearnedLists | None = None

    @property
    def stamp(self) -> list[str]:
        """What tells the lists' files from others beyond the means."""
        return [checksum(self.learned.to_bytes())] if self.learned else []


def by_kmeans(
    work: Work, codebooks: Codebooks, codes: Codes, lists: int, made_from: list[object], *, arranged: bool = False
) -> Division:
    """Means of so many clusters; where steps are kept, those of k-means are. arranged: near ones follow each other."""
    rounds = KeptRounds(work, made_from)
    sample, state = clusters.sample_size(len(codes), lists), rounds.last()
    before = state.rounds * sample + state.rows if state else 0
    shown = bar("Finding clusters", clusters.ROUNDS * sample, "comparisons", before)
    with spending("clusters"), shown as advance:
        means = clusters.find_centroids(codebooks, codes, lists, rounds, advance)
    return Division(in_a_row(means) if arranged else means, codebooks)


def as_learned(codebooks: Codebooks, lists: LearnedLists) -> Division:
    """The model's lists. Where its codewords learned on, documents stay in the lists of the codewords before."""
    lists.check(codebooks.dim)
    if codebooks.choosing is not None and codebooks.document is None:
        codebooks = codebooks._replace(centroids=codebooks.choosing)
    return Division(np.ascontiguousarray(lists.means, dtype=np.float32), codebooks, lists)


def write_lists(step: Step, division: Division, offsets: npt.NDArray[np.int64]) -> None:
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
