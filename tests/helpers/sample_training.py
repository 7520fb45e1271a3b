"""A data set so small that all stages run in seconds, and settings for it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from bidr.data.dataset import Dataset
from bidr.data.types import Document, Query
from bidr.training.config import (
    DenseConfig,
    EncoderConfig,
    SparseConfig,
    TextConfig,
    TrainConfig,
    UnifyConfig,
    WarmupConfig,
)
from bidr.training.engine.logs import LOG
from bidr.training.losses.objectives import Objective, PreparedBatch

DOCUMENTS, TRAIN, DEV = 90, 48, 16


def dataset(name: str = "made", documents: int = DOCUMENTS) -> Dataset:
    """Documents of a few words each; a question is two of them; every seventh question has two answers."""
    random = np.random.default_rng(7)
    words = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in "lmnrst"]
    texts = [" ".join(random.choice(words, 9)) for _ in range(documents)]
    made = [Document(f"d{row}", "", text) for row, text in enumerate(texts)]
    queries, qrels = [], {"train": {}, "dev": {}}
    for number in range(TRAIN + DEV):
        row = int(random.integers(documents))
        queries.append(Query(f"q{number}", " ".join(random.choice(texts[row].split(), 2))))
        answers = {f"d{row}": 1} | ({f"d{(row + 1) % documents}": 1} if number % 7 == 0 else {})
        qrels["train" if number < TRAIN else "dev"][f"q{number}"] = answers
    return Dataset.from_records(name, made, queries, qrels)


CONFIG = TrainConfig(
    method="bidr",
    bytes_per_doc=2,
    codewords=16,
    batch_size=10,
    learning_rate=0.02,
    candidates=20,
    min_dev_queries=0,
    device="cpu",
    encoder=EncoderConfig(dim=16, vocabulary=200),
    text=TextConfig(query_length=16, document_length=32),
    warmup=WarmupConfig(epochs=2, negatives="in-batch"),
    sparse=SparseConfig(epochs=2, negatives="in-batch", rate=1.0, codebook_rate=0.1),
    dense=DenseConfig(epochs=2, depth=15, start="sparse", rate=1.0),
    unify=UnifyConfig(epochs=2, own=5, others=20),
)


def with_settings(**parts: dict[str, Any]) -> TrainConfig:
    """CONFIG with some fields of its parts replaced: with_settings(dense={"start": "warmup"})."""
    return replace(CONFIG, **{name: replace(getattr(CONFIG, name), **fields) for name, fields in parts.items()})


def losses(objective: Objective, prepared: PreparedBatch) -> dict[str, Tensor]:
    """A batch's terms with the graph behind them, as one process would make it."""
    return objective.compute_terms([objective.encoder.encode(tokens) for tokens in prepared.texts], prepared.comparison)


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder but the logs, which say how fast it was."""
    found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    kept = [path for path in found if path.name != LOG and not path.name.startswith("events.out.tfevents")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}
