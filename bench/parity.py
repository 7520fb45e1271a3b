"""What 8-bit query encoders cost in answers: measures of the same questions by the whole encoder and by 8 bits, paired.

python bench/parity.py --index INDEX --data FOLDER [--split test] [--questions 1000]
"""

from itertools import islice
from pathlib import Path

import numpy as np
import tyro

from bidr.data.dataset import load
from bidr.index.live.live_reader import LiveIndex
from bidr.pipeline.open import open_index_model
from bidr.search.evaluation import compare_paired, evaluate_run, rank_run
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors
from bidr.server.encoding.service import EncodingConfig, QueryService, choose_encoders

MEASURES = ("R@10", "R@100", "MRR@10")
AT_ONCE, N = 16, 1_000


def main(index: Path, data: str, split: str = "dev", questions: int = 1_000, model: Path | None = None) -> None:
    """The first questions of a split with judgments."""
    opened, given = open_index_model(index, model), load(data).split(split)
    asked = list(islice(given.queries, questions))
    searcher = Searcher(LiveIndex.open(index))
    found = {}
    for program in ("onnx", "int8"):
        encoding = EncodingConfig(program=program)
        service = QueryService(choose_encoders(opened, index, encoding)[0], encoding)
        parts = [
            service.encode_now([query.text for query in asked[at : at + AT_ONCE]])
            for at in range(0, len(asked), AT_ONCE)
        ]
        service.close()
        vectors = QueryVectors(*(np.concatenate(side) for side in zip(*parts, strict=True)))
        ranking = searcher.search_vectors(vectors, 100, N)
        known = searcher.reader.latest().documents
        names = {query.id: known.ids(own[own >= 0]) for query, own in zip(asked, ranking.rows, strict=True)}
        qrels = {query.id: given.qrels[query.id] for query in asked}
        found[program] = evaluate_run(rank_run(names), qrels, MEASURES)
    print(f"{len(asked)} questions of {split}, N = {N}: whole, 8 bits, difference, its 95 % interval")
    for name in MEASURES:
        whole, small = (found[program] for program in ("onnx", "int8"))
        apart = compare_paired(small.per_query[name], whole.per_query[name])
        told = (whole.mean[name], small.mean[name], apart.difference, apart.low, apart.high)
        print(f"{name:<7}", *(f"{number:8.4f}" for number in told))


if __name__ == "__main__":
    tyro.cli(main)
