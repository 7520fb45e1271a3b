"""Where learning of codes for vectors begins: fits with several query metrics, Faiss's residual codes, and learning.

python bench/initializations.py docs.npy questions.npy --ids ids.txt --query-ids ids.txt --qrels train.tsv \
    --dev-qrels dev.tsv --documents 60000

Fits and learned codes are measured on dev questions, which are not learned from. Labels are not learned from either.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import faiss
import numpy as np
import tyro
from tyro.conf import Positional

from bidr.data.vector_ids import label_rows, read_ids, read_judgements
from bidr.data.vector_source import VectorSource, open_vectors
from bidr.quantization import additive_quantizer
from bidr.quantization.exact_search import search_vectors
from bidr.training.codes_only import initialization
from bidr.training.codes_only.candidate_recall import compute_found_share, search_candidates
from bidr.training.codes_only.data import SourceVectors, prepare_distillation
from bidr.training.codes_only.ranking_distillation import CodesLearner, Distillation
from bidr.training.codes_only.train import make_distillation_settings
from bidr.training.config import CodesOnlyConfig, TrainConfig

DEPTH, TOP, MEASURED = 200, 10, 1_000


class DevQuestions(NamedTuple):
    """Dev questions, their exact top rows and labeled rows."""

    vectors: np.ndarray
    best: np.ndarray
    labelled: np.ndarray


def main(
    vectors: Positional[Path],
    questions: Positional[Path],
    ids: Path,
    query_ids: Path,
    qrels: Path,
    dev_qrels: Path,
    documents: int | None = None,
    exponents: tuple[float, ...] = (0.0, 0.5),
    bytes_per_doc: int = 8,
    fit_rows: int = 30_000,
    steps: tuple[int, ...] = (0, 200, 400),
    peers: bool = True,
) -> None:
    """documents: measure on so many, labeled ones first; steps: of learning, at which codes are measured.

    peers: measure Faiss's residual codes (beam of 5) too, fitted to as many documents.
    """
    additive_quantizer.FIT_ROWS[256] = fit_rows
    corpus, asked = open_vectors(vectors, "vectors", "cosine"), open_vectors(questions, "questions", "cosine")
    names, askers = read_ids(ids, len(corpus), "documents"), read_ids(query_ids, len(asked), "questions")
    train, dev = (label_rows(read_judgements(path), askers, names, str(path)) for path in (qrels, dev_qrels))
    rows = draw_rows(len(corpus), [row for part in (train, dev) for found in part.values() for row in found], documents)
    source = VectorSource(corpus[rows], "documents", "cosine")
    learned_from = VectorSource(asked[np.array(sorted(train))], "questions", "cosine")
    measured = prepare_dev(source, asked, dict(list(dev.items())[:MEASURED]), rows)
    print(f"{len(source):,} documents, {source.dim} dimensions, {len(measured.vectors):,} dev questions")
    print("| codes | top 10 @200 | @50 | @10 | labeled @200 | CPU seconds |\n|---|---|---|---|---|---|")
    if peers:
        show_faiss(source[:], measured, bytes_per_doc, fit_rows)
    config = TrainConfig(bytes_per_doc=bytes_per_doc, frozen=CodesOnlyConfig(label_weight=0.0))
    prepared = prepare_distillation(SourceVectors(source, learned_from), {}, config)
    for exponent in exponents:
        started = time.process_time()
        learner = CodesLearner(*initialization._fit(prepared, config, "cpu", exponent))
        settings = make_distillation_settings(prepared.lessons, replace(config))
        distillation = Distillation(learner, prepared.lessons, settings)
        seconds = time.process_time() - started
        for step in range(max(steps) + 1):
            if step in steps:
                show(
                    f"exponent {exponent:g}, {step} steps",
                    search_candidates(learner, measured.vectors, DEPTH),
                    measured,
                    seconds,
                )
            started = time.process_time()
            distillation.train_step()
            seconds += time.process_time() - started


def draw_rows(count: int, labelled: list[int], limit: int | None) -> np.ndarray:
    """Labeled rows and random others, `limit` in all."""
    if limit is None or limit >= count:
        return np.arange(count)
    needed = np.unique(labelled)[:limit]
    others = np.random.default_rng(1).permutation(count)
    return np.sort(np.concatenate([needed, others[~np.isin(others, needed)][: limit - len(needed)]]))


def prepare_dev(source: VectorSource, asked: VectorSource, dev: dict[int, list[int]], rows: np.ndarray) -> DevQuestions:
    places = {row: place for place, row in enumerate(rows.tolist())}
    widest = max(map(len, dev.values()))
    labelled = [[places.get(row, -1) for row in found] + [-1] * (widest - len(found)) for found in dev.values()]
    queries = asked[np.array(list(dev))]
    return DevQuestions(queries, search_vectors(queries, source, TOP).rows, np.array(labelled))


def show_faiss(documents: np.ndarray, measured: DevQuestions, size: int, fit_rows: int) -> None:
    started = time.process_time()
    index = faiss.IndexResidualQuantizer(documents.shape[1], size, 8, faiss.METRIC_INNER_PRODUCT)
    index.train(documents[:: max(1, len(documents) // fit_rows)])
    index.add(documents)
    seconds = time.process_time() - started
    show("residual (Faiss)", index.search(measured.vectors, DEPTH)[1], measured, seconds)


def show(name: str, found: np.ndarray, measured: DevQuestions, seconds: float) -> None:
    shares = [compute_found_share(found[:, :depth], measured.best) for depth in (200, 50, 10)]
    shares.append(compute_found_share(found, measured.labelled))
    print(f"| {name} | {' | '.join(f'{share:.3f}' for share in shares)} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    tyro.cli(main)
