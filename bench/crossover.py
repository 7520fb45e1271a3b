"""Snowball against random walk at several batch sizes: does the one lead in large batches, the other in small ones?

python bench/crossover.py --data FOLDER --out DIR [--sizes 64 256 1024] [--config.encoder.dim 128 ...]

Warm-up and codes are shared; the dense stage is trained once for every sampler and batch size, for the same number of
visits of every question. Prints R@10 and R@100 of the codes' candidates ranked by its vectors, and the paired 95 %
interval of snowball minus random walk. Stages are kept in the folder, so the same call goes on.
"""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import tyro
from finalists import RANKED, questions, ranked, recall

import bidr
from bidr.models.corpus_encoding import encode_rows
from bidr.quantization.exact_search import search_codes
from bidr.search.evaluation import compare_paired
from bidr.training import stages
from bidr.training.config import TrainConfig
from bidr.training.mining import encode_corpus_codes
from bidr.training.run_context import TrainingRun
from bidr.training.train import open_run

SAMPLERS = ("in-batch", "random-walk", "snowball")


def main(
    data: str,
    out: Path,
    config: TrainConfig,
    split: Literal["dev", "test"] = "test",
    sizes: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048),
) -> None:
    run = open_run(bidr.load(data), config, out)
    tokens, wanted = questions(run, split)
    side = stages.train_sparse(run)
    codes = encode_corpus_codes(run, side)
    found = search_codes(
        encode_rows(side.encoder, tokens), side.codebooks, codes, config.candidates, device=run.device
    ).rows

    def answers(under: TrainingRun, sampler: str) -> tuple[np.ndarray, np.ndarray]:
        encoder = stages.train_dense(under, sampler)
        order = ranked(found, encode_rows(encoder, tokens), encode_rows(encoder, run.data.documents), run.device)
        return recall(order[:, :10], wanted), recall(order[:, :RANKED], wanted)

    print("| batch | sampler | R@10 | R@100 | R@10, snowball less random walk | R@100 |\n|---|---|---|---|---|---|")
    for size in sizes:
        under = run.with_config(replace(config, dense=replace(config.dense, batch_size=size)))
        rows = {sampler: answers(under, sampler) for sampler in SAMPLERS}
        for sampler, (best, many) in rows.items():
            cells = [str(size), sampler, f"{best.mean():.4f}", f"{many.mean():.4f}"]
            if sampler == "snowball":
                cells += [
                    difference(mine, other) for mine, other in zip(rows[sampler], rows["random-walk"], strict=True)
                ]
            print(f"| {' | '.join(cells)} |", flush=True)


def difference(one: np.ndarray, other: np.ndarray) -> str:
    found = compare_paired(dict(enumerate(one)), dict(enumerate(other)))  # type: ignore[arg-type]
    return f"{found.difference:+.4f} [{found.low:+.4f}, {found.high:+.4f}]"


if __name__ == "__main__":
    tyro.cli(main)
