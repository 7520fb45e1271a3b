"""What each way of making codes closes of the gap between OPQ codes and the same vectors unquantized, on dev.

python bench/code_options.py --data FOLDER --out DIR --config.bytes-per-doc 8 [--config.encoder.backbone MODEL ...]

All rows rank their candidates by the vectors of one encoder, the conventional way's (STAR), so that only the codes
differ. Stages are kept in the folder: a call that was cut off goes on, and more variants can be asked for later.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import tyro

import bidr
from bidr.models.corpus_encoding import encode_rows
from bidr.models.trainable_encoder import Encoder
from bidr.quantization.exact_search import search_codes, search_vectors
from bidr.training import stages
from bidr.training.config import TrainConfig
from bidr.training.mining import CodedEncoder, encode_corpus_codes
from bidr.training.presets import with_recipe
from bidr.training.run_context import TrainingRun
from bidr.training.train import open_run
from bidr.training.validator import compute_recall

VARIANTS = ("contrastive", "uniform", "distilled", "crops", "additive", "additive-crops", "star-contrastive")


def main(data: str, out: Path, config: TrainConfig, variants: tuple[str, ...] = VARIANTS) -> None:
    """config: settings of the run, as `bidr train` has them; variants: which rows."""
    run = open_run(bidr.load(data), config, out)
    single = run.with_config(with_recipe(config, "star-opq"))
    table = Table(run, stages.train_conventional(single))
    table.codes("opq", stages.fit_codes(single), single)
    for name in variants:
        under = run.with_config(settings(config, name))
        made = stages.distill_codes if name.startswith("additive") else stages.train_sparse
        table.codes(name, made(under), under)


def settings(config: TrainConfig, name: str) -> TrainConfig:
    """The settings that a variant stands for."""
    sparse = {"uniform": {"assignment": "uniform"}, "crops": {"crops": 0.5}}.get(name, {})
    if name.startswith("additive"):
        share = config.frozen.crops if name.endswith("crops") else 0.0
        config = with_recipe(config, "star-distilled")  # which has no crops: theirs come after it
        return replace(config, frozen=replace(config.frozen, crops=share))
    if name in ("distilled", "star-contrastive"):
        return with_recipe(config, {"distilled": "bidr-distilled"}.get(name, name))
    return replace(config, sparse=replace(config.sparse, **sparse))


class Table:
    """Rows as they are made, each beside the unquantized vectors and OPQ."""

    def __init__(self, run: TrainingRun, ranker: Encoder) -> None:
        self.run, self.pairs, self.depth = run, run.data.dev.pairs, run.config.candidates
        self.queries = encode_rows(ranker, run.data.dev.tokens)
        self.vectors = encode_rows(ranker, run.data.documents, dtype=np.float16)
        found = search_vectors(self.queries, self.vectors, self.depth, device=run.device).rows
        self.ceiling = self.figures(found, found[:, :100])
        self.floor: dict[str, float] | None = None
        print("| codes | candidates | R@10 | R@100 | gap closed: candidates | R@100 |\n|---|---|---|---|---|---|")
        self.show("unquantized", self.ceiling)

    def codes(self, name: str, side: CodedEncoder, under: TrainingRun) -> None:
        """Measure candidates by these codes, ranked by the vectors."""
        asked = encode_rows(side.encoder, self.run.data.dev.tokens)
        found = search_codes(
            asked, side.codebooks, encode_corpus_codes(under, side), self.depth, device=under.device
        ).rows
        ranked = np.stack([self.ranked(query, rows) for query, rows in zip(self.queries, found, strict=True)])
        figures = self.figures(found, ranked)
        self.floor = self.floor or figures
        self.show(name, figures)

    def ranked(self, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        scores = self.vectors[rows].astype(np.float32) @ query
        return rows[np.argsort(-scores, kind="stable")][:100]

    def figures(self, candidates: np.ndarray, ranked: np.ndarray) -> dict[str, float]:
        names = {"candidates": candidates, "R@10": ranked[:, :10], "R@100": ranked}
        return {name: compute_recall(rows, self.pairs) for name, rows in names.items()}

    def show(self, name: str, figures: dict[str, float]) -> None:
        closed = []
        for measure in ("candidates", "R@100"):
            gap = self.ceiling[measure] - self.floor[measure] if self.floor else 0.0
            closed.append(f"{(figures[measure] - self.floor[measure]) / gap:.0%}" if self.floor and gap > 0 else "")
        cells = [name, *(f"{value:.4f}" for value in figures.values()), *closed]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    tyro.cli(main)
