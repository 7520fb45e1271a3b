"""The default against every baseline: ahead, level or behind."""

from sample_rows import baselines, row_result

from bidr.experiments.reproduce.default_comparison import (
    compare_default,
    make_default_summary,
    make_default_table,
)
from bidr.experiments.reproduce.result_groups import ResultGroup

ROWS = {"auto": 0.7, "bm25": 0.7, "star-opq": 0.4, "warmup-opq-bm25": 0.9, "bidr-random-walk": 0.95}


def test_the_default_is_ahead_level_or_behind_by_the_interval() -> None:
    group = ResultGroup(baselines(ROWS, dev={}))
    standings = {lead.row: lead.standings for lead in compare_default(group)}
    assert standings == {
        "bm25": ["level", "level"],
        "warmup-opq-bm25": ["behind", "behind"],
        "star-opq": ["ahead", "ahead"],
        "bidr-random-walk": ["behind", "behind"],
    }
    table = make_default_table(group).to_markdown()
    assert "| STAR + OPQ | 0.4000 | +0.3000 [" in table
    assert "(+75.0%)" in table
    assert table.count("| behind |") == 2


def test_the_summary_names_the_strongest_baseline_and_those_the_default_is_behind() -> None:
    others = [row_result("bm25", data="other"), row_result("auto", 0.9, data="other")]
    groups = [ResultGroup(results) for results in (baselines(ROWS, dev={}), others, [row_result("bm25", data="third")])]
    first, second = make_default_summary(groups).cells
    assert first[3:6] == ["0.7000, 0.7000", "warm-up + OPQ + BM25", "0.9000"]
    assert first[-1] == "warm-up + OPQ + BM25 (R@10); warm-up + OPQ + BM25 (R@100)", "the method's rows are none"
    assert second[-1] == "none of 1"
