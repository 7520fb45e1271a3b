"""Codes, words and both as what brings up candidates, at the same number of documents read.

python bench/lexical.py DATA MODEL INDEX --split dev --weights 0.1 0.2 0.4

MODEL is what `bidr train --data DATA` left; INDEX is built with its words where it is not there yet.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tyro
from tyro.conf import Positional

from bidr.data.dataset import Split, load
from bidr.index.live.lexical_search import LiveLexicalSearcher
from bidr.pipeline.build import build
from bidr.pipeline.open import open_index
from bidr.search.evaluation import compute_candidate_recall, evaluate_run, rank_run
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors

MEASURES, ANSWERS, BATCH = ("R@10", "R@100"), 100, 64
HEAD = "| candidates | ranked by | read | relevant among them | R@10 | R@100 | CPU ms |"


class Found(NamedTuple):
    """Rows of the answers and of the candidates of some questions, -1 for none."""

    answers: np.ndarray
    candidates: np.ndarray


Ask = Callable[[QueryVectors, list[str]], Found]


def main(
    data: Positional[str],
    model: Positional[Path],
    index: Positional[Path],
    split: str = "dev",
    read: int = 200,
    weights: tuple[float, ...] = (),
) -> None:
    """read: how many documents are read from disk for a question; half of them by words in the joined rows."""
    dataset = load(data)
    if not (index / "CURRENT").exists():
        build(dataset, model, index, lexical=True, device="cpu")
    judged = dataset.split(split)
    with open_index(index) as searcher:
        print(f"{data.rstrip('/').split('/')[-1]}, {split}: {len(judged.queries):,} questions")
        print(f"{HEAD}\n|{'---|' * (HEAD.count('|') - 1)}")
        show("codes", "vectors", judged, searcher, joined(searcher, read, 0))
        show("words", "BM25", judged, searcher, words_alone(searcher, read, by_vectors=False))
        show("words", "vectors", judged, searcher, words_alone(searcher, read, by_vectors=True))
        for weight in (0.0, *weights):
            name = "vectors" + (f" + {weight} BM25" if weight else "")
            show("both", name, judged, searcher, joined(searcher, read - read // 2, read // 2, weight))


def joined(searcher: Searcher, codes: int, words: int, weight: float = 0.0) -> Ask:
    own = Searcher(searcher.reader, None, codes, lexical=words, lexical_weight=weight)

    def ask(queries: QueryVectors, texts: list[str]) -> Found:
        ranking = own.search_vectors(queries, min(ANSWERS, codes), words=texts)
        return Found(ranking.rows, ranking.candidate_rows)

    return ask


def words_alone(searcher: Searcher, count: int, *, by_vectors: bool) -> Ask:
    view = searcher.reader.latest()

    def ask(queries: QueryVectors, texts: list[str]) -> Found:
        places = LiveLexicalSearcher(view).search(texts, count).places
        order = np.broadcast_to(np.arange(count), places.shape)
        if by_vectors:
            scores = np.full(places.shape, -np.inf, dtype=np.float32)
            for number, there in enumerate(places >= 0):
                scores[number, there] = view.vectors.score(places[number, there], queries.vectors[number])
            order = np.argsort(-scores, axis=1, kind="stable")
        rows = view.rows_of(places)
        return Found(np.take_along_axis(rows, order, axis=1)[:, :ANSWERS], rows)

    return ask


def show(candidates: str, ranked: str, judged: Split, searcher: Searcher, ask: Ask) -> None:
    """One row of the table; CPU milliseconds are those of a question without encoding it."""
    documents, queries, seconds = searcher.reader.latest().documents, judged.queries, 0.0
    answers, brought = dict[str, list[str]](), dict[str, list[str]]()
    for start in range(0, len(queries), BATCH):
        texts = [query.text for query in queries[start : start + BATCH]]
        encoded, _ = searcher.encode(texts)
        if not start:
            ask(encoded, texts)  # what is compiled is not counted
        before = time.process_time()
        found = ask(encoded, texts)
        seconds += time.process_time() - before
        for number, query in enumerate(queries[start : start + BATCH]):
            ids = (documents.ids(rows[number][rows[number] >= 0]) for rows in found)
            answers[query.id], brought[query.id] = ids
    scores = evaluate_run(rank_run(answers), judged.qrels, MEASURES).mean
    read = np.mean([len(ids) for ids in brought.values()])
    shares = (compute_candidate_recall(brought, judged.qrels), *scores.values())
    cells = " | ".join(f"{share:.4f}" for share in shares)
    print(f"| {candidates} | {ranked} | {read:.0f} | {cells} | {1000 * seconds / len(queries):.2f} |", flush=True)


if __name__ == "__main__":
    tyro.cli(main)
