"""Every recipe on one data set, its codes scanned whole: a quicker table than `bidr compare`, without an index.

python bench/options.py --data FOLDER --out DIR --recipes star-opq bidr-random-walk ... [--split dev] \
    [--config.encoder.backbone MODEL ...]

For each recipe: recall of the candidates by the codes (N, and 0.1 % of the corpus), the latter also by the codes' own
encoder unquantized, R@10 and R@100 of the candidates ranked by the vectors, and the paired difference to the first
recipe's with its 95 % interval. Stages that recipes share are trained once; the same call goes on where it was cut off,
and rows stand in DIR/options.json as they are made.
"""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import tyro
from finalists import RANKED, questions, ranked, recall

import bidr
from bidr.experiments.compare import choose_sampler
from bidr.models.corpus_encoding import discard_encoded, encode_rows
from bidr.models.saved_model import Model
from bidr.quantization.exact_search import search_codes, search_vectors
from bidr.search.evaluation import compare_paired
from bidr.training.config import TrainConfig
from bidr.training.presets import RECIPES, with_recipe
from bidr.training.run_context import TrainingRun
from bidr.training.train import open_run, train_model

COLUMNS = (
    "recipe",
    "candidates",
    "of 0.1 %: by codes, by their encoder unquantized",
    "R@10",
    "R@100",
    "R@10 less the first's",
    "R@100 less the first's",
    "s",
)


class Row(NamedTuple):
    """Recall of every question, by what it was measured of."""

    candidates: np.ndarray
    few: np.ndarray
    few_unquantized: np.ndarray
    best: np.ndarray
    many: np.ndarray


def main(
    data: str,
    out: Path,
    config: TrainConfig,
    recipes: tuple[str, ...] = tuple(RECIPES),
    split: Literal["dev", "test"] = "dev",
) -> None:
    """recipes: which, the first being what the others are compared with."""
    run = open_run(bidr.load(data), config, out)
    rows: dict[str, Row] = {}
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    for name in recipes:
        started = time.monotonic()
        under = run.with_config(with_recipe(config, name))
        if name == "bidr-unified":
            under = run.with_config(
                replace(under.config, dense=replace(under.config.dense, sampler=choose_sampler(under)))
            )
        rows[name] = measured(under, train_model(under, out / name), split)
        shutil.rmtree(out / name)  # the stages are kept; as a model folder they would be there twice
        show(name, rows[name], rows[recipes[0]], time.monotonic() - started)
        kept = {name: {field: values.tolist() for field, values in row._asdict().items()} for name, row in rows.items()}
        (out / "options.json").write_text(json.dumps(kept))


def measured(run: TrainingRun, model: Model, split: str) -> Row:
    tokens, wanted = questions(run, split)
    documents, depth = run.data.documents, run.config.candidates
    by_codes = encode_rows(model.query or model.sparse, tokens)
    by_vectors = encode_rows(model.query or model.dense, tokens)
    coded = encode_rows(model.sparse, documents, dtype=np.float16)
    path = run.folder / "measured.npy"
    codes = np.array(run.encode_corpus(model.sparse, path, "encode into codes", model.codebooks))
    discard_encoded(path)
    found = search_codes(by_codes, model.codebooks, codes, depth, device=run.device).rows
    few = min(max(1, len(documents) // 1000), depth)
    unquantized = search_vectors(by_codes, coded, few, device=run.device).rows
    order = ranked(found, by_vectors, encode_rows(model.dense, documents, dtype=np.float16), run.device)
    parts = (found, found[:, :few], unquantized, order[:, :10], order[:, :RANKED])
    return Row(*(recall(part, wanted) for part in parts))


def show(name: str, row: Row, base: Row, seconds: float) -> None:
    cells = [name, f"{row.candidates.mean():.4f}", f"{row.few.mean():.4f}, {row.few_unquantized.mean():.4f}"]
    cells += [f"{row.best.mean():.4f}", f"{row.many.mean():.4f}"]
    for mine, other in ((row.best, base.best), (row.many, base.many)):
        if row is base:
            cells.append("")
            continue
        found = compare_paired(dict(enumerate(mine)), dict(enumerate(other)))  # type: ignore[arg-type]
        cells.append(f"{found.difference:+.4f} [{found.low:+.4f}, {found.high:+.4f}]")
    print(f"| {' | '.join(cells)} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    tyro.cli(main)
