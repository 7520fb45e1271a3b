"""Memory and time of a step at several settings of tokens_at_once, on a transformer with random weights.

python bench/gradient_cache.py --batch-size 128 --tokens 64 --at-once 0 4096 1024

0 is no gradient caching. Each setting runs in a process of its own; on a CPU the memory is the process' largest, less
what it had before the first step, on a GPU the allocator's. On a GPU it is also said whether a step waits for the
device.
"""

import multiprocessing
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

from bidr.models.trainable_encoder import Encoder
from bidr.tokenization.token_store import Tokens
from bidr.training.engine.loop import LoopSettings, StageTrainer
from bidr.training.losses.objectives import Objective, PreparedBatch

STEPS = 4


class Made(Objective):
    """Random texts, each its own answer."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def compute_terms(self, vectors: Sequence[torch.Tensor], given: Any) -> dict[str, torch.Tensor]:
        scores = 20 * torch.nn.functional.normalize(vectors[0]) @ torch.nn.functional.normalize(vectors[1]).T
        return {"dense": torch.nn.functional.cross_entropy(scores, torch.arange(len(scores), device=scores.device))}


def main(
    batch_size: int = 128,
    tokens: int = 64,
    layers: int = 6,
    width: int = 384,
    at_once: tuple[int, ...] = (0, 4096, 1024),
    device: str = "cpu",
) -> None:
    """Print a row for each setting: peak memory in MiB, seconds a step (the median)."""
    print(f"{layers} layers of {width}, {batch_size} pairs of texts of {tokens} tokens, {device}")
    print("tokens_at_once  peak MiB  s/step")
    for limit in at_once:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            memory, seconds = pool.apply(measure, (batch_size, tokens, layers, width, limit or None, device))
        print(f"{limit or 'whole batch':>14}  {memory / 2**20:8,.0f}  {seconds:6.3f}", flush=True)


def measure(batch: int, length: int, layers: int, width: int, limit: int | None, device: str) -> tuple[float, float]:
    """Peak bytes and median seconds of a step."""
    torch.set_num_threads(1)
    objective = Made(encoder_of(layers, width).to(device))
    objective.train()
    settings = LoopSettings(
        epochs=1, rate=1e-5, decay=0, warmup_share=0.1, clip=1, seed=0, checkpoint_seconds=9, tokens_at_once=limit
    )
    training = StageTrainer("made", objective, settings, "none")
    random = np.random.default_rng(0)

    def texts() -> Tokens:
        offsets = np.arange(batch + 1) * length
        return Tokens(random.integers(5, 900, size=batch * length).astype(np.int32), offsets)

    before, seconds = memory(device), []
    for _ in range(STEPS):
        prepared = PreparedBatch(np.arange(batch), (texts(), texts()), None)
        started = time.perf_counter()
        training.train_step(prepared, STEPS)
        training.finish_step()
        seconds.append(time.perf_counter() - started)
    peak = memory(device) - before
    if device != "cpu":
        # Raises where anything but the settling of the step before makes the host wait.
        torch.cuda.set_sync_debug_mode("error")
        training.train_step(prepared, STEPS)
        torch.cuda.set_sync_debug_mode("default")
    return peak, float(np.median(seconds[1:]))


def memory(device: str) -> float:
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
    return float(torch.cuda.max_memory_allocated())


def encoder_of(layers: int, width: int) -> Encoder:
    """A BERT of MiniLM's kind that knows nothing."""
    from tokenizers import Tokenizer, models
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    from bidr.models.auto import load_encoder

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer = Tokenizer(models.WordPiece({"[PAD]": 0, "[UNK]": 1}, unk_token="[UNK]"))
        special = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
        heads, inner = width // 32, 4 * width
        config = BertConfig(
            vocab_size=1_000,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=inner,
        )
        BertModel(config).save_pretrained(folder)
        return load_encoder(folder)


if __name__ == "__main__":
    tyro.cli(main)
