"""Codes for vectors that already exist: how many of the right candidates each kind of code finds.

python bench/frozen.py docs.npy questions.npy --bytes-per-doc 8 16 --query-ids ids.txt --ids ids.txt --qrels train.tsv \
    --test-qrels test.tsv

Questions to learn from are those judged in --qrels, questions to measure those in --test-qrels; without these files the
last fifth of the questions is measured and the rest learned from. Labels are used by the rows that say so alone.
"""

import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import faiss
import numpy as np
import tyro
from tyro.conf import Positional

from bidr.data.vector_ids import label_rows, read_ids, read_judgments
from bidr.data.vector_source import VectorSource, open_vectors
from bidr.index.builder.in_memory_engines import make_scan
from bidr.quantization.exact_search import search_codes, search_vectors
from bidr.quantization.pq_training import fit_pq
from bidr.training.codes_only.candidate_recall import compute_found_share
from bidr.training.codes_only.train import train_codes_only
from bidr.training.config import CodesOnlyConfig, TrainConfig

DEPTHS, TOPS, LSQ_ROWS = (200, 1_000), (10, 100), 8_192
Row = Literal["opq", "faiss-opq", "rq", "lsq", "rabitq", "frozen", "frozen-labels", "frozen-few", "frozen-none"]


class Given(NamedTuple):
    """What is learned from, and the vectors of the questions that are measured."""

    documents: VectorSource
    questions: VectorSource
    labels: dict[int, list[int]]
    asked: np.ndarray


class Asked(NamedTuple):
    """The questions that are measured: vectors, what full vectors rank first, labelled rows."""

    vectors: np.ndarray
    best: np.ndarray
    labelled: np.ndarray


def main(
    vectors: Positional[Path],
    questions: Positional[Path],
    bytes_per_doc: tuple[int, ...] = (8,),
    rows: tuple[Row, ...] = ("faiss-opq", "rq", "lsq", "rabitq", "frozen", "frozen-labels"),
    metric: Literal["cosine", "ip"] = "cosine",
    ids: Path | None = None,
    query_ids: Path | None = None,
    qrels: Path | None = None,
    test_qrels: Path | None = None,
    few: int = 500,
    most: int | None = None,
    codewords: tuple[Literal[256, 16], ...] = (256,),
    seeds: tuple[int, ...] = (0,),
    keep: Path | None = None,
    settings: CodesOnlyConfig = CodesOnlyConfig(),  # noqa: B008
) -> None:
    """most:     measure on so many of the questions at most (to choose settings quickly).
    codewords: of learned codes, in a book; seeds: theirs.
    keep:      a folder for the learned models; one that is there already is taken as it is.
    """
    documents, asked = open_vectors(vectors, "vectors", metric), open_vectors(questions, "questions", metric)
    names, askers = read_ids(ids, len(documents), "documents"), read_ids(query_ids, len(asked), "questions")
    parts = [label_rows(read_judgments(path), askers, names, str(path)) for path in (qrels, test_qrels) if path]
    cut = len(asked) * 4 // 5
    apart = [{row: [] for row in part} for part in (range(cut), range(cut, len(asked)))]
    train, test = parts if len(parts) == 2 else apart
    measured = measured_by(documents, asked, {row: test[row] for row in list(test)[:most]}, len(train))
    again = {old: new for new, old in enumerate(sorted(train))}
    own = VectorSource(asked.array[np.array(list(again))], "questions", metric)
    given = Given(documents, own, {again[row]: found for row, found in train.items()}, measured.vectors)
    for size in bytes_per_doc:
        for row in rows:
            for words, seed in [(w, s) for w in codewords for s in seeds] if row.startswith("frozen") else [(256, 0)]:
                started, cpu = time.perf_counter(), time.process_time()
                if row.startswith("frozen"):
                    config = TrainConfig(bytes_per_doc=size, codewords=words, seed=seed, frozen=settings)
                    used, found = size, learned_candidates(row, given, config, few, keep)
                else:
                    used, found = fitted_candidates(row, size, given)
                name = row + (f", {words} words" if words != 256 else "") + (f", seed {seed}" if seed else "")
                show(name, used, found, measured, time.perf_counter() - started, time.process_time() - cpu)


def measured_by(documents: VectorSource, asked: VectorSource, test: dict[int, list[int]], learned: int) -> Asked:
    """The questions that are measured, with what exact search finds for them, which is shown."""
    started, rows = time.perf_counter(), np.array(list(test))
    best = search_vectors(asked[rows], documents, max(DEPTHS)).rows
    widest = max(1, *map(len, test.values()))
    labelled = np.array([found + [-1] * (widest - len(found)) for found in test.values()])
    measured = Asked(asked[rows], best, labelled)
    print(f"{len(documents):,} documents, {documents.dim} dimensions; {learned:,} questions, {len(best):,} measured")
    print("| codes | bytes | top 10 @200 | @1000 | top 100 @200 | @1000 | labelled @200 | @1000 | seconds (CPU) |")
    print("|---|---|---|---|---|---|---|---|---|")
    show("exact", 0, best, measured, time.perf_counter() - started, 0.0)
    return measured


def show(name: str, size: int, found: np.ndarray, asked: Asked, seconds: float, cpu: float) -> None:
    shares = [compute_found_share(found[:, :depth], asked.best[:, :top]) for top in TOPS for depth in DEPTHS]
    if (asked.labelled >= 0).any():
        shares += [compute_found_share(found[:, :depth], asked.labelled) for depth in DEPTHS]
    cells = [f"{share:.3f}" for share in shares] + ["-"] * (6 - len(shares))
    print(f"| {name} | {size or '-'} | {' | '.join(cells)} | {seconds:.0f} ({cpu:.0f}) |", flush=True)


def fitted_candidates(row: Row, size: int, given: Given) -> tuple[int, np.ndarray]:
    """Bytes used, and the candidates of the measured questions."""
    depth, documents = max(DEPTHS), given.documents
    if row == "opq":
        books = fit_pq(documents[np.arange(len(documents))[:: max(1, len(documents) // 20_000)]], size)
        return size, search_codes(given.asked, books, books.encode(documents[:]), depth).rows
    return faiss_candidates(row, size, documents, given.asked, depth)


def learned_candidates(row: Row, given: Given, config: TrainConfig, few: int, keep: Path | None) -> np.ndarray:
    """The candidates of codes that `bidr train --vectors` learns."""
    documents, questions = given.documents, given.questions
    if row != "frozen-labels":
        config = replace(config, frozen=replace(config.frozen, label_weight=0.0))
    some = questions if row != "frozen-few" else VectorSource(questions.array[:few], "questions", questions.metric)
    folder = Path(tempfile.mkdtemp())
    name = f"{row}-{config.bytes_per_doc}-{config.codewords}-{config.seed}"
    try:
        model = train_codes_only(
            documents,
            None if row == "frozen-none" else some,
            config,
            (keep or folder) / name,
            given.labels if row == "frozen-labels" else {},
        )
        scan = make_scan(model.codebooks, model.additive.encode(documents))
        return scan.search(model.adapt(given.asked), max(DEPTHS))[1]
    finally:
        shutil.rmtree(folder)


def faiss_candidates(
    row: str, size: int, documents: VectorSource, asked: np.ndarray, depth: int
) -> tuple[int, np.ndarray]:
    """OPQ, residual (beam of 5), local-search codes and RaBitQ of Faiss, by inner product, with its own defaults."""
    dim, everything, product = documents.dim, documents[:], faiss.METRIC_INNER_PRODUCT
    if row == "rabitq":
        # One bit a dimension and two factors of 4 bytes: what does not fit is cut off by principal axes. Of 8 bytes
        # nothing would be left for bits: the least it can be is 9.
        kept = min(dim, max(1, size - 8) * 8)
        inner = faiss.IndexRaBitQ(kept, product)
        index = faiss.IndexPreTransform(faiss.PCAMatrix(dim, kept, 0, True), inner) if kept < dim else inner
        if kept == dim:
            index = faiss.IndexPreTransform(faiss.RandomRotationMatrix(dim, dim), inner)
        size = inner.code_size
    else:
        names = {"faiss-opq": f"OPQ{size},PQ{size}", "rq": f"RQ{size}x8", "lsq": f"LSQ{size}x8"}
        index = faiss.index_factory(dim, names[row], product)
    # Local search takes a hundred times as long to train as residual codes.
    index.train(everything[:: max(1, len(everything) // (LSQ_ROWS if row == "lsq" else 65_536))])
    index.add(everything)
    return size, index.search(asked, depth)[1]


if __name__ == "__main__":
    tyro.cli(main)
