"""Rows on disk: ranks from which every recall follows, and settings that must not mix."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sample_rows import row_result

from bidr.data.positives import build_positives
from bidr.errors import ConfigError, DataError
from bidr.experiments.reproduce.row_files import (
    RelevantRanks,
    RowStore,
    check_same_settings,
    group_results,
    rank_relevant,
    read_row,
)
from bidr.search.evaluation import evaluate_run, rank_run


def make_results(seed: int = 0) -> tuple[np.ndarray, dict[str, dict[str, int]]]:
    """Results of 30 queries among 50 documents, and one to three relevant ones of each."""
    random = np.random.default_rng(seed)
    rows = np.array([random.permutation(50)[:20] for _ in range(30)])
    qrels = {f"q{query}": {f"d{row}": 1 for row in random.permutation(50)[: 1 + query % 3]} for query in range(30)}
    return rows, qrels


def test_recall_of_ranks_is_that_of_ir_measures_at_every_cutoff() -> None:
    rows, qrels = make_results()
    pairs = build_positives(list(qrels), qrels, {f"d{row}": row for row in range(50)})
    ranks = RelevantRanks.from_pairs(pairs, rank_relevant(rows, pairs))
    run = rank_run({query: [f"d{row}" for row in hits] for query, hits in zip(qrels, rows.tolist(), strict=True)})
    for cutoff in (1, 3, 10, 20):
        scores = evaluate_run(run, qrels, [f"R@{cutoff}"])
        assert ranks.compute_recall(cutoff) == pytest.approx(scores.mean[f"R@{cutoff}"])
        assert ranks.compute_recalls(cutoff).tolist() == pytest.approx(list(scores.per_query[f"R@{cutoff}"].values()))


def test_ranks_survive_being_written() -> None:
    rows, qrels = make_results(1)
    pairs = build_positives(list(qrels), qrels, {f"d{row}": row for row in range(50)})
    ranks = RelevantRanks.from_pairs(pairs, rank_relevant(rows, pairs))
    parsed = RelevantRanks.parse(ranks.format())
    assert parsed.starts.tolist() == ranks.starts.tolist()
    assert parsed.ranks.tolist() == ranks.ranks.tolist()


def test_results_needed_for_a_recall_are_the_fewest_that_reach_it() -> None:
    ranks = RelevantRanks.parse("1 4 9 0")
    assert [ranks.count_needed(recall) for recall in (0.25, 0.5, 0.6, 0.75, 0.8)] == [1, 4, 9, 9, None]
    for recall in (0.25, 0.5, 0.75):
        count = ranks.count_needed(recall)
        assert count is not None
        assert ranks.compute_recall(count) >= recall > ranks.compute_recall(count - 1)


def test_a_saved_row_is_loaded_as_it_was(tmp_path: Path) -> None:
    store, result = RowStore(tmp_path), row_result("star-opq", seed=2)
    assert store.load("made", "built-in", 2, "star-opq") is None
    store.save(result)
    assert store.load("made", "built-in", 2, "star-opq") == result
    assert store.load_all() == [result]
    assert not list(store.folder.glob(".*"))


@pytest.mark.parametrize("content", ["{", '{"row": "x"}', None])
def test_a_damaged_row_is_named(tmp_path: Path, content: str | None) -> None:
    path = RowStore(tmp_path).save(row_result("star-opq"))
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, "format": 9}) if content is None else content)
    with pytest.raises(DataError, match=r"star-opq\.json.*delete the file"):
        read_row(path)


def test_rows_of_other_settings_are_refused_by_name_of_the_setting() -> None:
    result = row_result("star-opq")
    check_same_settings(result, result.settings, Path("x"))
    with pytest.raises(ConfigError, match=r"warmup\.epochs 'by default', given 5"):
        check_same_settings(result, {**result.settings, "warmup.epochs": 5}, Path("x"))
    with pytest.raises(ConfigError, match="split 'test', given 'by default'"):
        check_same_settings(result, {"bytes_per_doc": 8, "candidates": 500}, Path("x"))


def test_code_sizes_of_a_sweep_stay_in_the_group_of_their_run() -> None:
    results = [row_result("star-opq"), row_result("star-opq-256-bits", bytes_per_doc=32)]
    other = replace(results[0], settings={**results[0].settings, "bytes_per_doc": 16})
    assert [len(members) for members in group_results([*results, other]).values()] == [2, 1]
