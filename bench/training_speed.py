"""How fast a transformer trains and encodes here: triples, tokens and documents a second, and what share of the
processor's peak that is.

python bench/training_speed.py --backbone FOLDER --data FOLDER

Steps are those of the dense stage (a question, its answer and one extra negative), taken by the same loop as training.
"full" texts have exactly 36 and 112 tokens; "real" ones are the data's, cut there.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

import bidr
from bidr.data.positives import Positives
from bidr.models.corpus_encoding import encode_rows
from bidr.models.huggingface_encoder import TransformerEncoder
from bidr.models.trainable_encoder import Encoder
from bidr.tokenization.token_store import TokenArray, Tokens
from bidr.tokenization.tokenizer import tokenize, tokenize_texts
from bidr.training.data import Questions, make_pairs, read_splits
from bidr.training.engine.loop import LoopSettings, StageTrainer, prefetch_batches
from bidr.training.losses.objectives import DenseObjective
from bidr.training.negatives.proximity_graph import build_graph
from bidr.training.negatives.samplers import LocalitySampler, RandomSampler, Sampler

QUERY, DOCUMENT, SHORT = 36, 112, 80
PEAK_TFLOPS = {"H200": 989, "H100": 989, "A100": 312}
PROTOTYPE_TRIPLES = 7_900
SETTINGS = LoopSettings(epochs=100, rate=1e-5, decay=0.01, warmup_share=0.1, clip=1.0, seed=0, checkpoint_seconds=1e9)


def main(
    backbone: str,
    data: str | None = None,
    batch: int = 1_024,
    steps: int = 60,
    dropout: float | None = 0.0,
    device: str = "auto",
) -> None:
    """backbone: a folder or id; data: for real lengths and raw text; steps: of each measurement."""
    from bidr.utils.device import pick_device

    where = pick_device(device)
    encoder = TransformerEncoder.open(backbone, dropout=dropout).to(where).train()
    encoder.expect_steps(10_000)
    documents, questions = made(max(1_000, 2 * steps * batch), steps * batch, encoder)
    graph = neighbourhoods(len(questions.pairs), len(documents))
    samplers: dict[str, Sampler] = {"random": RandomSampler(questions.pairs, len(documents), batch, 0, graph.forward)}
    for name in ("random-walk", "snowball"):
        samplers[name] = LocalitySampler(graph, questions.pairs, batch, 0, name)
    print(f"{parameters(encoder) / 1e6:.1f}M weights in the layers, batch {batch}, on {named(where)}")
    rates = {name: train(f"full, {name}", encoder, documents, questions, sampler) for name, sampler in samplers.items()}
    for name, rate in rates.items():
        print(
            f"{name}: {rate / rates['random']:.3f} of random batches; {rate / PROTOTYPE_TRIPLES:.2f} of the prototype's"
        )
    if data:
        real(data, encoder, batch)
    rows = TokenArray(tokens(np.full(200_000, SHORT), encoder))
    encode(f"encode {SHORT} tokens", encoder, rows)


def real(data: str, encoder: Encoder, batch: int) -> None:
    """The same on real lengths, and encoding from raw text."""
    dataset = bidr.load(data)
    splits = read_splits(dataset, 1_000, 0)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        texts = list(dataset.corpus.iter_texts("prepend"))
        read = time.perf_counter() - started
        started = time.perf_counter()
        store = tokenize(texts, encoder.tokenizer, Path(folder) / "t", max_length=DOCUMENT, source=data)
        seconds = time.perf_counter() - started
        print(f"tokenise: {len(texts) / seconds:,.0f} documents/s (reading the files {len(texts) / read:,.0f}/s)")
        found = encode("encode real lengths, from tokens", encoder, store)
        print(f"from raw text: {len(texts) / (seconds + found):,.0f} documents/s, one after the other")
        words = tokenize_texts([query.text for query in splits.train.queries], encoder.tokenizer, QUERY)
        questions = Questions([], TokenArray(words), make_pairs(splits.train, splits.ids))
        pool = np.random.default_rng(0).integers(len(store), size=(len(questions.pairs), 8))
        train("real lengths", encoder, store, questions, RandomSampler(questions.pairs, len(store), batch, 0, pool))


def train(label: str, encoder: Encoder, documents: Any, questions: Questions, sampler: Sampler) -> float:
    """Triples a second over one epoch, the making of its plan included, after a few steps to warm up."""
    objective = DenseObjective(encoder, documents, questions, 20.0)
    training = StageTrainer("bench", objective, SETTINGS, "R@10")
    objective.train()
    warm = sampler.plan(99)
    for _, prepared in zip(range(5), prefetch_batches(training, warm), strict=False):
        training.train_step(prepared, warm.steps)
    training.finish_step()
    training.step = 0
    wait()
    started = time.perf_counter()
    plan = sampler.plan(0)
    planned = time.perf_counter() - started
    read = 0
    for prepared in prefetch_batches(training, plan):
        read += sum(len(part.ids) for part in prepared.texts)
        training.train_step(prepared, plan.steps)
    training.finish_step()
    wait()
    seconds = time.perf_counter() - started
    rate, speed = len(plan.queries) / seconds, read / seconds
    print(
        f"{label}: {rate:,.0f} triples/s, {speed / 1e6:.2f}M tokens/s, {1000 * seconds / plan.steps:.1f} ms/step, "
        f"plan {1000 * planned:.0f} ms, model FLOP utilisation {utilisation(encoder, speed, 3):.1%}",
        flush=True,
    )
    return rate


def encode(label: str, encoder: Encoder, rows: Any) -> float:
    encode_rows(encoder, rows, np.arange(min(len(rows), 20_000)))
    wait()
    started = time.perf_counter()
    encode_rows(encoder, rows)
    seconds = time.perf_counter() - started
    share = utilisation(encoder, rows.get_lengths().sum() / seconds, 1)
    print(f"{label}: {len(rows) / seconds:,.0f} documents/s, utilisation {share:.1%}", flush=True)
    return seconds


def made(documents: int, queries: int, encoder: Encoder) -> tuple[TokenArray, Questions]:
    """Random tokens at full length."""
    pairs = Positives(np.arange(queries + 1), np.random.default_rng(1).permutation(documents)[:queries])
    rows = TokenArray(tokens(np.full(documents, DOCUMENT), encoder))
    return rows, Questions([], TokenArray(tokens(np.full(queries, QUERY), encoder)), pairs)


def tokens(lengths: Any, encoder: Encoder) -> Tokens:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    words = encoder.tokenizer.get_vocab_size()
    return Tokens(np.random.default_rng(0).integers(1, words, offsets[-1], dtype=np.int32), offsets)


def neighbourhoods(queries: int, documents: int) -> Any:
    """A graph of 200 candidates a query in neighbourhoods, with twenty documents that many queries bring up."""
    random = np.random.default_rng(2)
    centres = random.integers(max(1, documents // 100), size=queries) * 100
    found = (centres[:, None] + random.integers(160, size=(queries, 200))) % documents
    found[:, :5] = random.integers(20, size=(queries, 5))
    nothing = Positives(np.zeros(queries + 1, dtype=np.int64), np.empty(0, dtype=np.int64))
    return build_graph(found, nothing, documents)


def parameters(encoder: Encoder) -> int:
    """Weights that every token is multiplied with: not the tables."""
    return sum(value.numel() for name, value in encoder.named_parameters() if ".layer." in name)


def utilisation(encoder: Encoder, speed: float, passes: int) -> float:
    """Share of the peak: two operations a weight and token forward, twice that backward."""
    peak = next((peak for name, peak in PEAK_TFLOPS.items() if name in named(str(encoder.device))), float("nan"))
    return 2 * passes * parameters(encoder) * speed / (peak * 1e12)


def named(device: str) -> str:
    return torch.cuda.get_device_name(0) if device.startswith("cuda") else "CPU"


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    tyro.cli(main)
