"""Run the reproduction: all rows of all seeds, most important first; what is finished is not done again."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bidr.data.dataset import Dataset
from bidr.errors import ConfigError, DataError
from bidr.experiments.reproduce.row_files import RowResult, RowStore, check_same_settings
from bidr.experiments.reproduce.row_runner import SeedRunner, make_template, run_rows
from bidr.experiments.reproduce.row_specs import RowSpec, select_rows, split_names, with_seed
from bidr.training.config import TrainConfig
from bidr.training.run_context import check_prefixes
from bidr.utils.progress import say

WORK, PEERS = "work", "peers"
REPORTED_SPLITS = ("test", "dev.small", "dev")
REPORTED_DEV = "dev.reported"
MIN_CANDIDATES, DOCUMENTS_PER_CANDIDATE = 100, 10


def reproduce(
    data: Dataset,
    config: TrainConfig,
    out: Path,
    *,
    seeds: int = 3,
    only: Sequence[str] = (),
    split: str | None = None,
    preset: str | None = None,
    work: Path | None = None,
) -> list[RowResult]:
    """Measure the rows that are not finished yet, seed by seed, and return those of this call.

    Args:
        only: names of tables and rows; none: all but the optional tables.
        split: the split to report on; None: the first of REPORTED_SPLITS that there is.
        preset: name of the paper's settings that `config` has, for the record.
        work: folder of a training run or comparison with the same data and settings, whose stages are used; with one
            seed only. None: a folder of each seed in `out`.
    """
    if seeds < 1:
        raise ConfigError(f"seeds: given {seeds}, expected 1 or more")
    if work is not None and seeds > 1:
        raise ConfigError(f"seeds: given {seeds} with stages of one run, expected 1")
    check_prefixes(config, config.dim)
    specs = select_rows(only, config)
    if config.unify.epochs < 1 and any(spec.name.endswith("-unified") for spec in specs):
        raise ConfigError("unify.epochs: given 0, expected 1 or more: the unified rows fit a query encoder")
    data, split = separate_reported_split(data, split)
    config = cap_candidates(config, data.corpus.count())
    template = make_template(data, config, split, len(data.split(split).queries), preset)
    store, names = RowStore(out), split_names(only)
    plan = {
        seed: list_unfinished(store, replace(template, seed=seed), specs, names)
        for seed in range(config.seed, config.seed + seeds)
    }
    for line in describe_progress(plan, len(specs)):
        say(line)
    results = []
    for seed, unfinished in plan.items():
        if not unfinished:
            continue
        folder = work or out / WORK / f"{template.data}+{template.encoder}+seed{seed}"
        seeded = replace(template, seed=seed)
        runner = SeedRunner(data, with_seed(config, seed), folder, split, seeded, out / PEERS)
        results += run_rows(runner, unfinished, store)
    return results


def cap_candidates(config: TrainConfig, documents: int) -> TrainConfig:
    """Cap N at a tenth of the corpus: candidates that are most of a corpus would leave nothing to find."""
    limit = min(documents, max(MIN_CANDIDATES, documents // DOCUMENTS_PER_CANDIDATE))
    if config.candidates <= limit:
        return config
    say(f"candidates: {config.candidates:,} are more than a tenth of {documents:,} documents, {limit:,} are taken")
    return replace(config, candidates=limit)


def separate_reported_split(data: Dataset, split: str | None) -> tuple[Dataset, str]:
    """Choose the split to report on. Where it is dev, training must not choose on it: it is renamed.

    Training then sets aside train queries to choose on.
    """
    names = data.splits()
    chosen = split or next((name for name in REPORTED_SPLITS if name in names), None)
    if chosen is None or chosen not in names:
        raise DataError(
            f"dataset {data.name!r} has no split {split or ' or '.join(REPORTED_SPLITS)}, its splits are "
            f"{', '.join(names) or 'none'}; name the one to report on with --split"
        )
    if chosen != "dev":
        return data, chosen
    renamed = copy.copy(data)
    renamed.tables = {REPORTED_DEV if name == "dev" else name: tables for name, tables in data.tables.items()}
    return renamed, REPORTED_DEV


def list_unfinished(
    store: RowStore, template: RowResult, specs: Sequence[RowSpec], names: Sequence[str]
) -> list[RowSpec]:
    """List the rows of a seed that have no result yet; refuse results of other settings.

    Args:
        names: rows to try again if they could not be measured.
    """
    unfinished = []
    for spec in specs:
        result = store.load(template.data, template.encoder, template.seed, spec.name)
        if result is None or (not result.is_measured and spec.name in names):
            unfinished.append(spec)
        else:
            path = store.get_path(template.data, template.encoder, template.seed, spec.name)
            check_same_settings(result, template.settings, path)
    return unfinished


def describe_progress(plan: dict[int, list[RowSpec]], count: int) -> list[str]:
    """Describe what is left of each seed."""
    return [
        f"seed {seed}: {count - len(unfinished)} of {count} rows finished"
        + (f"; left: {', '.join(spec.name for spec in unfinished)}" if unfinished else "")
        for seed, unfinished in plan.items()
    ]
