"""The comparison: every row there, equal terms for all, nothing done twice."""

import json
import re
import shutil
from pathlib import Path

import pytest
from cli_data import TINY, Made, Run

from bidr.data.dataset import Split
from bidr.data.types import Query
from bidr.errors import ConfigError
from bidr.experiments.compare import ComparisonRow, _hold_out, format_table, report
from bidr.training.presets import DEFAULT

ROWS = ["BM25", "warm-up + OPQ", "conventional", "warm-up + OPQ + BM25"]
ROWS += ["bidr random-walk", "bidr snowball", "bidr unified"]
RECIPES = [name for name in DEFAULT if name != "auto"]


def test_compare_measures_every_way_on_equal_terms(bidr: Run, made: Made, tmp_path: Path) -> None:
    out, report = tmp_path / "out", tmp_path / "report.json"
    command = ("compare", "--data", made.data, "--out", out, "--json", report, *TINY, "--recipes", *RECIPES)
    code, shown, err = bidr(*command)
    assert code == 0, err
    comparison = json.loads(report.read_text())
    rows, baseline = comparison["rows"], comparison["baseline"]
    assert [row["method"] for row in rows] == ROWS
    assert baseline["chosen_by"] == "R@10 on dev"
    assert baseline["method"] == max(baseline["dev_R@10"], key=baseline["dev_R@10"].get)
    assert list(baseline["dev_R@10"]) == ["warm-up + OPQ", "conventional"]
    for method in (baseline["method"], "warm-up + OPQ + BM25"):
        assert set(comparison[f"against_{method}"]) == {*ROWS} - {method}
    assert all(0 <= row["dev_R@10"] <= 1 for row in rows)
    assert all(f"\n{method} " in f"\n{shown}" for method in ROWS)
    for row in rows:
        assert 0 <= row["R@10"] <= row["R@100"] <= row["candidate_recall"] <= 1
        assert row["ms_per_query"] > 0
    assert {row["ram_parts"]["codes"] for row in rows[1:]} == {8.0}
    for row in rows[1:]:
        assert row["ram_bytes_per_doc"] == pytest.approx(sum(row["ram_parts"].values()), abs=0.05)
        assert row["ram_parts"].keys() >= {"codes", "codebooks", "checksums", "seen blocks"}

    stages = {path.parent.name: json.loads(path.read_text()) for path in (out / "work").glob("*/done.json")}
    epochs = {name: stage["history"][-1]["epoch"] for name, stage in stages.items()}
    (unified,) = [name for name in epochs if name.startswith("unify-")]
    assert epochs["conventional"] == epochs["sparse"] + epochs["dense-snowball"] + epochs[unified]
    assert [name for name in epochs if name.startswith("conventional")] == ["conventional"], "the warm-up has no other"

    before = {path: path.stat().st_mtime_ns for path in (out / "work").glob("*/done.json")}
    code, _, err = bidr(*command)
    assert code == 0, err
    assert before == {path: path.stat().st_mtime_ns for path in before}, "a finished stage was run again"
    assert [row["R@10"] for row in json.loads(report.read_text())["rows"]] == [row["R@10"] for row in rows]


def test_chosen_recipes_are_rows_on_the_split_that_was_asked_for(bidr: Run, made: Made, tmp_path: Path) -> None:
    out, report = tmp_path / "out", tmp_path / "report.json"
    wanted = ["dpr-opq", "star-pq", "bidr-ann"]
    short = ["--warmup.epochs", "1", "--sparse.epochs", "1", "--dense.epochs", "1"]
    flags = ["--data", made.data, "--out", out, "--split", "dev", "--json", report, *TINY, *short]
    code, shown, err = bidr("compare", "--recipes", *wanted, *flags)
    assert code == 0, err
    found = json.loads(report.read_text())
    assert [row["method"] for row in found["rows"]] == ["BM25", "dpr-opq", "star-pq", "bidr ann"]
    base = found["baseline"]["method"]
    assert base == max(found["baseline"]["dev_R@10"], key=found["baseline"]["dev_R@10"].get)
    assert set(found["baseline"]["dev_R@10"]) == {"dpr-opq", "star-pq"}
    assert f"R@10 against {base}" in shown

    assert "did you mean 'star-opq'" in bidr.refused("compare", "--recipes", "star-oqp", *flags)


def test_the_default_rows_hold_the_method_and_the_choice(bidr: Run, made: Made, tmp_path: Path) -> None:
    """The choice shares the stages of the method, is at least as good on dev, and is measured with its fusion."""
    assert {"warmup-opq", "conventional", "warmup-opq-bm25", "bidr-unified", "auto"} <= {*DEFAULT}
    out, report = tmp_path / "out", tmp_path / "report.json"
    named = ("--recipes", "warmup-opq", "bidr", "star-opq-bm25", "auto", "--split", "dev", "--frozen.steps", 3)
    code, shown, err = bidr("compare", "--data", made.data, "--out", out, "--json", report, *TINY, *named)
    assert code == 0, err
    comparison = json.loads(report.read_text())
    by_words, baseline, method, fused, choice = comparison["rows"]
    assert (by_words["method"], fused["method"], choice["method"]) == ("BM25", "STAR + OPQ + BM25", "auto")
    gain = comparison["against_STAR + OPQ + BM25"]["auto"]["R@10"]["difference"]
    assert gain == pytest.approx(choice["R@10"] - fused["R@10"])
    assert f"auto against STAR + OPQ + BM25: R@10 {gain:+.4f}" in shown

    def average(row: dict) -> float:
        return row["R@10"] + row["R@100"]

    assert average(choice) >= max(average(row) for row in (by_words, baseline, method, fused)) - 1e-9
    stages = [path.parent.name for path in (out / "work").glob("*/done.json")]
    assert sorted(name for name in stages if name.startswith(("warmup", "sparse", "dense", "unify"))) == [
        "dense-random-walk", "sparse", "unify-random-walk", "warmup",
    ]  # fmt: skip


def make_row(method: str, r10: float, dev_r10: float, *, is_baseline: bool = True) -> ComparisonRow:
    values = {"q1": r10, "q2": r10}
    per_query = {"R@10": values, "R@100": values}
    return ComparisonRow(method, r10, r10, 1.0, 8.0, 1.0, per_query, dev_r10=dev_r10, is_baseline=is_baseline)


def test_differences_are_to_the_baseline_that_is_best_on_dev_whatever_test_says() -> None:
    rows = [
        make_row("BM25", 0.9, 0.9, is_baseline=False),
        make_row("warm-up + OPQ", 0.3, 0.6),
        make_row("conventional", 0.5, 0.4),
        make_row("bidr unified", 0.4, 0.8, is_baseline=False),
    ]
    comparison = report(rows)
    assert comparison["baseline"] == {
        "method": "warm-up + OPQ",
        "chosen_by": "R@10 on dev",
        "dev_R@10": {"warm-up + OPQ": 0.6, "conventional": 0.4},
    }
    differences = {name: values["R@10"]["difference"] for name, values in comparison["against_warm-up + OPQ"].items()}
    assert differences == pytest.approx({"BM25": 0.6, "conventional": 0.2, "bidr unified": 0.1})
    table = format_table(rows).splitlines()
    assert table[0].endswith("R@10 against warm-up + OPQ")
    assert table[-2] == (
        "differences are to warm-up + OPQ, the strongest baseline by R@10 on dev: warm-up + OPQ 0.6000, "
        "conventional 0.4000; BM25 0.9000"
    )


def test_without_a_baseline_differences_are_to_the_first_trained_row() -> None:
    rows = [make_row(name, 0.5, 0.5, is_baseline=False) for name in ("BM25", "bidr ann", "star-distilled")]
    comparison = report(rows)
    assert comparison["baseline"] == {"method": "bidr ann", "chosen_by": None, "dev_R@10": {}}
    assert format_table(rows).splitlines()[-2].startswith("differences are to bidr ann: no row has one encoder")


def test_finished_rows_are_on_disk_before_the_next_one_is_trained(
    bidr: Run, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bidr.experiments import compare

    real = compare.train_model

    def cut_off(run, folder, name):  # type: ignore[no-untyped-def]
        if folder.name == "star-pq":
            raise ConfigError("cut off")
        return real(run, folder, name)

    monkeypatch.setattr(compare, "train_model", cut_off)
    code, _, _ = bidr("compare", "--recipes", "star-opq", "star-pq", "--data", made.data, "--out", tmp_path, *TINY)
    assert code == 2
    rows = json.loads((tmp_path / "comparison.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["BM25", "star-opq"]


def test_a_recipe_is_a_preset_that_a_file_and_flags_override(tmp_path: Path) -> None:
    from bidr.cli.config_parsing import parse_flags
    from bidr.cli.train import Train

    (tmp_path / "a.toml").write_text('[conventional]\nrefresh = 3\ncodes = "pq"\n[dense]\nprefixes = [4, 8]\n')
    flags = ["--recipe", "ance-opq", "--config", str(tmp_path / "a.toml"), "--data", "x", "--out", "y"]
    flags += ["--conventional.refresh", "5"]
    found = parse_flags(Train, flags, "bidr train", Train.make_defaults(flags)).settings
    assert (found.method, found.conventional.negatives) == ("conventional", "refreshed-alone")
    assert (found.conventional.codes, found.conventional.refresh, found.dense.prefixes) == ("pq", 5, (4, 8))


def test_flags_have_their_way_over_the_recipes_of_a_comparison_and_that_is_said(
    bidr: Run, made: Made, tmp_path: Path
) -> None:
    flags = ["--data", made.data, "--out", tmp_path / "out", *TINY, "--dense.prefixes", "8", "16"]
    short = ["--warmup.epochs", "1", "--sparse.epochs", "1", "--dense.epochs", "1"]
    code, _, err = bidr("compare", "--recipes", "bidr-matryoshka", *flags, *short)
    assert code == 0, err
    assert "recipe 'bidr-matryoshka': dense.prefixes is (8, 16) as given, not (64, 128)" in err
    trained = json.loads((tmp_path / "out" / "bidr-matryoshka" / "model.json").read_text())["training"]["config"]
    assert trained["dense"]["prefixes"] == [8, 16]
    assert "| recipe | `bidr-matryoshka`" in (tmp_path / "out" / "bidr-matryoshka" / "README.md").read_text()


def test_dev_questions_that_training_sets_aside_are_measured_on(bidr: Run, made: Made, tmp_path: Path) -> None:
    data, report = tmp_path / "data", tmp_path / "report.json"
    shutil.copytree(made.data, data)
    (data / "qrels" / "dev.tsv").unlink()
    flags = ["--recipes", "dpr-opq", "--data", data, "--out", tmp_path / "out", "--split", "dev", *TINY]
    short = ["--warmup.epochs", "1", "--sparse.epochs", "1", "--dense.epochs", "1"]
    code, _, err = bidr("compare", *flags, *short, "--json", report)
    assert code == 0, err
    assert "set aside to choose on" in err
    assert [row["method"] for row in json.loads(report.read_text())["rows"]] == ["BM25", "dpr-opq"]
    assert "no split 'other'" in bidr.refused("compare", *flags, "--split", "other")


def test_compare_evaluate_inspect_plan_and_the_server_agree_on_the_ram_of_an_index(
    bidr: Run, made: Made, tmp_path: Path
) -> None:
    """One definition, everything counted: codes, codebooks, checksums, deletions, BM25."""
    from bidr.index.cost_model.sizes import Shape, estimate_ram
    from bidr.index.live.live_reader import LiveIndex
    from bidr.index.ram_usage import RamUsage, select_index_parts
    from bidr.planning.plan import CorpusSpec, plan

    out = tmp_path / "out"
    short = ["--warmup.epochs", "1", "--sparse.epochs", "1", "--dense.epochs", "1"]
    flags = ["--recipes", "warmup-opq", "--data", made.data, "--out", out, *TINY, *short]
    assert bidr("compare", *flags).code == 0
    (_, row) = json.loads((out / "comparison.json").read_text())["rows"]
    index = out / "warmup-opq" / "index"
    assert bidr("evaluate", "--data", made.data, "--index", index, "--json", tmp_path / "evaluated.json").code == 0
    assert bidr("inspect", index, "--json", tmp_path / "inspected.json").code == 0
    evaluated, inspected = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("evaluated", "inspected"))
    assert row["ram_bytes_per_doc"] == evaluated["ram_bytes_per_doc"]
    assert row["ram_parts"] == evaluated["ram_parts"]
    assert {**row["ram_parts"], "total": round(row["ram_bytes_per_doc"], 2)} == inspected["ram_bytes_per_document"]
    with LiveIndex.open(index) as reader:  # what GET /v1/index shows, see tests/server/test_index_holder.py
        assert reader.ram_usage.per_document == row["ram_bytes_per_doc"]
    shape = Shape(320, 32, "scan", 4, 8, live=False)
    usage = RamUsage(select_index_parts(estimate_ram(shape)), 320)
    assert usage.parts.keys() == row["ram_parts"].keys()
    assert usage.per_document == pytest.approx(row["ram_bytes_per_doc"], rel=0.1)
    spec = CorpusSpec(docs=320, dim=32, ram=1 << 30, code_bytes=8, live=False)
    (planned,) = [engine for engine in plan(spec)["engines"] if (engine["engine"], engine["bits"]) == ("scan", 4)]
    assert planned["ram"]["per_document"] == usage.per_document


def write_msmarco(data: Path, folder: Path) -> None:
    """Write a BEIR folder's data under MS MARCO's names: dev, and dev.small, which is inside it."""
    from bidr.data.dataset import load

    folder.mkdir()
    dataset = load(data)
    documents = [f"{document.id}\t{document.title} {document.text}\n" for document in dataset.corpus]
    (folder / "collection.tsv").write_text("".join(documents))
    for name in ("train", "dev"):
        splits = [dataset.split(part) for part in (["train"] if name == "train" else ["dev", "test"])]
        queries = [query for split in splits for query in split.queries]
        qrels = {query: scores for split in splits for query, scores in split.qrels.items()}
        lines = [f"{query}\t0\t{document}\t1\n" for query, scores in qrels.items() for document in scores]
        (folder / f"queries.{name}.tsv").write_text("".join(f"{query.id}\t{query.text}\n" for query in queries))
        (folder / f"qrels.{name}.tsv").write_text("".join(lines))
        if name == "dev":
            (folder / "qrels.dev.small.tsv").write_text("".join(lines[::4]))


def test_of_msmarcos_files_no_query_is_both_selected_on_and_reported(bidr: Run, made: Made, tmp_path: Path) -> None:
    """dev.small is inside dev. The model says what it was selected on, and `evaluate` counts it."""
    data, out = tmp_path / "msmarco", tmp_path / "out"
    write_msmarco(made.data, data)
    short = ["--warmup.epochs", "1", "--sparse.epochs", "1", "--dense.epochs", "1", "--dev-queries", "12"]
    flags = ["--recipes", "warmup-opq", "--data", data, "--out", out, *TINY, *short]
    for split, count in (("dev.small", 20), ("dev", 80 - 12)):
        code, shown, err = bidr("compare", *flags, "--split", split, "--json", tmp_path / f"{split}.json")
        assert code == 0, err
        rows = json.loads((tmp_path / f"{split}.json").read_text())["rows"]
        assert {(row["queries"], row["queries_selected_on"]) for row in rows} == {(count, 0)}
        assert ("12 of the 80 queries of 'dev' are those that training selects on" in err) == (split == "dev")
    for split, shared in (("dev.small", 0), ("dev", 12)):
        report = tmp_path / f"evaluated-{split}.json"
        index = out / "warmup-opq" / "index"
        code, shown, err = bidr("evaluate", "--data", data, "--index", index, "--split", split, "--json", report)
        assert code == 0, err
        assert json.loads(report.read_text())["queries_selected_on"] == shared
        assert ("12 of 80 queries are those that the model's training selected on" in shown) == bool(shared)


def test_a_small_dev_split_is_measured_whole_and_said_to_be_selected_on(bidr: Run, made: Made, tmp_path: Path) -> None:
    short = ["--warmup.epochs", "1", "--sparse.epochs", "1", "--dense.epochs", "1"]
    flags = ["--recipes", "warmup-opq", "--data", made.data, "--out", tmp_path / "out", "--split", "dev", *TINY, *short]
    code, shown, err = bidr("compare", *flags, "--json", tmp_path / "report.json")
    assert code == 0, err
    assert "40 of 40 queries are those that training selected on: report on another split" in shown
    rows = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert {(row["queries"], row["queries_selected_on"]) for row in rows} == {(40, 40)}


def test_a_split_of_queries_that_training_selects_on_is_refused() -> None:
    queries = [Query(f"q{number}", f"question {number}") for number in range(10)]
    tests = [Query("other", "question 3"), *queries[4:7], Query("new", "new")]
    dev, test = (Split("", some, {query.id: {"d": 1} for query in some}) for some in (queries[:8], tests))
    with pytest.raises(ConfigError, match="4 of the 5 queries of '' are those that training selects on"):
        _hold_out(test, dev)


@pytest.mark.parametrize("verb", ["train", "compare"])
def test_vectors_cut_off_behind_their_end_are_refused(bidr: Run, made: Made, tmp_path: Path, verb: str) -> None:
    given = ["--data", made.data, "--out", tmp_path / "out", *TINY]
    for flag in ["--dense.prefixes"] + ["--shrink"] * (verb == "compare"):
        line = bidr.refused(verb, *given, flag, "8", "33")
        assert f"{flag.removeprefix('--')}: given 33, expected 1 to 32" in line
        assert "recipe" not in line


def test_a_recipe_that_cuts_vectors_off_behind_their_end_is_refused_before_anything_is_trained(
    bidr: Run, made: Made, tmp_path: Path
) -> None:
    given = ["--data", made.data, "--out", tmp_path / "out", *TINY]
    line = bidr.refused("train", "--recipe", "bidr-matryoshka", *given)
    assert "dense.prefixes: given 64, expected 1 to 32" in line
    assert "set --dense.prefixes 8 16, say, or take an encoder with at least 128 dimensions" in line
    line = bidr.refused("compare", "--recipes", "dpr-opq", "bidr-matryoshka", *given)
    assert "recipe 'bidr-matryoshka', dense.prefixes: given 64, expected 1 to 32" in line
    assert "leave the recipe out, or take an encoder with at least 128 dimensions" in line
    assert not (tmp_path / "out").exists()


def test_recipes_are_listed_with_a_line_each(bidr: Run) -> None:
    code, shown, _ = bidr("recipes")
    assert code == 0
    lines = shown.splitlines()
    assert len(lines) > 20
    assert all(re.match(r"  [\w-]+ +\S.{10}", line) and len(line) < 100 for line in lines)
