"""Learned IVF lists of a model against k-means lists: recall by documents visited.

bidr train --data DATA --out RUN --recipe bidr-lists
python bench/coarse_lists.py --data DATA --model RUN --work FOLDER --split test

Three indexes of the same codes, vectors and queries: the default number of k-means lists; the model's lists, probed by
their means; the model's lists, probed by their learned centroids. "candidates": recall of the N candidates; "R@100":
recall after ranking by vectors.
"""

from pathlib import Path

import numpy as np
import tyro

from bidr import evaluate
from bidr.data.dataset import load
from bidr.index.engines.ivf import IvfEngine
from bidr.models.saved_model import Model
from bidr.pipeline.build import build
from bidr.pipeline.open import OpenIndex, open_index
from bidr.quantization.learned_ivf import LearnedIvf
from bidr.search.evaluation import compare_paired
from bidr.utils.progress import say

SHARES = (0.05, 0.1, 0.2, 0.4, 1.0)


def main(data: Path, model: Path, work: Path, split: str = "test", candidates: int = 200) -> None:
    """Print a line for every index and share of its lists."""
    dataset, opened = load(data), Model(model)
    learned = opened.lists
    if learned is None:
        raise SystemExit(f"{model} has no lists; train it with --unify.lists")
    texts = [query.text for query in dataset.split(split).queries]
    queries = opened.encode_queries(texts)[0]
    base: dict[float, dict[str, float]] = {}
    for name, lists in (("k-means", None), ("means", LearnedIvf(learned.means, learned.means)), ("learned", learned)):
        opened.lists = lists
        build(dataset, opened, work / name, engine="lists")
        for share in SHARES:
            with open_index(work / name, model) as searcher:
                engine = get_engine(searcher)
                engine.nprobe = max(1, round(share * engine.list_count))
                report = evaluate(searcher, dataset.split(split), ("R@100",), candidates=candidates)
                visited = measure_visited_share(engine, queries, candidates)
            per_query = report.per_query["R@100"]
            base.setdefault(share, per_query)
            gain = compare_paired(per_query, base[share])
            figures = f"candidates {report.candidate_recall:.4f}  R@100 {report.measures['R@100']:.4f}"
            interval = f"{gain.difference:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}]"
            print(
                f"{name:<8} {share:4.0%} of {engine.list_count}  documents {visited:6.2%}  {figures}  {interval}",
                flush=True,
            )
    say("documents: the share of the corpus in the lists that a query visits; last: R@100 against k-means")


def get_engine(searcher: OpenIndex) -> IvfEngine:
    engine = searcher.reader.latest().segments[0].reader.candidates
    assert isinstance(engine, IvfEngine)
    return engine


def measure_visited_share(engine: IvfEngine, queries: np.ndarray, candidates: int) -> float:
    """Return the mean share of the corpus that a query is compared with."""
    sizes, nprobe = np.diff(engine.offsets), engine.nprobe or 1
    return float(
        np.mean([sizes[engine.select_lists(query, nprobe, sizes, candidates)].sum() for query in queries])
        / engine.count
    )


if __name__ == "__main__":
    tyro.cli(main)
