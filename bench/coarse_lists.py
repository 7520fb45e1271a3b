"""What lists that a model learned give in an index, beside lists by k-means: answers found against documents visited.

bidr train --data DATA --out RUN --recipe bidr-lists
python bench/coarse_lists.py --data DATA --model RUN --work FOLDER --split test

Three indexes of the same codes and vectors: lists by k-means, as many as an index makes; the model's lists, visited by
their means; the model's lists, visited by their learned centroids. Queries are the model's in all three, so that only
the lists differ. "candidates": the share of the answers among N candidates; "R@100": what their vectors leave of it.
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
                engine = lists_of(searcher)
                engine.nprobe = max(1, round(share * engine.list_count))
                report = evaluate(searcher, dataset.split(split), ("R@100",), candidates=candidates)
                seen = documents_visited(engine, queries, candidates)
            each = report.per_query["R@100"]
            base.setdefault(share, each)
            gain = compare_paired(each, base[share])
            figures = f"candidates {report.candidate_recall:.4f}  R@100 {report.measures['R@100']:.4f}"
            against = f"{gain.difference:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}]"
            print(
                f"{name:<8} {share:4.0%} of {engine.list_count}  documents {seen:6.2%}  {figures}  {against}",
                flush=True,
            )
    say("documents: the share of the corpus in the lists that a query visits; last: R@100 against k-means")


def lists_of(searcher: OpenIndex) -> IvfEngine:
    engine = searcher.reader.latest().parts[0].open.reader.candidates
    assert isinstance(engine, IvfEngine)
    return engine


def documents_visited(engine: IvfEngine, queries: np.ndarray, candidates: int) -> float:
    """The mean share of the corpus that is compared with a query."""
    sizes, visits = np.diff(engine.offsets), engine.nprobe or 1
    return float(
        np.mean([sizes[engine.select_lists(query, visits, sizes, candidates)].sum() for query in queries])
        / engine.count
    )


if __name__ == "__main__":
    tyro.cli(main)
