"""STAR with OPQ codes against STAR with learned sums, at several bytes, beside the same vectors unquantized.

python bench/finalists.py --data FOLDER --out DIR --split test [--bytes 8 16 32] [--config.encoder.backbone MODEL ...]

Prints for every way candidates' recall (N, and 0.1 % of the corpus), R@10, R@100, what it closes of the gap between OPQ
codes and no quantization, and the paired 95 % interval of R@10 against OPQ at equal bytes. All rank by the vectors of
one encoder. Stages are kept in the folder, so the same call goes on, and dev and test can be asked for in turn.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import tyro

import bidr
from bidr.codes.exact import top_k, top_k_codes
from bidr.evaluation import paired
from bidr.model.encode import encode_rows
from bidr.text.tokens import TokenRows, Tokens
from bidr.training import stages
from bidr.training.config import TrainConfig
from bidr.training.material import judged_pairs, read_splits
from bidr.training.mining import Sparse, corpus_codes
from bidr.training.recipe import open_workshop
from bidr.training.recipes import with_recipe
from bidr.training.workshop import Workshop

RANKED = 100
ROWS_AT_ONCE = 500


class Row(NamedTuple):
    """Recall of every question, by what it was measured of."""

    candidates: np.ndarray
    few: np.ndarray
    """Of as many candidates as a thousandth of the corpus."""
    best: np.ndarray
    many: np.ndarray


def main(
    data: str,
    out: Path,
    config: TrainConfig,
    split: Literal["dev", "test"] = "test",
    bytes: tuple[int, ...] = (8, 16, 32),
    recipes: tuple[str, ...] = ("star-distilled",),
) -> None:
    """bytes: of codes a document; recipes: to compare with star-opq, of those that rank by the same vectors."""
    shop = open_workshop(bidr.load(data), config, out)
    table = Table(shop, split)
    for size in bytes:
        sized = replace(config, bytes_per_doc=size)
        opq = table.codes(f"star-opq, {size} bytes", shop.under(with_recipe(sized, "star-opq")), stages.fitted)
        for name in recipes:
            table.codes(f"{name}, {size} bytes", shop.under(with_recipe(sized, name)), stages.distilled, opq)


class Table:
    """Rows as they are made."""

    def __init__(self, shop: Workshop, split: str) -> None:
        self.shop, ranker = shop, stages.conventional(shop.under(with_recipe(shop.config, "star-opq")))
        self.tokens, self.wanted = questions(shop, split)
        self.queries = encode_rows(ranker, self.tokens)
        self.vectors = encode_rows(ranker, shop.material.documents, dtype=np.float16)
        found = top_k(self.queries, self.vectors, shop.config.candidates, device=shop.device).rows
        self.exact = self.measured(found, found)
        print("| codes | candidates | of 0.1 % | R@10 | R@100 | closed: candidates | R@100 | R@10 against OPQ |")
        print("|---|---|---|---|---|---|---|---|")
        self.show("unquantized", self.exact)

    def codes(self, label: str, under: Workshop, made: Any, opq: Row | None = None) -> Row:
        """Measure candidates by codes, ranked by the vectors."""
        side: Sparse = made(under)
        asked, depth = encode_rows(side.encoder, self.tokens), self.shop.config.candidates
        found = top_k_codes(asked, side.codebooks, corpus_codes(under, side), depth, device=under.device).rows
        row = self.measured(found, self.ranked(found))
        self.show(label, row, opq)
        return row

    def ranked(self, found: np.ndarray) -> np.ndarray:
        documents = torch.as_tensor(self.vectors, device=self.shop.device)
        parts = []
        for start in range(0, len(found), ROWS_AT_ONCE):
            rows = torch.as_tensor(found[start : start + ROWS_AT_ONCE], device=self.shop.device)
            queries = torch.as_tensor(self.queries[start : start + ROWS_AT_ONCE], device=self.shop.device)
            scores = torch.einsum("qd,qnd->qn", queries, documents[rows].float())
            parts.append(rows.gather(1, torch.sort(scores, dim=1, descending=True, stable=True).indices).cpu().numpy())
        return np.concatenate(parts)

    def measured(self, found: np.ndarray, ranked: np.ndarray) -> Row:
        few = min(max(1, len(self.vectors) // 1000), found.shape[1])
        return Row(*map(self.recall, (found, found[:, :few], ranked[:, :10], ranked[:, :RANKED])))

    def recall(self, found: np.ndarray) -> np.ndarray:
        return np.array([np.isin(want, got).mean() for want, got in zip(self.wanted, found, strict=True)])

    def show(self, label: str, row: Row, opq: Row | None = None) -> None:
        cells = [label, *(f"{values.mean():.4f}" for values in row)]
        if opq is not None:
            for name in ("candidates", "many"):
                mine, floor, ceiling = (getattr(each, name).mean() for each in (row, opq, self.exact))
                cells.append(f"{(mine - floor) / (ceiling - floor):.0%}" if ceiling > floor else "")
            found = paired(dict(enumerate(row.best)), dict(enumerate(opq.best)))  # type: ignore[arg-type]
            cells.append(f"{found.difference:+.4f} [{found.low:+.4f}, {found.high:+.4f}]")
        print(f"| {' | '.join(cells)} |", flush=True)


def questions(shop: Workshop, split: str) -> tuple[TokenRows, list[np.ndarray]]:
    """A split's questions as tokens, and the rows of their answers."""
    config = shop.config
    if split == "dev":
        dev = shop.material.dev
        return dev.tokens, [dev.pairs.of(number) for number in range(len(dev.pairs))]
    ids = read_splits(shop.dataset, config.dev_queries, config.seed).ids
    test = shop.dataset.split("test")
    tokens: Tokens = shop.backbone().tokeniser(config.text.query_length)([query.text for query in test.queries])
    pairs = judged_pairs(test, ids)
    return TokenRows(tokens), [pairs.of(number) for number in range(len(pairs))]


if __name__ == "__main__":
    tyro.cli(main)
