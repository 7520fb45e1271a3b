"""The comparison: every row there, equal terms for all, nothing done twice."""

import json
from pathlib import Path

from cli_data import TINY, Made, Run

ROWS = ["BM25", "conventional", "bidr random-walk", "bidr snowball", "bidr unified"]


def test_compare_measures_every_way_on_equal_terms(bidr: Run, made: Made, tmp_path: Path) -> None:
    out, report = tmp_path / "out", tmp_path / "report.json"
    code, shown, err = bidr("compare", "--data", made.data, "--out", out, "--json", report, *TINY)
    assert code == 0, err
    rows = json.loads(report.read_text())["rows"]
    assert [row["method"] for row in rows] == ROWS
    assert all(f"\n{method} " in f"\n{shown}" for method in ROWS)
    for row in rows:
        assert 0 <= row["R@10"] <= row["R@100"] <= row["candidate_recall"] <= 1
        assert row["ms_per_query"] > 0
    assert {row["ram_bytes_per_doc"] for row in rows[1:]} == {8.0}

    stages = {path.parent.name: json.loads(path.read_text()) for path in (out / "work").glob("*/done.json")}
    epochs = {name: len(stage["history"]) for name, stage in stages.items()}
    (unified,) = [name for name in epochs if name.startswith("unify-")]
    assert epochs["conventional"] == epochs["sparse"] + epochs["dense-snowball"] + epochs[unified]

    before = {path: path.stat().st_mtime_ns for path in (out / "work").glob("*/done.json")}
    code, _, err = bidr("compare", "--data", made.data, "--out", out, "--json", report, *TINY)
    assert code == 0, err
    assert before == {path: path.stat().st_mtime_ns for path in before}, "a finished stage was run again"
    assert [row["R@10"] for row in json.loads(report.read_text())["rows"]] == [row["R@10"] for row in rows]
