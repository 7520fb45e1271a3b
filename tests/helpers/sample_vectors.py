"""Vectors as a service might give them: documents in all directions, questions in few of them."""

import dataclasses

import numpy as np

from bidr.training.config import CodesOnlyConfig, TrainConfig

DIM, COUNT, ASKED, DIRECTIONS = 32, 1_200, 400, 5
QUICK = CodesOnlyConfig(steps=60, batch_size=64, own=8, others=256, depth=32, measured=2, rate=5e-3)
CONFIG = TrainConfig(bytes_per_doc=2, candidates=15, frozen=QUICK)


def made_vectors(seed: int = 0, length: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Documents and questions, not of length 1; `length` multiplies the documents."""
    random = np.random.default_rng(seed)
    documents = random.normal(size=(COUNT, DIM)).astype(np.float32)
    plane = random.normal(size=(DIRECTIONS, DIM))
    questions = (random.normal(size=(ASKED, DIRECTIONS)) @ plane).astype(np.float32)
    return documents * np.float32(length), questions


def quick(**changes: object) -> TrainConfig:
    return dataclasses.replace(CONFIG, frozen=dataclasses.replace(QUICK, **changes))
