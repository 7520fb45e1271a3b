"""The report: one document of all rows found, on any number of sets and seeds."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from sample_rows import curve, row_result

from bidr.errors import DataError
from bidr.experiments.reproduce.charts import IntervalRow, choose_ticks, choose_x_ticks, render_intervals
from bidr.experiments.reproduce.paper_settings import METHOD, list_deviations
from bidr.experiments.reproduce.results_report import write_report
from bidr.experiments.reproduce.row_files import RowResult, RowStore


def save(out: Path, *results: RowResult) -> None:
    for result in results:
        RowStore(out).save(result)


def test_the_report_grows_with_sets_and_seeds(tmp_path: Path) -> None:
    save(tmp_path, row_result("star-opq", 0.5), row_result("bidr-random-walk", 0.7))
    first = write_report(tmp_path)
    assert "made, built-in, 8 bytes, N = 500: 4 of 4 claims hold" in first.text
    save(tmp_path, *(row_result(row, value, seed=1) for row, value in (("star-opq", 0.52), ("bidr-random-walk", 0.66))))
    save(tmp_path, row_result("star-opq", 0.3, data="other"), row_result("bidr-random-walk", 0.2, data="other"))
    write_report(tmp_path)
    text = (tmp_path / "report" / "report.md").read_text()
    assert re.search(r"\| made \| built-in \| sum of .* \| 5,000 \| 200 \| test \| 500 \| 8 \| 0, 1 \| 4 \|", text)
    assert re.search(
        r"\| random walk beats the strongest baseline, R@10 \| table 1 .*"
        r"\| made, built-in: \+0\.1700 .* \| other, built-in: -0\.1000",
        text,
    )
    assert "**Holds on some of the datasets**: random walk beats the strongest baseline, R@10 (1 of 2); " in text
    assert re.search(r"\| bidr, random walk \| 0\.6800 \| .* \| 0\.6600 to 0\.7000 \| .* \| 2 \|", text)
    assert re.search(
        r"\+0\.1700 \[\+0\.\d+, \+0\.\d+\] \(\+33\.3%; seeds \+0\.1400 to \+0\.2000\) \| 2 \| \*\*holds", text
    )
    groups = json.loads((tmp_path / "report" / "report.json").read_text())["groups"]
    assert [group["strongest_baseline"] for group in groups] == ["star-opq", "star-opq"]
    assert "**4 of the 4 claims measured hold here**; 30 were not measured." in text
    claims = {claim["claim"]: claim for claim in groups[0]["claims"]}
    claim = claims["random walk beats the strongest baseline, R@10"]
    assert claim["verdict"] == "holds"
    assert claim["per_seed"] == pytest.approx([0.2, 0.14])


def test_charts_are_well_formed_and_the_report_shows_them(tmp_path: Path) -> None:
    depths = {100.0: 0.5, 1_000.0: 0.6, 10_000.0: 0.65}
    sizes = {1_000.0: 0.8, 4_000.0: 0.7}
    rows = [row_result("star-opq", 0.5), row_result("bm25", 0.4), row_result("bidr-random-walk", 0.7)]
    for row in ("star-opq", "bidr-random-walk"):
        rows.append(row_result(f"{row}-depths", curve=curve("candidates", depths)))
        rows.append(row_result(f"{row}-sizes", curve=curve("documents", sizes), ranks={}))
        rows.append(row_result(f"{row}-256-bits", 0.8, bytes_per_doc=32))
    save(tmp_path, *rows)
    write_report(tmp_path)
    folder = tmp_path / "report"
    charts = sorted(folder.glob("*.svg"))
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", (folder / "report.md").read_text())
    assert sorted(shown) == [chart.name for chart in charts]
    assert len(charts) == 4
    for chart in charts:
        words = [element.text for element in ElementTree.parse(chart).iter() if element.text]
        assert any("built-in" in word for word in words)
        assert "prefers-color-scheme:dark" in chart.read_text()
    text = (folder / "report.md").read_text()
    assert "Candidates needed for a recall" in text
    assert "| STAR + OPQ | 0.5000 | 0.8000 |" in text, "bits"


def test_rows_that_could_not_be_measured_say_why(tmp_path: Path) -> None:
    failed = row_result(
        "star-diskann", is_measured=False, ranks={}, values={}, notes=["DiskANN: cannot be installed: no"]
    )
    save(tmp_path, row_result("star-opq"), failed)
    write_report(tmp_path)
    text = (tmp_path / "report" / "report.md").read_text()
    assert "- star-diskann: DiskANN: cannot be installed: no" in text
    assert "STAR + DiskANN (diskannpy) |" not in text


def test_settings_that_differ_are_named(tmp_path: Path) -> None:
    settings = {"bytes_per_doc": 8, "candidates": 500, "split": "test"}
    save(tmp_path, row_result("star-opq"), row_result("bm25", settings={**settings, "warmup.epochs": 9}))
    write_report(tmp_path)
    text = (tmp_path / "report" / "report.md").read_text()
    assert "- `sparse.loss` is 'joint', the paper's is 'quantized'" in text
    assert "- `warmup.negatives` is 'in-batch', the paper's is 'bm25'" in text
    assert "- rows measured with other settings than bm25: star-opq" in text


def test_a_folder_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no rows"):
        write_report(tmp_path)
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.0), (-0.013, 0.021), (0.41, 0.97), (0.5, 0.5001)])
def test_ticks_enclose_the_values(low: float, high: float) -> None:
    ticks = choose_ticks(low, high)
    assert ticks[0] <= low + 1e-9
    assert high - 1e-9 <= ticks[-1]
    assert 2 <= len(ticks) <= 12


@pytest.mark.parametrize("values", [(0.04, 0.065), (100, 10_000), (5, 70), (64, 1_024)])
def test_every_axis_has_labels_within_its_values(values: tuple[float, float]) -> None:
    between = [values[0] + (values[1] - values[0]) * step / 9 for step in range(10)]
    ticks = choose_x_ticks(between, log=True)
    assert 3 <= len(ticks) <= 12
    assert all(values[0] * 0.999 <= tick <= values[1] * 1.001 for tick in ticks)


def test_an_interval_is_colored_by_the_side_of_zero_that_it_is_on() -> None:
    rows = [
        IntervalRow("above", 0.2, 0.1, 0.3),
        IntervalRow("below", -0.2, -0.3, -0.1),
        IntervalRow("both", 0.1, -1, 1),
    ]
    svg = render_intervals(rows, "title", "difference")
    colors = re.findall(r'r="4.5" fill="(#\w+)"', svg)
    assert len(set(colors)) == 3


def test_negatives_of_transformers_are_the_papers_by_default() -> None:
    assert not list_deviations(METHOD, "transformer")
    settings = {key: value for key, value in METHOD.items() if not key.endswith(".negatives")}
    assert not list_deviations(settings, "transformer")
    assert len(list_deviations(settings, "built-in")) == len(list_deviations(settings, "static")) == 2


def test_ram_at_a_billion_documents_is_without_codebooks_that_do_not_grow(tmp_path: Path) -> None:
    notes = ["engine scan", "chosen on dev: STAR"]
    save(tmp_path, row_result("star-opq", ram={"codes": 8.0, "codebooks": 6.0, "total": 14.7}, notes=notes))
    write_report(tmp_path)
    text = (tmp_path / "report" / "report.md").read_text()
    assert re.search(r"\| STAR \+ OPQ \| 8\.0 \| 14\.7 \| 8 \| .* \| engine flat; chosen on dev: STAR \|", text)


def test_a_table_of_nothing_but_rows_of_other_tables_is_left_out(tmp_path: Path) -> None:
    save(tmp_path, row_result("star-opq"), row_result("bidr-random-walk"))
    write_report(tmp_path)
    assert "### Table 2" not in (tmp_path / "report" / "report.md").read_text()
    save(tmp_path, row_result("star-hnsw"))
    write_report(tmp_path)
    table = (tmp_path / "report" / "report.md").read_text().partition("### Table 2")[2].partition("###")[0]
    assert re.findall(r"^\| (STAR.*?|bidr.*?) \|", table, re.MULTILINE) == [
        "STAR, full vectors in RAM",
        "bidr, random walk",
    ]
