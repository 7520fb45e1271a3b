"""STAR with OPQ codes against STAR with learned sums, at several bytes, beside the same vectors unquantized.

python bench/finalists.py --data FOLDER --out DIR --splits test [--bytes 8 16 32] [--seeds 0 1 2] \
    [--config.encoder.backbone MODEL ...]

Prints for every way candidates' recall (N, and 0.1 % of the corpus), R@10, R@100, what it closes of the gap between OPQ
codes and no quantization, and the paired 95 % interval of R@10 against OPQ at equal bytes: for each seed, then of every
question's mean over seeds. All rank by the vectors of one encoder. Stages are kept in the folder, so the same call goes
on, and dev and test can be asked for in turn.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import tyro

import bidr
from bidr.models.corpus_encoding import encode_rows
from bidr.quantization.exact_search import search_codes, search_vectors
from bidr.search.evaluation import compare_paired
from bidr.tokenization.token_store import TokenArray, Tokens
from bidr.training import stages
from bidr.training.config import TrainConfig
from bidr.training.data import make_pairs, read_splits
from bidr.training.mining import CodedEncoder, encode_corpus_codes
from bidr.training.presets import with_recipe
from bidr.training.run_context import TrainingRun
from bidr.training.train import open_run

RANKED = 100
UNQUANTIZED = "unquantized"
HEAD = """| codes | candidates | of 0.1 % | R@10 | R@100 | closed: candidates | R@100 | R@10 against OPQ |
|---|---|---|---|---|---|---|---|"""
ROWS_AT_ONCE = 500


class Row(NamedTuple):
    """Recall of every question, by what it was measured of."""

    candidates: np.ndarray
    few: np.ndarray
    """Of as many candidates as a thousandth of the corpus."""
    best: np.ndarray
    many: np.ndarray

    def show(self, label: str, exact: "Row", opq: "Row | None" = None) -> None:
        cells = [label, *(f"{values.mean():.4f}" for values in self)]
        if opq is not None:
            for name in ("candidates", "many"):
                mine, floor, ceiling = (getattr(each, name).mean() for each in (self, opq, exact))
                cells.append(f"{(mine - floor) / (ceiling - floor):.0%}" if ceiling > floor else "")
            found = compare_paired(dict(enumerate(self.best)), dict(enumerate(opq.best)))  # type: ignore[arg-type]
            cells.append(f"{found.difference:+.4f} [{found.low:+.4f}, {found.high:+.4f}], p {found.p:.4f}")
        print(f"| {' | '.join(cells)} |", flush=True)


def main(
    data: str,
    out: Path,
    config: TrainConfig,
    splits: tuple[Literal["dev", "test"], ...] = ("test",),
    bytes: tuple[int, ...] = (8, 16, 32),
    seeds: tuple[int, ...] = (0,),
    recipes: tuple[str, ...] = ("star-distilled",),
) -> None:
    """bytes: of codes a document; recipes: to compare with star-opq, of those that rank by the same vectors."""
    tables: dict[str, list[Table]] = {split: [] for split in splits}
    for seed in seeds:
        folder = out / f"seed-{seed}"
        run = open_run(bidr.load(data), replace(config, seed=seed), folder)
        _share(out / f"seed-{seeds[0]}", folder)
        for split in splits:
            tables[split].append(measured(run, split, bytes, recipes))
    for split, found in tables.items():
        print(f"\n{split}, mean of {len(seeds)} seeds\n{HEAD}")
        for label in found[0].rows:
            opq = found[0].against.get(label)
            mean(found, label).show(label, mean(found, UNQUANTIZED), mean(found, opq) if opq else None)


def _share(first: Path, folder: Path) -> None:
    """Lexical negatives are the same whatever the seed, and take minutes."""
    mined = Path("work/mined/bm25.npy")
    if (first / mined).exists() and not (folder / mined).exists():
        (folder / mined).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(first / mined, folder / mined)


def measured(run: TrainingRun, split: str, bytes: tuple[int, ...], recipes: tuple[str, ...]) -> "Table":
    """Every way at every size, shown as it is made."""
    print(f"\n{split}, seed {run.config.seed}")
    table = Table(run, split)
    for size in bytes:
        sized = replace(run.config, bytes_per_doc=size)
        opq = f"star-opq, {size} bytes"
        table.codes(opq, run.with_config(with_recipe(sized, "star-opq")), stages.fit_codes)
        for name in recipes:
            table.codes(f"{name}, {size} bytes", run.with_config(with_recipe(sized, name)), stages.distill_codes, opq)
    return table


def mean(tables: "list[Table]", label: str) -> Row:
    """Every question's mean over the seeds."""
    return Row(*(np.mean(values, axis=0) for values in zip(*(table.rows[label] for table in tables), strict=True)))


class Table:
    """Rows as they are made."""

    def __init__(self, run: TrainingRun, split: str) -> None:
        self.run, ranker = run, stages.train_conventional(run.with_config(with_recipe(run.config, "star-opq")))
        self.tokens, self.wanted = questions(run, split)
        self.queries = encode_rows(ranker, self.tokens)
        self.vectors = encode_rows(ranker, run.data.documents, dtype=np.float16)
        found = search_vectors(self.queries, self.vectors, run.config.candidates, device=run.device).rows
        self.rows = {UNQUANTIZED: self.measured(found, found)}
        self.against: dict[str, str] = {}
        print(HEAD)
        self.rows[UNQUANTIZED].show(UNQUANTIZED, self.rows[UNQUANTIZED])

    def codes(self, label: str, under: TrainingRun, made: Any, opq: str | None = None) -> None:
        """Measure candidates by codes, ranked by the vectors."""
        side: CodedEncoder = made(under)
        asked, depth = encode_rows(side.encoder, self.tokens), self.run.config.candidates
        found = search_codes(asked, side.codebooks, encode_corpus_codes(under, side), depth, device=under.device).rows
        self.rows[label] = self.measured(found, ranked(found, self.queries, self.vectors, self.run.device))
        if opq is not None:
            self.against[label] = opq
        self.rows[label].show(label, self.rows[UNQUANTIZED], self.rows[opq] if opq else None)

    def measured(self, found: np.ndarray, order: np.ndarray) -> Row:
        few = min(max(1, len(self.vectors) // 1000), found.shape[1])
        parts = (found, found[:, :few], order[:, :10], order[:, :RANKED])
        return Row(*(recall(part, self.wanted) for part in parts))


def ranked(found: np.ndarray, queries: np.ndarray, vectors: np.ndarray, device: str) -> np.ndarray:
    """Candidates in the order that vectors give them."""
    documents = torch.as_tensor(vectors, device=device)
    parts = []
    for start in range(0, len(found), ROWS_AT_ONCE):
        rows = torch.as_tensor(found[start : start + ROWS_AT_ONCE], device=device)
        asked = torch.as_tensor(queries[start : start + ROWS_AT_ONCE], device=device)
        scores = torch.einsum("qd,qnd->qn", asked, documents[rows].float())
        parts.append(rows.gather(1, torch.sort(scores, dim=1, descending=True, stable=True).indices).cpu().numpy())
    return np.concatenate(parts)


def recall(found: np.ndarray, wanted: list[np.ndarray]) -> np.ndarray:
    """Every question's share of its answers that was found."""
    return np.array([np.isin(want, got).mean() for want, got in zip(wanted, found, strict=True)])


def questions(run: TrainingRun, split: str) -> tuple[TokenArray, list[np.ndarray]]:
    """A split's questions as tokens, and the rows of their answers."""
    config = run.config
    if split == "dev":
        dev = run.data.dev
        return dev.tokens, [dev.pairs.get_rows(number) for number in range(len(dev.pairs))]
    ids = read_splits(run.dataset, config.dev_queries, config.seed).ids
    test = run.dataset.split("test")
    tokens: Tokens = run.load_backbone().get_tokenizer(config.text.query_length)([query.text for query in test.queries])
    pairs = make_pairs(test, ids)
    return TokenArray(tokens), [pairs.get_rows(number) for number in range(len(pairs))]


if __name__ == "__main__":
    tyro.cli(main)
