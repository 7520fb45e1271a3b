"""A file of scores to learn from where no cross-encoder is at hand: BM25 of question and whole document.

python bench/lexical_teacher.py --data FOLDER --out scores.tsv [--depth 20] [--config.seed 0]

Scores are multiplied by the number with which their softmax predicts the labels of the train questions best, so that
`--distil.scale` can stay at 1. Then: bidr train --data FOLDER --recipe bidr-taught --distil.teacher scores.tsv
Positives that are not among the best 200 have no score. Questions set aside for dev have none either.
"""

import time
from pathlib import Path

import numpy as np
import tyro

import bidr
from bidr.training.config import TrainConfig
from bidr.training.data import make_pairs, read_splits
from bidr.training.negatives.bm25_search import Bm25

SEEN = 200
SCALES = np.geomspace(0.005, 5, 61)


def main(data: str, out: Path, config: TrainConfig, depth: int = 20) -> None:
    dataset = bidr.load(data)
    splits = read_splits(dataset, config.dev_queries, config.seed)
    pairs, ids = make_pairs(splits.train, splits.ids), [one.id for one in dataset.corpus]
    began = time.process_time()
    engine = Bm25(dataset.corpus.iter_texts(config.text.titles))
    found = engine.search([one.text for one in splits.train.queries], SEEN)
    spent = time.process_time() - began
    own, others = [], []
    for query in range(len(pairs)):
        mine = np.isin(found.rows[query], pairs.get_rows(query))
        own.append(np.flatnonzero(mine))
        others.append(np.flatnonzero(~mine & (found.rows[query] >= 0))[:depth])
    fits = [_misfit(found.scores, own, others, scale) for scale in SCALES]
    scale = float(SCALES[int(np.argmin(fits))])
    with out.open("w", encoding="utf-8") as file:
        file.write("query-id\tcorpus-id\tscore\n")
        for query, places in enumerate(zip(own, others, strict=True)):
            for place in np.concatenate(places).tolist():
                row, score = found.rows[query, place], scale * found.scores[query, place]
                file.write(f"{splits.train.queries[query].id}\t{ids[row]}\t{score:.4f}\n")
    above = sum(int((b < a.min()).sum()) for a, b in zip(own, others, strict=True) if len(a))
    print(f"{len(pairs):,} questions, {sum(map(len, others)):,} negatives and {sum(map(len, own)):,} positives")
    print(f"scale {scale:.3f}; loss {min(fits):.3f}; {above / sum(map(len, others)):.1%} of the negatives before the")
    print(f"question's first positive; {spent:.1f} s of CPU")


def _misfit(scores: np.ndarray, own: list[np.ndarray], others: list[np.ndarray], scale: float) -> float:
    """Mean cross-entropy of a question's positive among it and the negatives."""
    losses = []
    for query, (mine, rest) in enumerate(zip(own, others, strict=True)):
        for place in mine:
            logits = scale * scores[query, np.concatenate([[place], rest]).astype(np.int64)].astype(np.float64)
            losses.append(np.logaddexp.reduce(logits) - logits[0])
    return float(np.mean(losses))


if __name__ == "__main__":
    tyro.cli(main)
