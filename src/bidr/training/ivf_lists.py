"""Learned IVF lists: initialization by k-means, loading, and dev measurement."""

import json
from functools import cache
from statistics import mean
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.models.trainable_encoder import Encoder
from bidr.quantization.learned_ivf import IvfAssignment, LearnedIvf, assign_to_lists, measure_probes
from bidr.training.losses.shared_query_encoder import LISTS
from bidr.training.mining import CodedEncoder
from bidr.training.run_context import TrainingRun
from bidr.utils.files import write_json
from bidr.utils.progress import say

MEASURED = "lists.json"
PROBES = (1, 2, 4, 8, 16, 32)
DOCUMENTS_PER_LIST = 8
UNLEARNED = "k-means, with the learned query encoder"


def fit_initial_lists(run: TrainingRun, coded: CodedEncoder, codes: npt.NDArray[Any]) -> IvfAssignment | None:
    """Fit IVF lists by k-means, at most one per DOCUMENTS_PER_LIST documents; None if unify.lists is 0."""
    count = min(run.config.unify.lists, max(1, len(codes) // DOCUMENTS_PER_LIST))
    if not count:
        return None

    @cache
    def fit_lists() -> IvfAssignment:
        return assign_to_lists(coded.codebooks, codes, count, seed=run.config.seed, device=run.device)

    # Cached: k-means on another machine may differ, and the checkpoint's centroids belong to these assignments.
    name = f"lists-{count}{coded.name.removeprefix('sparse')}"
    centroids = run.cache_array(f"{name}-centroids", lambda: fit_lists().centroids)
    return IvfAssignment(np.array(centroids), np.array(run.cache_array(f"{name}-of", lambda: fit_lists().of)))


def load_learned_lists(run: TrainingRun, coded: CodedEncoder) -> LearnedIvf | None:
    """Load the lists of a finished stage, with the centroids that are better on dev, or None."""
    path = run.folder / coded.name / LISTS
    if not path.exists():
        return None
    measured = json.loads((run.folder / coded.name / MEASURED).read_text())
    with np.load(path) as saved:
        centroids = saved["means" if measured.get("used") == "k-means" else "learned"]
        return LearnedIvf.from_rotated(coded.codebooks, saved["means"], centroids)


def measure_lists(run: TrainingRun, coded: CodedEncoder, first: Encoder) -> None:
    """Write dev recall by nprobe to lists.json, for k-means and for the learned lists, and which are used.

    The stage is selected by answers of a full scan, which says nothing about the lists: the learned centroids may be
    worse than those of k-means, which are then used.
    """
    path = run.folder / coded.name / MEASURED
    if path.exists():
        return
    with np.load(run.folder / coded.name / LISTS) as saved:
        means, learned = IvfAssignment(saved["means"], saved["of"]), IvfAssignment(saved["learned"], saved["of"])
    dev = run.data.dev
    positives = dev.pairs.list_edges(np.arange(len(dev.pairs)))
    result: dict[str, Any] = {"lists": len(means.centroids)}
    sides = (("k-means", first, means), ("learned", coded.encoder, learned), (UNLEARNED, coded.encoder, means))
    for name, encoder, lists in sides:
        queries = coded.codebooks.rotate(run.validator.encode_queries(encoder))
        result[name] = {
            str(probes): measure_probes(queries, lists, positives, probes)._asdict()
            for probes in PROBES
            if probes <= len(means.centroids)
        }
    recalls = {name: mean(stats["recall"] for stats in result[name].values()) for name in ("learned", UNLEARNED)}
    result["used"] = "k-means" if recalls[UNLEARNED] > recalls["learned"] else "learned"
    write_json(path, result)
    summary = ", ".join(
        f"{probes}: {result['k-means'][probes]['recall']:.3f} -> {result['learned'][probes]['recall']:.3f}"
        for probes in result["learned"]
    )
    say(f"recall by nprobe among {result['lists']}, k-means -> learned: {summary}; used: {result['used']}")
