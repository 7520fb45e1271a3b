"""What the tests of several processes run in each of them. A module of its own, since the processes import it."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import torch
from sample_training import CONFIG, dataset
from torch import Tensor, multiprocessing

from bidr.data.positives import Positives
from bidr.errors import BidrError, StoppedError
from bidr.models.auto import load_encoder
from bidr.models.corpus_encoding import encode_rows, hash_weights
from bidr.models.trainable_quantizer import TrainableQuantizer
from bidr.quantization.codebooks import Codebooks
from bidr.tokenization.token_store import TokenArray
from bidr.tokenization.tokenizer import tokenize, tokenize_texts
from bidr.training.data import Questions
from bidr.training.engine.distributed import ProcessGroup, join_process_group
from bidr.training.engine.gradients import StepSeed, backward
from bidr.training.engine.loop import StageTrainer
from bidr.training.losses.objectives import DenseObjective, Objective, QuantizedObjective
from bidr.training.losses.shared_query_encoder import FixedDocuments, UnifyObjective
from bidr.training.negatives.samplers import Batch
from bidr.training.presets import with_recipe
from bidr.training.run_context import TrainingRun
from bidr.training.train import train

STEP_SEED = StepSeed(3, 1, 4)
KINDS = ("matching", "quantized", "unified")
LIMITS = {"whole": None, "parts": 24}


def spawn(work: Callable[..., None], folder: Path, size: int = 2) -> None:
    """Run work(rank, folder) in new processes that know of one another as torchrun's do."""
    port = 20_000 + os.getpid() % 20_000
    multiprocessing.spawn(_begin, (work, folder, size, port), nprocs=size)


def _begin(rank: int, work: Callable[..., None], folder: Path, size: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    work(rank, folder)


# gradients


def objective(kind: str, run: TrainingRun) -> Objective:
    """The stages' objectives over the untrained encoder."""
    encoder, material = run.load_backbone(), run.data
    vectors = encode_rows(encoder, material.documents)
    books = Codebooks(np.eye(16, dtype=np.float32), vectors[:16].reshape(16, 4, 4).transpose(1, 0, 2).copy())
    if kind == "matching":
        return DenseObjective(encoder, material.documents, material.train, 20.0)
    if kind == "quantized":
        quantizer = TrainableQuantizer(books, 0.01)
        return QuantizedObjective(
            encoder, quantizer, material.documents, material.train, 20.0, kind="joint", codebook_rate=1.0
        )
    found = np.random.default_rng(1).integers(90, size=(len(material.train.pairs), 9))
    fixed = FixedDocuments(books, books.encode(vectors), vectors.astype(np.float16), found)
    return UnifyObjective(encoder, fixed, material.train, 20.0, pool=60, own=5, others=20, dense_weight=0.7)


def batch_of(run: TrainingRun, size: int = 11) -> Batch:
    plan = run.make_pool_sampler(None).plan(0)
    return Batch(plan.queries[:size], plan.positives[:size], np.arange(30, 30 + size))


def with_dropout(folder: Path) -> DenseObjective:
    """A small transformer that draws random numbers when it trains."""
    from sample_encoders import TEXTS

    encoder = load_encoder(folder / "bert")
    store = tokenize(TEXTS, encoder.tokenizer, folder / "bert-tokens", max_length=32, source="made")
    tokens = TokenArray(tokenize_texts(["who painted", "a girl", "numbers"], encoder.tokenizer, 16))
    pairs = Positives(np.arange(4), np.array([0, 2, 3]))
    made = DenseObjective(encoder, store, Questions([], tokens, pairs), 1.0)
    made.train()
    return made


TRANSFORMER_BATCH = Batch(np.arange(3), np.array([0, 2, 3]), np.array([4, 5, 1]))


def gradients(made: Objective) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in made.named_parameters()}


def compute(group: ProcessGroup, folder: Path) -> dict[str, Any]:
    """Terms and gradients of every objective, at once and in parts."""
    run = TrainingRun(dataset(), CONFIG, folder / "work", group)
    found = {}
    for limit, tokens in LIMITS.items():
        made: dict[str, tuple[Objective, Batch]] = {
            **{kind: (objective(kind, run), batch_of(run)) for kind in KINDS},
            "one query": (objective("unified", run), batch_of(run, 1)),
            "dropout": (with_dropout(folder), TRANSFORMER_BATCH),
        }
        for name, (one, batch) in made.items():
            prepared = one.prepare(batch, np.random.default_rng(5))
            terms = backward(one, prepared, STEP_SEED, group, tokens)
            found[f"{name} {limit}"] = (terms, gradients(one))
    return found


def everything(rank: int, folder: Path) -> None:
    """All that several processes are tested for, in one start of theirs."""
    with join_process_group("cpu") as group:
        torch.save(compute(group, folder), folder / f"found{rank}.pt")
        encode_twice(group, folder)
        (folder / f"failed{rank}").write_text("\n".join(failures(group)))
        runs(rank, folder)


def failures(group: ProcessGroup) -> list[str]:
    """What each process says when the first one cannot do what it has to do for all."""

    def fail() -> None:
        raise BidrError("no such luck")

    said = []
    for way in (lambda: group.run_on_rank_zero(fail), lambda: in_turn(group, fail)):
        try:
            way()
        except BidrError as error:
            said.append(str(error))
    return said


def in_turn(group: ProcessGroup, deed: Callable[[], None]) -> None:
    with group.rank_zero_first():
        deed()


def encode_twice(group: ProcessGroup, folder: Path) -> None:
    """The corpus by all processes; the second time there is nothing left to do."""
    run = TrainingRun(dataset(), CONFIG, folder / "work", group)
    encoder = run.load_backbone()
    for _ in range(2):
        run.encode_corpus(encoder, folder / "encoded" / "vectors.npy", "encode")
        encoder.forward = None  # type: ignore[method-assign, assignment]


def signalled(rank: int, folder: Path) -> None:
    """What each process says when all are told to stop while the first one is at work, or only the other one is, or
    the first one is gone."""
    said = []

    def work(stopped: bool) -> None:
        time.sleep(1)
        if stopped:
            raise StoppedError("stopped at step 3")

    def leave() -> None:
        os._exit(0)

    with suppress(BidrError), join_process_group("cpu") as group:
        for way in (group.run_on_rank_zero, partial(in_turn, group)):
            for stopped in (True, False):
                if rank:
                    Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
                try:
                    way(partial(work, stopped))
                except StoppedError as error:
                    said.append(str(error))
        (folder / f"said{rank}").write_text("\n".join(said))
        try:
            group.run_on_rank_zero(leave)
        except BidrError as error:
            (folder / f"lost{rank}").write_text(str(error))
            leave()  # at once: gloo may abort a process that ends after its peers have gone


# whole runs

STOPS = (7, 26)


def runs(rank: int, folder: Path) -> None:
    """A run that is never stopped, and one that is asked to stop twice, by one process and by the other."""
    weights: list[str] = []
    asked: list[int] = []
    real = StageTrainer.train_step

    def watched(self: StageTrainer, *given: Any) -> float:
        value = real(self, *given)
        weights.append(hash_weights(self.objective))
        if len(weights) in asked and STOPS.index(len(weights)) != rank:
            signal.raise_signal(signal.SIGTERM)
        return value

    StageTrainer.train_step = watched  # type: ignore[method-assign]
    train(dataset(), replace(CONFIG, method="conventional"), folder / "conventional")
    weights[:] = []
    train(dataset(), CONFIG, folder / "whole")
    whole, weights[:] = list(weights), []
    asked += STOPS
    stopped = 0
    for _ in range(5):
        try:
            train(dataset(), CONFIG, folder / "stopped", "must" if stopped else "never")
            break
        except StoppedError:
            stopped += 1
    torch.save({"whole": whole, "stopped": weights, "stops": stopped}, folder / f"ran{rank}.pt")
    weights[:] = []
    with suppress(StoppedError):
        train(dataset(), CONFIG, folder / "left")


RECIPES = ("ance-opq", "star-dpq", "star-jpq", "bidr-jpq", "bidr-distilled", "bidr-filtered", "bidr-uniform")


def recipes(rank: int, folder: Path) -> None:
    """A model by each of some recipes: those that mine, refresh or keep something of their own."""
    with join_process_group("cpu"):
        for name in RECIPES:
            train(dataset(), with_recipe(CONFIG, name), folder / name)
