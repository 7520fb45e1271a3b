"""Differences from the paper, one at a time: R@10 on dev after the dense stage, and the codes' candidate recall.

python bench/deviations.py --data FOLDER --out DIR [--config.encoder.dim 128 ...]

Each row changes one setting to the paper's; stages that rows share are trained once.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import tyro

import bidr
from bidr.training import stages
from bidr.training.config import TrainConfig
from bidr.training.train import open_run
from bidr.training.validator import ANSWERS_METRIC, format_candidates_metric

ROWS: dict[str, dict[str, dict[str, Any]]] = {
    "default": {},
    "equation 6: BM25 negatives": {"warmup": {"negatives": "bm25"}, "sparse": {"negatives": "bm25"}},
    "equation 3: loss of the codes alone": {"sparse": {"loss": "quantized"}},
    "the paper's walk": {"dense": {"walk": "paper"}},
}


def main(data: str, out: Path, config: TrainConfig, sampler: str = "random-walk") -> None:
    """data: dataset; out: folder of the run."""
    run = open_run(bidr.load(data), config, out)
    candidates = format_candidates_metric(config.candidates)
    print(f"| | epoch 0, best of the warm-up | {candidates} of the codes | R@10 of the dense stage, epoch 0 | best |")
    print("|---|---|---|---|---|")
    for name, parts in ROWS.items():
        changed = replace(config, **{part: replace(getattr(config, part), **values) for part, values in parts.items()})
        row = run.with_config(changed)
        stages.train_dense(row, sampler)
        warmup, codes, dense = (
            [epoch[metric] for epoch in row.read_history(row.get_stage_name(stage))]
            for stage, metric in (
                ("warmup", ANSWERS_METRIC),
                ("sparse", candidates),
                (f"dense-{sampler}", ANSWERS_METRIC),
            )
        )
        cells = [f"{warmup[0]:.4f}, {max(warmup):.4f}", f"{max(codes):.4f}", f"{dense[0]:.4f}", f"{max(dense):.4f}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    tyro.cli(main)
