"""How well a choice on few dev queries does: rules of `auto` on random parts of the dev queries of a finished run.

python bench/choice_rule.py --data FOLDER --out DIR [--config.encoder.backbone wordllama]

DIR is a folder of `bidr train`, `bidr compare`, or DIR/work/NAME of `bidr reproduce`; stages that are missing are
trained. Each rule chooses on a random part of the dev queries, and is measured on the others. The loss is to the
contender that is best on all dev queries, in the mean of R@10 and R@100.
"""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tyro

from bidr.data.dataset import load
from bidr.training import model_selection
from bidr.training.config import TrainConfig
from bidr.training.contenders import Contender, choose_contender, is_within_standard_error
from bidr.training.fusion import (
    LEXICAL_ONLY,
    RELATIVE_WEIGHTS,
    Fusion,
    measure_recalls,
    measure_spread,
    round_weight,
    smooth,
)
from bidr.training.presets import with_recipe
from bidr.training.train import open_run

BASELINES = (("warmup", "opq"), ("conventional", "opq"))


class Pair(NamedTuple):
    """Vectors and codes: recall of each dev query without fusion, with each (BM25 candidates, weight), and of BM25."""

    vectors: str
    codes: str
    two_encoders: bool
    plain: np.ndarray
    """(2, queries): R@10 and R@100."""
    fused: np.ndarray
    """(counts, weights, 2, queries)."""
    words: np.ndarray | None


def main(
    data: Path,
    out: Path,
    config: TrainConfig = TrainConfig(),  # noqa: B008
    sizes: tuple[int, ...] = (20, 50, 100, 200, 300),
    trials: int = 300,
) -> None:
    pairs, lexical = measure_pairs(data, out, config), config.choice.lexical
    queries = pairs[0].plain.shape[1]
    print(f"{data.name}: {queries:,} dev queries, {len(pairs)} pairs of vectors and codes")
    for name, recalls in list_baselines(pairs).items():
        print(f"  {name}: R@10 {recalls[0].mean():.4f}, R@100 {recalls[1].mean():.4f}")
    best = max(offer(pairs, lexical, np.arange(queries)), key=lambda row: row.score)
    print(f"  best on all: {best.vectors}, {best.codes}, BM25 {best.fusion.lexical}: {best.score:.4f}")
    print("| dev queries | rule | loss, mean | loss, worst tenth | behind a baseline by .01, lead at 10 | at 100 |")
    print("|---|---|---|---|---|---|")
    for size in (size for size in sizes if size < queries * 0.8):
        outcomes: dict[str, list[tuple[float, float, float]]] = {}
        random = np.random.default_rng(0)
        for _ in range(trials):
            order = random.permutation(queries)
            seen, unseen = order[:size], order[size:]
            contenders = offer(pairs, lexical, seen)
            for rule, choose in RULES.items():
                chosen = choose(contenders)
                outcomes.setdefault(rule, []).append(measure(chosen, pairs, lexical, unseen))
        for rule, values in outcomes.items():
            loss, at_10, at_100 = np.array(values).T
            worst = np.sort(loss)[-max(1, trials // 10) :].mean()
            shares = " | ".join(f"{(part < -0.01).mean():.0%}, {part.mean():+.4f}" for part in (at_10, at_100))
            print(f"| {size} | {rule} | {loss.mean():.4f} | {worst:.4f} | {shares} |", flush=True)


def measure_pairs(data: Path, out: Path, config: TrainConfig) -> list[Pair]:
    """Train what is missing, and measure all pairs with all fusions."""
    run, pairs = open_run(load(data), config, out).with_config(with_recipe(config, "auto")), []
    lexical = config.choice.lexical

    class Recorder(model_selection._Selection):
        def _measure(self, vectors, codes, pair, coded):
            candidates = self._collect(pair, coded)
            spread, depth = measure_spread(candidates), min(config.candidates, len(run.validator.rows))

            def recall(fusion: Fusion) -> np.ndarray:
                return np.stack(measure_recalls(candidates, run.validator.pairs, fusion, depth)[:2])

            fused = np.stack(
                [[recall(Fusion(count, round_weight(w * spread))) for w in RELATIVE_WEIGHTS] for count in lexical]
            )
            is_first = (vectors, codes) == BASELINES[0]
            words = recall(Fusion(max(lexical), LEXICAL_ONLY * spread)) if is_first else None
            pairs.append(Pair(vectors, codes, coded.queries != pair.queries, recall(Fusion()), fused, words))
            return iter(())

        def measure(self, vectors, codes):
            rows = list(self._measure(vectors, codes, self.train_vectors(vectors), self.train_codes(vectors, codes)))
            assert not rows
            self.contenders = offer(pairs, lexical, np.arange(len(run.data.dev.texts)))

    selection, model_selection._Selection = model_selection._Selection, Recorder
    try:
        model_selection.select_model(run)
    finally:
        model_selection._Selection = selection
    return pairs


def offer(pairs: list[Pair], lexical: tuple[int, ...], queries: np.ndarray) -> list[Contender]:
    """List the contenders that `auto` would have with these dev queries; weights are numbers of RELATIVE_WEIGHTS."""
    contenders = []
    for pair in pairs:
        contenders.append(make(pair, Fusion(), pair.plain[:, queries]))
        best = None
        for count in range(len(lexical)):
            values = smooth(pair.fused[count][:, :, queries].mean(axis=(1, 2)))
            place = int(values.argmax())
            if best is None or values[place] > best[0]:
                best = values[place], count, place
        _, count, place = best
        contenders.append(make(pair, Fusion(lexical[count], place), pair.fused[count, place][:, queries]))
        if pair.words is not None:
            contenders.append(make(pair, Fusion(max(lexical), -1), pair.words[:, queries]))
    return contenders


def make(pair: Pair, fusion: Fusion, recalls: np.ndarray) -> Contender:
    fields = [pair.vectors, pair.codes, fusion, pair.two_encoders, *recalls.mean(axis=1), 0.0, 8.0]
    return Contender._make([*fields, tuple(recalls.mean(axis=0).tolist())])


def list_baselines(pairs: list[Pair]) -> dict[str, np.ndarray]:
    """Return the recalls of the baselines: OPQ of the warm-up and of STAR, and BM25."""
    rows = {f"{pair.vectors}, {pair.codes}": pair.plain for pair in pairs if (pair.vectors, pair.codes) in BASELINES}
    return rows | {"BM25": next(pair.words for pair in pairs if pair.words is not None)}


def measure(chosen: Contender, pairs: list[Pair], lexical: tuple[int, ...], queries: np.ndarray) -> tuple[float, ...]:
    """Measure a chosen contender on other queries: loss to the best, lead over the best baseline at 10 and 100."""
    pair = next(one for one in pairs if (one.vectors, one.codes) == (chosen.vectors, chosen.codes))
    if chosen.fusion.weight == -1:
        recalls = pair.words
    elif chosen.fusion.lexical:
        recalls = pair.fused[lexical.index(chosen.fusion.lexical), chosen.fusion.weight]
    else:
        recalls = pair.plain
    means = recalls[:, queries].mean(axis=1)
    everything = [one.plain for one in pairs]
    everything += [one.fused[at] for one in pairs for at in product(*map(range, one.fused.shape[:2]))]
    best = max(float(rows[:, queries].mean()) for rows in everything)
    baselines = np.stack([rows[:, queries].mean(axis=1) for rows in list_baselines(pairs).values()])
    return (best - float(means.mean()), *(means - baselines.max(axis=0)))


def choose_simplest(contenders: list[Contender]) -> Contender:
    best = max(contenders, key=lambda row: row.score)
    return min((row for row in contenders if is_within_standard_error(row, best)), key=lambda row: row.complexity)


RULES: dict[str, Callable[[list[Contender]], Contender]] = {
    "the best": lambda rows: choose_contender(rows, 0).contender,
    "within a standard error, the simplest": choose_simplest,
    "within a standard error, what leads elsewhere": lambda rows: choose_contender(rows, 10**9).contender,
}


if __name__ == "__main__":
    tyro.cli(main)
