"""Coarse lists that learn with the query encoder: where they begin, and what they gave."""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.models.encoder import Encoder
from bidr.quantization.learned_ivf import IvfAssignment, LearnedIvf, assign_to_lists, measure_probes
from bidr.training.losses.query_unification import LISTS
from bidr.training.mining import CodedEncoder
from bidr.training.run import TrainingRun
from bidr.utils.files import write_json
from bidr.utils.progress import say

PROBES = (1, 2, 4, 8, 16, 32)
DOCUMENTS_PER_LIST = 8


def fit_initial_lists(run: TrainingRun, side: CodedEncoder, codes: npt.NDArray[Any]) -> IvfAssignment | None:
    """Lists by k-means, fewer than asked for where there are few documents; None where none are asked for."""
    count = min(run.config.unify.lists, max(1, len(codes) // DOCUMENTS_PER_LIST))
    if not count:
        return None

    @cache
    def made() -> IvfAssignment:
        return assign_to_lists(side.codebooks, codes, count, seed=run.config.seed, device=run.device)

    # Kept: found again on another machine, they might be others than those that the checkpoint's centroids belong to.
    name = f"lists-{count}{side.name.removeprefix('sparse')}"
    centroids = run.cache_array(f"{name}-centroids", lambda: made().centroids)
    return IvfAssignment(np.array(centroids), np.array(run.cache_array(f"{name}-of", lambda: made().of)))


def load_learned_lists(run: TrainingRun, found: CodedEncoder) -> LearnedIvf | None:
    """The lists that a finished stage learned, as a model keeps them; None where it learned none."""
    path = run.folder / found.name / LISTS
    if not path.exists():
        return None
    with np.load(path) as kept:
        return LearnedIvf.from_rotated(found.codebooks, kept["means"], kept["learned"])


def measure_lists(run: TrainingRun, found: CodedEncoder, first: Encoder) -> None:
    """Leave in lists.json what visiting some lists gives on dev: k-means with the encoder before, and the learned."""
    path = run.folder / found.name / "lists.json"
    if path.exists():
        return
    with np.load(run.folder / found.name / LISTS) as kept:
        means, learned = IvfAssignment(kept["means"], kept["of"]), IvfAssignment(kept["learned"], kept["of"])
    dev = run.data.dev
    positives = dev.pairs.list_edges(np.arange(len(dev.pairs)))
    result: dict[str, Any] = {"lists": len(means.centroids)}
    for name, encoder, lists in (("k-means", first, means), ("learned", found.encoder, learned)):
        queries = found.codebooks.rotate(run.validator.encode_queries(encoder))
        result[name] = {
            str(probes): measure_probes(queries, lists, positives, probes)._asdict()
            for probes in PROBES
            if probes <= len(means.centroids)
        }
    write_json(path, result)
    shown = ", ".join(
        f"{probes}: {result['k-means'][probes]['recall']:.3f} -> {result['learned'][probes]['recall']:.3f}"
        for probes in result["learned"]
    )
    say(f"answers within the nearest lists of {result['lists']}, k-means -> learned: {shown}")
