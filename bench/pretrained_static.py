"""The built-in encoder from random and from pretrained token vectors, after the warm-up: exact search on dev.

python bench/pretrained_static.py --data FOLDER --out DIR [--starts built-in wordllama wordllama:pretrained] \
    [--split dev] [--config.warmup.epochs 3 ...]

A start is a backbone; ':pretrained' keeps its own tokenizer. Prints R@10 and R@100 of exact search, before training and
after the warm-up, with the CPU seconds of the warm-up. Stages are kept in the folder.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import tyro

import bidr
from bidr.data.dataset import Dataset, check
from bidr.models.corpus_encoding import encode_rows
from bidr.models.trainable_encoder import Encoder
from bidr.quantization.exact_search import search_vectors
from bidr.tokenization.token_store import TokenArray
from bidr.tokenization.tokenizer import tokenize_texts
from bidr.training import stages
from bidr.training.config import EncoderConfig, TrainConfig
from bidr.training.data import make_pairs
from bidr.training.run_context import TrainingRun
from bidr.training.train import open_run
from bidr.training.validator import compute_recall

CUTOFFS = (10, 100)
HEAD = """| start | dimensions | untrained R@10 | R@100 | warm-up R@10 | R@100 | CPU s |
|---|---|---|---|---|---|---|"""


def main(
    data: str,
    out: Path,
    config: TrainConfig,
    starts: tuple[str, ...] = ("built-in", "wordllama", "wordllama:pretrained"),
    split: Literal["dev", "test"] = "dev",
) -> None:
    """Starts: backbones, each with ':pretrained' to keep its own tokenizer."""
    dataset = bidr.load(data)
    print(HEAD)
    for start in starts:
        backbone, _, tokenizer = start.partition(":")
        encoder_config = EncoderConfig(backbone=backbone, tokenizer=tokenizer or "corpus")  # type: ignore[arg-type]
        run = open_run(dataset, replace(config, encoder=encoder_config), out / start.replace(":", "-"))
        first = run.load_backbone()
        untrained, clock = measure(run, dataset, first, split), time.process_time()
        trained = stages.train_warmup(run)
        seconds = time.process_time() - clock
        values = [f"{value:.3f}" for value in (*untrained, *measure(run, dataset, trained, split))]
        print(f"| {start} | {first.dim} | {' | '.join(values)} | {seconds:.0f} |", flush=True)


def measure(run: TrainingRun, dataset: Dataset, encoder: Encoder, split: str) -> list[float]:
    """Measure recall of exact search over the corpus."""
    questions = run.data.dev
    tokens, pairs = questions.tokens, questions.pairs
    if split != "dev":
        part = dataset.split(split)
        texts = [query.text for query in part.queries]
        tokens = TokenArray(tokenize_texts(texts, encoder.tokenizer, run.config.text.query_length))
        pairs = make_pairs(part, check(dataset, splits=[]))
    vectors = encode_rows(encoder, run.data.documents, np.arange(len(run.data.documents)))
    rows = search_vectors(encode_rows(encoder, tokens), vectors, max(CUTOFFS), device=run.device).rows
    return [compute_recall(rows[:, :cutoff], pairs) for cutoff in CUTOFFS]


if __name__ == "__main__":
    tyro.cli(main)
