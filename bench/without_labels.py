"""Codes without labels: exact search beside plain OPQ, and codes learned from passages, from documents and from labels.

python bench/without_labels.py FOLDER --encoder wordllama --bytes-per-doc 8 16 32 --work DIR

FOLDER is a dataset with train and test queries; --vectors gives document vectors of the encoder that exist already.
Passages are what `bidr build --learn` draws. "Top 10": share of the ten best documents by full vectors among the
candidates; "R@10": share of the relevant documents among the first ten after candidates are ranked by full vectors.
"""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import tyro
from tyro.conf import Positional

from bidr.data.dataset import Dataset, load
from bidr.data.vector_source import VectorSource
from bidr.index.builder.in_memory_engines import make_scan
from bidr.models.corpus_encoding import encode_corpus
from bidr.models.corpus_tokens import tokenize_corpus
from bidr.pipeline.index_encoder import IndexEncoder, open_index_encoder
from bidr.pipeline.passages import draw_passages
from bidr.quantization.exact_search import search_vectors
from bidr.quantization.opq_config import PlainCodes
from bidr.training.codes_only.candidate_recall import compute_found_share
from bidr.training.codes_only.train import train_codes_only
from bidr.training.config import TrainConfig

DEPTHS, TOP = (50, 200), 10
Row = Literal["opq", "opq-256", "documents", "passages", "labels"]


class Queries(NamedTuple):
    """Query vectors and the rows of their relevant documents."""

    vectors: np.ndarray
    relevant: list[list[int]]


class Vectors(NamedTuple):
    """Everything that is encoded, before codes are made."""

    documents: VectorSource
    passages: np.ndarray
    train: Queries
    test: Queries


def main(
    data: Positional[Path],
    work: Path,
    encoder: str = "wordllama",
    bytes_per_doc: tuple[int, ...] = (8, 16, 32),
    rows: tuple[Row, ...] = ("opq", "opq-256", "documents", "passages", "labels"),
    vectors: Path | None = None,
    limit: int | None = None,
    json_file: Path | None = None,
) -> None:
    """limit: measure on so many test queries at most."""
    dataset, opened = load(data), open_index_encoder(encoder)
    encoded = encode_all(dataset, opened, work / f"{data.name}-{opened.reference.fingerprint[:8]}", vectors, limit)
    documents, test = encoded.documents, encoded.test
    best = search_vectors(test.vectors, documents, max(DEPTHS)).rows
    print(f"{data.name}, {encoder}: {len(documents):,} documents of {documents.dim} dimensions, {len(best):,} queries")
    print("| codes | bytes | top 10 @50 | top 10 @200 | R@10 of 200 | CPU seconds |")
    print("|---|---|---|---|---|---|")
    results = [show("exact", 0, best, best, encoded, 0.0)]
    for size in bytes_per_doc:
        for row in rows:
            started = time.process_time()
            candidates = find_candidates(
                row, size, encoded, work / f"{data.name}-{encoder.replace('/', '-')}-{row}-{size}"
            )
            results.append(show(row, size, candidates, best, encoded, time.process_time() - started))
    if json_file:
        json_file.write_text(json.dumps({"data": data.name, "encoder": encoder, "rows": results}, indent=2) + "\n")


def encode_all(dataset: Dataset, opened: IndexEncoder, work: Path, given: Path | None, limit: int | None) -> Vectors:
    """Encode documents, passages, train and test queries; kept in `work`."""
    work.mkdir(parents=True, exist_ok=True)
    reference, corpus = opened.reference, dataset.corpus
    if given is None:
        tokens = tokenize_corpus(
            dataset, opened.encoder, work / "tokens", titles=opened.titles, max_length=reference.max_length
        )
        array = encode_corpus(opened.encoder, tokens, work / "documents.npy")
    else:
        array = np.load(given, mmap_mode="r")
    row_of = {name: row for row, name in enumerate(corpus.iter_ids())}

    def encode_split(name: str, most: int | None) -> Queries:
        split = dataset.split(name)
        path, queries = work / f"{name}.npy", split.queries[:most]
        if not path.exists():
            np.save(path, opened.encode_queries([query.text for query in queries]))
        relevant = [[row_of[doc] for doc, score in split.qrels[query.id].items() if score > 0] for query in queries]
        return Queries(VectorSource(np.load(path), name, "cosine")[:], relevant)

    path = work / "passages.npy"
    if not path.exists():
        np.save(path, opened.encode_queries(draw_passages(corpus, corpus.count(), opened, 0)))
    return Vectors(
        VectorSource(array, "documents", "cosine"),
        np.load(path),
        encode_split("train", 10_000),
        encode_split("test", limit),
    )


def find_candidates(row: Row, size: int, encoded: Vectors, folder: Path) -> np.ndarray:
    """Find the candidates of the test queries by codes of one kind."""
    documents, queries = encoded.documents, encoded.test.vectors
    if row in ("opq", "opq-256"):
        codebooks = PlainCodes(size, 256 if row == "opq-256" else 16).fit(documents)
        codes = codebooks.encode(documents[:])
    else:
        config = TrainConfig(bytes_per_doc=size)
        questions, labels = None, None
        if row == "passages":
            questions = VectorSource(encoded.passages, "passages", "cosine")
        elif row == "labels":
            questions = VectorSource(encoded.train.vectors, "train queries", "cosine")
            labels = dict(enumerate(encoded.train.relevant))
            config = replace(config, frozen=replace(config.frozen, questions=len(questions)))
        model = train_codes_only(documents, questions, config, folder, labels)
        codebooks = model.additive.to_adapted_codebooks()
        codes = model.additive.encode(documents)
    return np.asarray(make_scan(codebooks, codes).search(queries, max(DEPTHS))[1])


def show(
    row: str, size: int, candidates: np.ndarray, best: np.ndarray, encoded: Vectors, seconds: float
) -> dict[str, object]:
    """Print a row of the table, and return it."""
    figures = {f"top 10 @{depth}": compute_found_share(candidates[:, :depth], best[:, :TOP]) for depth in DEPTHS}
    relevant = encoded.test.relevant
    widest = max(map(len, relevant))
    table = np.array([rows + [-1] * (widest - len(rows)) for rows in relevant])
    ranked = rank_by_vectors(candidates, encoded)
    figures["R@10"] = compute_found_share(ranked, table)
    cells = " | ".join(f"{value:.3f}" for value in figures.values())
    print(f"| {row} | {size or '-'} | {cells} | {seconds:.0f} |", flush=True)
    return {"codes": row, "bytes": size, **figures, "cpu_seconds": round(seconds, 1)}


def rank_by_vectors(candidates: np.ndarray, encoded: Vectors) -> np.ndarray:
    """Rank candidates by full vectors; the first ten."""
    ranked = []
    for rows, query in zip(candidates, encoded.test.vectors, strict=True):
        order = np.sort(rows[rows >= 0])
        scores = encoded.documents[order] @ query
        ranked.append(order[np.argsort(-scores, kind="stable")[:TOP]])
    return np.array(ranked)


if __name__ == "__main__":
    tyro.cli(main)
