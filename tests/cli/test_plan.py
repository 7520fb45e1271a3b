"""bidr plan: what it says adds up, what it measures holds, and bad input is one line."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli_data import Run

from bidr.errors import ConfigError
from bidr.index.builder.in_memory_engines import make_graph, make_lists, make_scan
from bidr.index.cost_model.build_time import Rates, scale_default_rates
from bidr.index.engines.ivf import get_default_nprobe
from bidr.index.lexical.size_estimate import guess_lexical_size
from bidr.planning import tuning as settings
from bidr.planning.calibration import CalibrationConfig, MachineRates
from bidr.planning.disk_benchmark import DiskSpeed
from bidr.planning.extrapolation import Extrapolation
from bidr.planning.plan import CorpusSpec, count_machines, plan
from bidr.quantization.exact_search import search_vectors
from bidr.quantization.opq_config import PlainCodes
from bidr.quantization.pq_training import fit_pq
from bidr.utils.byte_sizes import parse_bytes

GIB = 1 << 30
DIM = 32


def test_a_plan_for_a_billion(bidr: Run, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    shown = bidr("plan", "--docs", "1e9", "--dim", 768, "--ram", "64GiB", "--json", out)
    assert shown.code == 0, shown.err
    for word in (
        "flat, 8 bits",
        "ivf, 4 bits",
        "graph, 8 bits",
        "machines",
        "largest codes that fit",
        "pages read, cold",
    ):
        assert word in shown.out
    value = json.loads(out.read_text())
    assert [(each["engine"], each["bits"]) for each in value["engines"]] == [
        (engine, bits) for engine in ("scan", "lists", "hnsw") for bits in (8, 4)
    ]
    for each in value["engines"]:
        assert each["ram"]["total"] == sum(each["ram"]["bytes"].values())
        assert each["fits"] == (each["ram"]["total"] <= 64 * GIB) == (each["machines"] == 1)
        assert each["ram_a_machine"] <= 64 * GIB


def test_the_largest_codes_fit_and_the_next_do_not() -> None:
    corpus = CorpusSpec(docs=50_000_000, dim=384, ram=2 * GIB)
    for each in plan(corpus)["engines"]:
        books = [number for number in range(1, 385) if 384 % number == 0 and number * each["bits"] % 8 == 0]
        sizes = [number * each["bits"] // 8 for number in books]
        fitting = [size for size in sizes if _engine(replace(corpus, code_bytes=size), each)["fits"]]
        assert each["largest_code_bytes"] == max(fitting, default=None)
        assert fitting != sizes, "a budget that holds everything tests nothing"


def _engine(corpus: CorpusSpec, like: dict) -> dict:
    return next(e for e in plan(corpus)["engines"] if (e["engine"], e["bits"]) == (like["engine"], like["bits"]))


def test_what_is_planned_can_be_built(bidr: Run, tmp_path: Path) -> None:
    """By the rule that `bidr build` has, for codes of 8 bits and of 4; a size that nobody gave is one that fits."""
    for dim, size in ((100, 50), (37, 18), (768, 64), (6, 3), (16, 8)):
        shown = bidr("plan", "--docs", "1e6", "--dim", dim, "--json", tmp_path / "plan.json")
        assert shown.code == 0, shown.err
        value = json.loads((tmp_path / "plan.json").read_text())
        assert value["code_bytes"] == size
        for bits, codewords in ((8, 256), (4, 16)):
            there = any(each["bits"] == bits for each in value["engines"])
            try:
                PlainCodes(size, codewords).count_books(dim)
            except ConfigError:
                assert not there
            else:
                assert there


def test_as_many_machines_as_are_needed_and_no_more() -> None:
    corpus = CorpusSpec(docs=10**9, dim=768, ram=16 * GIB)
    for each in plan(corpus)["engines"]:
        fewer = -(-corpus.docs // (each["machines"] - 1))
        assert count_machines(corpus, each["engine"], each["bits"]) == each["machines"] > 1
        assert each["ram_a_machine"] <= corpus.ram
        alone = CorpusSpec(docs=fewer, dim=768, ram=16 * GIB)
        assert not _engine(alone, each)["fits"]


def test_build_times_by_rates_of_this_machine(
    bidr: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[Path, Path]
) -> None:
    """Twice as slow, twice as long; where the rates are from is said, and measured is what will be built."""
    asked = list[CalibrationConfig]()

    def measured(wanted: CalibrationConfig) -> MachineRates:
        asked.append(wanted)
        slow = {bits: Rates(*(2 * rate for rate in scale_default_rates(bits, DIM, 500))) for bits in wanted.bits}
        return MachineRates({bits: own._replace(row_bytes=own.row_bytes / 2) for bits, own in slow.items()}, "Toy", 7.0)

    monkeypatch.setattr("bidr.planning.plan.calibrate", measured)
    flags = ["plan", "--docs", "1e6", "--dim", DIM, "--text-bytes", 500, "--cores", 1, "--json", tmp_path / "plan.json"]
    shown = bidr(*flags)
    assert "one core of an AMD EPYC with AVX-512 and may be off by a factor of 2" in shown.out
    built = json.loads((tmp_path / "plan.json").read_text())
    shown = bidr(*flags, "--measure", "--vectors", files[0])
    assert "of this machine (Toy), measured now in 7 s" in shown.out
    value = json.loads((tmp_path / "plan.json").read_text())
    assert (built["rates"]["measured"], value["rates"]["measured"], value["rates"]["seconds"]) == (False, True, 7.0)
    for before, after in zip(built["engines"], value["engines"], strict=True):
        for key in ("build_seconds_a_machine", "build_cpu_seconds_a_machine"):
            assert sum(after[key].values()) == pytest.approx(2 * sum(before[key].values()), rel=0.01, abs=0.5)  # tenths
    assert asked == [CalibrationConfig(DIM, 16, [8, 4], text_bytes=500, vectors=str(files[0]))]


def test_codes_of_a_model_are_planned_for(bidr: Run, tmp_path: Path) -> None:
    """They are there before the build, and lists are divided by what they say, not by vectors."""
    out, plans = tmp_path / "plan.json", []
    for flags, said in (
        ([], "Excludes text encoding"),
        (["--learned-codes"], "Excludes training and computing the codes"),
    ):
        shown = bidr("plan", "--docs", "1e6", "--dim", 384, *flags, "--json", out)
        assert said in shown.out
        plans.append(json.loads(out.read_text()))
    assert [value["learned_codes"] for value in plans] == [False, True]
    for fitted, learned in zip(*(value["engines"] for value in plans), strict=True):
        assert "codebooks" in fitted["build_seconds_a_machine"].keys() & fitted["build_peak_a_machine"].keys()
        assert "codebooks" not in learned["build_seconds_a_machine"].keys() | learned["build_peak_a_machine"].keys()
        before, after = (each["build_cpu_seconds_a_machine"]["clusters"] for each in (fitted, learned))
        assert (before < after) == (fitted["engine"] == "lists")


def test_impossible_measurements_are_refused(bidr: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    plain = ["plan", "--docs", "1e6", "--dim", DIM]
    assert "--vectors given, but not used without --recall or --measure" in bidr.refused(*plain, "--vectors", files[0])
    assert "expected 26,000 or more" in bidr.refused(*plain, "--measure", "--vectors", files[0])
    assert "has 32 dimensions; give --dim 32" in bidr.refused(
        "plan", "--docs", "1e6", "--measure", "--vectors", files[0]
    )
    assert "does not exist" in bidr.refused(*plain, "--measure", "--vectors", tmp_path / "none.npy")
    goal = ["plan", "--recall", ".9", "--vectors", files[0], "--query-vectors", files[1]]
    assert "--measure given, but not used with --recall" in bidr.refused(*goal, "--measure")


def test_words_are_planned_for(bidr: Run, tmp_path: Path) -> None:
    plain, worded = (
        plan(CorpusSpec(docs=10**8, dim=384, ram=4 * GIB, words=words))["engines"]
        for words in (None, guess_lexical_size(1_000))
    )
    for without, engine in zip(plain, worded, strict=True):
        more = engine["disk"]["per_document"] - without["disk"]["per_document"]
        assert 300 < more < 500, "75 postings of 5 bytes, and little else"
        assert engine["ram"]["total"] - without["ram"]["total"] > engine["ram"]["bytes"]["words"] > 0
        assert engine["build_peak_a_machine"]["names"] > without["build_peak_a_machine"]["names"]
        assert engine["build_seconds_a_machine"]["words"] > 0
        assert "words" not in without["build_seconds_a_machine"]


def test_a_plan_for_an_existing_dataset(bidr: Run, tmp_path: Path) -> None:
    folder, out = tmp_path / "data", tmp_path / "plan.json"
    texts = [" ".join(f"word{(row * number) % 97}" for number in range(20)) for row in range(300)]
    folder.mkdir()
    lines = [json.dumps({"_id": f"id-{row:03d}", "title": "", "text": text}) for row, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    shown = bidr("plan", "--data", folder, "--lexical", "--dim", 32, "--json", out)
    assert shown.code == 0, shown.err
    value = json.loads(out.read_text())
    assert (value["documents"], value["id_bytes"]) == (300, 6)
    assert value["text_bytes"] == pytest.approx(np.mean([len(text) for text in texts]))
    assert value["words"]["postings"] == pytest.approx(np.mean([len(set(text.split())) for text in texts]))
    assert "words" in shown.out
    assert bidr("plan", "--data", folder, "--docs", "1e6", "--json", out).code == 0
    assert json.loads(out.read_text())["documents"] == 10**6


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("64GiB", 64 * GIB),
        ("64gib", 64 * GIB),
        ("64G", 64 * GIB),
        ("500MB", 500_000_000),
        ("1e9", 10**9),
        ("1.5 KiB", 1536),
    ],
)
def test_sizes_as_people_write_them(given: str, expected: int) -> None:
    assert parse_bytes("ram", given) == expected


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    random = np.random.default_rng(0)
    centres = random.standard_normal((40, DIM))
    vectors = centres[random.integers(0, 40, 3_000)] + random.standard_normal((3_000, DIM))
    questions = vectors[:60] + 0.5 * random.standard_normal((60, DIM))
    paths = tmp_path / "d.npy", tmp_path / "q.npy"
    for path, array in zip(paths, (vectors, questions), strict=True):
        np.save(path, array.astype(np.float32))
    return paths


def test_settings_for_a_recall_from_vectors(bidr: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "settings.json"
    flags = ["--recall", ".9", "--vectors", files[0], "--query-vectors", files[1], "--k", 10]
    shown = bidr("plan", *flags, "--bytes-per-doc", 8, "--sample", 2_000, "--json", out)
    assert shown.code == 0, shown.err
    value = json.loads(out.read_text())
    best = value["cheapest"]
    assert best["recall"] >= 0.9
    assert best["ms_planned"] == min(each["ms_planned"] for each in value["settings"] if each["recall"] >= 0.9)
    assert {each["engine"] for each in value["settings"]} == {"scan", "lists", "hnsw"}
    assert "lower on more documents" in shown.out
    assert "a sample of 3,000" in shown.out
    whole = [each for each in value["settings"] if each["bits"] == 8 and each["visited"] in (None, 1.0)]
    assert len({each["candidates"] for each in whole}) == 1, "all lists visited are a scan"


def test_settings_above_the_ram_are_skipped_with_a_note(bidr: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    flags = ["--recall", ".9", "--vectors", files[0], "--query-vectors", files[1], "--k", 10, "--sample", 500]
    out, docs = tmp_path / "settings.json", 10**7
    needs = {
        (engine, size): sum(corpus.estimate_ram(corpus.make_shape(engine, 8)).values())
        for size in (4, 8)
        for corpus in [CorpusSpec(docs=docs, dim=DIM, ram=GIB, code_bytes=size)]
        for engine in ("scan", "lists", "hnsw")
    }
    ram = needs["lists", 8] + 1_000_000  # every scan and list, no graph
    assert ram < needs["hnsw", 4]
    shown = bidr("plan", *flags, "--docs", docs, "--ram", ram, "--bytes-per-doc", 4, 8, "--json", out)
    assert shown.code == 0, shown.err
    value = json.loads(out.read_text())
    assert {each["engine"] for each in value["settings"]} == {"scan", "lists"}
    assert {each["bytes_per_doc"] for each in value["settings"]} == {4, 8}
    assert {(each["engine"], each["bytes_per_doc"]) for each in value["left_out"]} == {("hnsw", 4), ("hnsw", 8)}
    assert shown.out.count("left out: graph") == 4
    assert shown.out.count("exceeds the RAM limit") == 4
    line = bidr.refused("plan", *flags, "--docs", docs, "--ram", "135MB", "--bytes-per-doc", 8)
    assert "ram: given 135,000,000 bytes, but 10,000,000 documents take" in line


def test_settings_are_carried_over_by_the_commands_that_are_shown(
    bidr: Run, files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a sample of all the recall must come again, typed as it was shown; on the index that is built so too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(settings, "ENGINES", ("lists",))
    stored, build_index = list[str](), settings.build_index
    monkeypatch.setattr(settings, "build_index", lambda *a, **b: stored.append(b["stored"]) or build_index(*a, **b))
    out = tmp_path / "settings.json"
    flags = ["--recall", ".9", "--vectors", files[0], "--query-vectors", files[1], "--k", 10, "--stored", "int8"]
    assert bidr("plan", *flags, "--bytes-per-doc", 8, "--json", out).code == 0
    value = json.loads(out.read_text())
    best, (build, search) = value["cheapest"], value["commands"]
    assert bidr(*shlex.split(build)[1:]).code == 0
    assert set(stored) == {"int8"}
    assert "int8" in bidr("inspect", "INDEX").out
    shown = bidr(*shlex.split(search)[1:], "--json", out)
    assert shown.code == 0, shown.err
    assert f"--candidates {best['candidates']} --ef {best['ef']}" in search
    vectors, questions = (unit(np.load(path)) for path in files)
    exact = search_vectors(questions, vectors, 10).rows
    found = [[int(answer["id"]) for answer in each["answers"]] for each in json.loads(out.read_text())["results"]]
    load_last_index = np.mean([np.isin(a, b).mean() for a, b in zip(exact, found, strict=True)])
    assert load_last_index == pytest.approx(best["recall"], abs=0.02)
    shown = bidr("plan", "--recall", ".9", "--index", "INDEX", "--query-vectors", files[1], "--k", 10, "--json", out)
    assert shown.code == 0, shown.err
    (again,) = json.loads(out.read_text())["commands"]
    assert again.startswith("bidr search --index INDEX")
    assert "Measure again" not in shown.out


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_how_many_lists_to_visit_follows_the_corpus() -> None:
    random = np.random.default_rng(0)
    vectors = random.standard_normal((2_000, 8)).astype(np.float32)
    codebooks = fit_pq(vectors, 2, iterations=2)
    lists, _ = make_lists(codebooks, codebooks.encode(vectors))
    there = lists.list_count
    assert Extrapolation(2_000, 2_000).scale_ef(lists, 0.4) == round(0.4 * there)
    assert Extrapolation(2_000, 1_000_000).scale_ef(lists, 0.2) == pytest.approx(get_default_nprobe(4_000), rel=0.1)
    assert Extrapolation(2_000, 10**9).scale_ef(lists, 0.4) == pytest.approx(2 * get_default_nprobe(126_491), rel=0.1)
    assert Extrapolation(2_000, 10**9).scale_ef(lists, 1.0) == 126_491
    assert Extrapolation(2_000, 10**9).scale_ef(make_scan(codebooks, codebooks.encode(vectors)), None) is None


def test_a_graph_on_a_sample_is_walked_where_the_corpus_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    vectors = random.standard_normal((600, 8)).astype(np.float32)
    codebooks = fit_pq(vectors, 2, iterations=2)
    graph, _ = make_graph(codebooks, codebooks.encode(vectors), 100)
    walks = list[int]()
    walk = graph.walk
    monkeypatch.setattr(graph, "walk", lambda *given: walks.append(1) or walk(*given))
    for stands_for, walked in ((None, 0), (79_000, 0), (81_000, 3)):
        graph.simulated_count = stands_for
        graph.search(vectors[:3], 10)
        assert len(walks) == walked, stands_for


def test_settings_of_an_index_hold_when_it_is_searched(bidr: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    from bidr.index.builder.build import build_index
    from bidr.pipeline.open import open_index

    vectors, questions = (np.load(path) for path in files)
    codebooks = fit_pq(vectors, 8, iterations=3)
    index, out = tmp_path / "index", tmp_path / "settings.json"
    build_index(index, codebooks=codebooks, codes=codebooks.encode(vectors), vectors=vectors, engine="scan")
    shown = bidr("plan", "--recall", ".9", "--index", index, "--query-vectors", files[1], "--k", 10, "--json", out)
    assert shown.code == 0, shown.err
    (only,) = json.loads(out.read_text())["settings"]
    exact = search_vectors(questions, vectors, 10).rows

    def load_last_index(candidates: int) -> float:
        with open_index(index) as searcher:
            found = searcher.search_vectors(questions, 10, candidates).rows
        return float(np.mean([np.isin(a, b).mean() for a, b in zip(exact, found, strict=True)]))

    assert load_last_index(only["candidates"]) == pytest.approx(only["recall"])
    assert load_last_index(only["candidates"]) >= 0.9
    assert only["candidates"] == 10 or load_last_index(only["candidates"] - 1) < 0.9


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--docs", "0"], ["docs", "'0'", "1e9"]),
        (["--docs", "many"], ["docs", "'many'"]),
        (["--docs", "1.5"], ["docs", "whole number"]),
        (["--docs", "nan"], ["docs", "'nan'"]),
        (["--docs", "1e9", "--ram", "64XB"], ["ram", "'64XB'", "64GiB"]),
        (["--docs", "1e9", "--ram", "0GiB"], ["ram", "'0GiB'"]),
        (["--docs", "1e9", "--ram", "1MiB"], ["ram", "1,048,576", "give more"]),
        (["--docs", "1e9", "--dim", "0"], ["dim: given 0"]),
        (["--docs", "1e9", "--bytes-per-doc", "-1"], ["-1"]),
        (["--docs", "1e6", "--dim", "8", "--bytes-per-doc", "16"], ["given 16", "8 dimensions", "expected 1 to 8"]),
        (["--docs", "1e6", "--dim", "768", "--bytes-per-doc", "5000"], ["given 5000", "expected 1 to 768"]),
        (["--docs", "1e9", "--text-bytes", "nan"], ["text_bytes", "nan"]),
        (["--docs", "1e9", "--stored", "fp8"], ["fp8"]),
        (["--docs", "1e9", "--lexical", "--text-bytes", "0"], ["lexical", "no texts"]),
        (["--data", "nowhere", "--id-bytes", "9"], ["--data", "--id-bytes"]),
        (["--data", "nowhere", "--recall", ".9"], ["--data", "--recall"]),
        (["--docs", "1e9", "--k", "10"], ["--k", "not used without --recall"]),
        (["--docs", "1e9", "--bytes-per-doc", "8", "16"], ["bytes_per_doc", "given 2 sizes"]),
        (["--recall", ".9", "--query-vectors", "q", "--vectors", "d", "--cores", "2"], ["--cores", "not used"]),
        (["--recall", ".9", "--query-vectors", "q", "--index", "i", "--ram", "1GiB"], ["--ram", "--index"]),
        (["--recall", "1.2"], ["recall", "1.2", ".95"]),
        (["--recall", "0"], ["recall", "given 0"]),
        (["--recall", ".9", "--k", "0"], ["k: given 0"]),
        (["--recall", ".9"], ["--query-vectors"]),
        (["--recall", ".9", "--query-vectors", "q.npy", "--vectors", "none.npy"], ["none.npy does not exist"]),
        ([], ["--docs", "--recall"]),
    ],
)
def test_bad_input_is_one_line(bidr: Run, flags: list[str], words: list[str]) -> None:
    line = bidr.refused("plan", *flags)
    for word in words:
        assert word in line


def test_fewer_dimensions_on_disk(bidr: Run, tmp_path: Path) -> None:
    asked, sizes = ["plan", "--docs", "1e6", "--dim", 768, "--json", tmp_path / "plan.json"], []
    for more in ([], ["--stored-dims", 192]):
        shown = bidr(*asked, *more)
        assert shown.code == 0, shown.err
        assert ("the first 192 dimensions" in shown.out) == bool(more)
        sizes.append(json.loads((tmp_path / "plan.json").read_text())["engines"][0])
    vectors = [each["disk"]["bytes"]["vectors.npy"] for each in sizes]
    assert vectors == [4096 + 2 * 768 * 10**6, 4096 + 2 * 192 * 10**6]
    assert sizes[0]["ram"]["bytes"]["codes"] == sizes[1]["ram"]["bytes"]["codes"]
    assert "dims: given 769, expected a whole number from 1 to 768" in bidr.refused(*asked, "--stored-dims", 769)


def test_vectors_alone_divide_the_ram(bidr: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "split.json"
    flags = ["plan", "--recall", ".95", "--vectors", files[0], "--k", 10, "--docs", "1e6", "--ram", "200MB"]
    shown = bidr(*flags, "--json", out)
    assert shown.code == 0, shown.err
    value = json.loads(out.read_text())
    assert {split["code_bytes"] for split in value["alternatives"]} == {8, 16}
    best = min(value["alternatives"], key=lambda split: split["reads"])
    assert (value["bytes_per_doc"], value["candidates"]) == (best["code_bytes"], best["candidates"])
    assert best["index_bytes"] + best["cache_bytes"] == 200_000_000
    assert "of your vectors, which leaves" in shown.out
    assert shlex.split(value["commands"][0])[-2:] == ["--bytes-per-doc", str(best["code_bytes"])]
    assert "serve_ram" not in shown.out
    assert "--sample" in bidr.refused(*flags, "--sample", 10)


def test_the_disk_is_measured_alone_or_for_a_plan(bidr: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "bidr.planning.disk_benchmark.measure_disk", lambda folder: DiskSpeed({1: 1e4, 8: 5e4, 32: 1e5}, 1 << 30)
    )
    shown = bidr("plan", "--measure-disk", tmp_path)
    assert "random 4 KiB reads a second: 10,000 at depth 1, 50,000 at depth 8, 100,000 at depth 32" in shown.out
    out = tmp_path / "plan.json"
    shown = bidr("plan", "--docs", "1e6", "--dim", 768, "--measure-disk", tmp_path, "--json", out)
    assert json.loads(out.read_text())["disk"]["iops"]["32"] == 1e5
    assert "pages take" in shown.out
    assert "--metric" in bidr.refused("plan", "--measure-disk", tmp_path, "--metric", "ip")
    monkeypatch.undo()
    assert "does not exist" in bidr.refused("plan", "--measure-disk", tmp_path / "none")
