import json
import math
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from sample_index import clustered, documents, random_codebooks

from bidr.data.types import Query
from bidr.errors import ConfigError, DataError
from bidr.index.builder.build import build_index
from bidr.index.reader import IndexReader
from bidr.search.evaluation import (
    compare_paired,
    compute_candidate_recall,
    evaluate_run,
    evaluate_searcher,
    load_recall_curve,
    rank_run,
    save_recall_curve,
)
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors

QRELS = {"a": {"d1": 1, "d2": 2, "d9": 0}, "b": {"d3": 1}, "c": {"d4": 1}}
RUN = rank_run({"a": ["d9", "d2", "d5", "d1"], "b": ["d3"], "unjudged": ["d1"]})


def test_measures_equal_values_computed_by_hand():
    scores = evaluate_run(RUN, QRELS, ["R@2", "R@10", "RR@10", "nDCG@10"])
    log = math.log2
    assert scores.per_query["R@2"] == {"a": 0.5, "b": 1.0, "c": 0.0}
    assert scores.per_query["R@10"] == {"a": 1.0, "b": 1.0, "c": 0.0}
    assert scores.per_query["RR@10"] == {"a": 0.5, "b": 1.0, "c": 0.0}
    gain = 2 / log(3) + 1 / log(5)
    assert scores.per_query["nDCG@10"]["a"] == pytest.approx(gain / (2 / log(2) + 1 / log(3)))
    assert scores.mean["RR@10"] == pytest.approx(0.5)
    assert scores.mean["R@2"] == pytest.approx(0.5)


def test_ranking_order_does_not_depend_on_ids():
    qrels = {"q": {"m": 1}}
    for docs in (["m", "z", "a"], ["m", "a", "z"]):
        assert evaluate_run(rank_run({"q": docs}), qrels, ["RR@10"]).mean["RR@10"] == 1
    for docs in (["z", "m", "a"], ["a", "m", "z"]):
        assert evaluate_run(rank_run({"q": docs}), qrels, ["RR@10"]).mean["RR@10"] == 0.5


def test_unknown_measures_and_missing_judgments_are_refused():
    for name in ("recall at ten", "XYZ@10", "R@ten", ""):
        with pytest.raises(ConfigError, match="unknown measure"):
            evaluate_run(RUN, QRELS, [name])
    with pytest.raises(DataError, match="no judgments"):
        evaluate_run(RUN, {}, ["R@10"])
    with pytest.raises(DataError, match="no query has a relevant document"):
        compute_candidate_recall({}, {"a": {"d": 0}})


def test_candidate_recall_is_the_share_of_the_relevant():
    assert compute_candidate_recall({"a": ["d2", "d9"], "b": ["d3"]}, QRELS) == pytest.approx((0.5 + 1 + 0) / 3)


def test_only_a_clear_difference_is_significant():
    random = np.random.default_rng(0)
    b = {f"q{number}": float(value) for number, value in enumerate(random.random(200))}
    better = {query: value + 0.1 + 0.1 * random.standard_normal() for query, value in b.items()}
    clear = compare_paired(better, b)
    assert 0.07 < clear.low < clear.difference < clear.high < 0.12
    assert clear.p < 0.001
    assert clear == compare_paired(better, b)
    assert compare_paired(b, better).difference == pytest.approx(-clear.difference)
    same = compare_paired(b, b)
    assert (same.difference, same.low, same.high, same.p) == (0, 0, 0, 1)


def test_randomization_equals_the_exact_test_on_few_queries():
    a, b = {"1": 3.0, "2": 2.0, "3": 1.0}, {"1": 0.0, "2": 0.0, "3": 0.0}
    assert compare_paired(a, b).p == pytest.approx(2 / 8, abs=0.02)
    with pytest.raises(DataError, match="expected the same ones"):
        compare_paired(a, {"1": 0.0})
    with pytest.raises(DataError):
        compare_paired({}, {})


def made(seed=0):
    vectors, codebooks = clustered(300, 16, seed), random_codebooks(16, 4)
    codes = codebooks.encode(vectors)
    return {"codebooks": codebooks, "codes": codes, "vectors": vectors, "documents": documents(300)}


@pytest.fixture
def searcher(tmp_path):
    parts = made()
    vectors = parts["vectors"]
    build_index(tmp_path / "i", **parts)

    def encode(texts):
        found = vectors[[int(text) for text in texts]]
        return QueryVectors(found, found)

    with IndexReader.open(tmp_path / "i") as reader:
        yield Searcher(reader, encode)


def test_report_of_queries_equal_to_documents(searcher):
    queries = [Query(f"q{row}", str(row)) for row in range(150)]
    qrels = {query.id: {f"doc-{query.text}": 1} for query in queries[:140]}
    split = SimpleNamespace(queries=queries, qrels=qrels)
    everything = evaluate_searcher(searcher, split, candidates=300)
    assert everything.measures == {"R@10": 1.0, "R@100": 1.0, "RR@10": 1.0, "nDCG@10": 1.0}
    assert everything.candidate_recall == 1
    assert (everything.queries, everything.documents, everything.engine) == (140, 300, "scan")
    assert "(flat)" in everything.table()
    assert "seen blocks" not in everything.table()
    few = evaluate_searcher(searcher, split, ["R@10"], k=10, candidates=10)
    assert few.measures["R@10"] == pytest.approx(few.candidate_recall)
    assert few.candidate_recall < 1
    assert few.candidates == 10
    facts = json.loads(few.json())
    assert facts["ram_parts"]["codes"] == pytest.approx(2, rel=0.1)  # the last block of 32 is filled up
    assert facts["single_median_ms"]["total"] > 0
    assert "R@10" in few.table()
    assert "relevant among 10 candidates" in few.table()
    assert len(few.per_query["R@10"]) == 140


def test_a_split_without_judged_queries_is_refused(searcher):
    with pytest.raises(DataError, match="no judged queries"):
        evaluate_searcher(searcher, SimpleNamespace(queries=[Query("q", "1")], qrels={}))


def test_recall_curve_equals_searches_with_fewer_candidates(searcher, tmp_path):
    split = SimpleNamespace(
        queries=[Query(str(row), str(row)) for row in range(50)],
        qrels={str(row): {f"doc-{row + 1}": 1} for row in range(50)},
    )
    report = evaluate_searcher(searcher, split, ["R@10"], candidates=60)
    depths = [n for n, _ in report.recall_curve]
    assert depths == [1, 2, 5, 10, 20, 50, 60]
    for n, share in report.recall_curve:
        few = evaluate_searcher(searcher, split, ["R@1"], k=1, candidates=n)
        assert share == few.candidate_recall
    index, curve = searcher.reader.folder, [list(point) for point in report.recall_curve]
    save_recall_curve(index, replace(report, lexical=5), "model", "test")
    assert load_recall_curve(index, "model") is None, "with words it is not the codes' curve"
    save_recall_curve(index, report, "model", "test")
    assert load_recall_curve(index, "model") == (curve, False)
    assert load_recall_curve(index, "another") is None, "what was measured of another model is not this one's"
    save_recall_curve(tmp_path / "nowhere", report, "model", "test")
    build_index(tmp_path / "index", **made(31))
    shutil.copy(index / "evaluated.json", tmp_path / "index")
    assert load_recall_curve(tmp_path / "index", "model") == (curve, True), "another index's, of the same generation"
    content = json.loads((index / "evaluated.json").read_text())
    for points in (None, 3, [3], [[1]], [["a", 0.5]], [[0, 0.5]], [[1, 1.5]], [[1, None]], {"a": 1}, [[1, 2, 3]]):
        (index / "evaluated.json").write_text(json.dumps(content | {"recall_curve": points}))
        assert load_recall_curve(index, "model") is None
    (index / "evaluated.json").write_text("[" * 100_000)
    assert load_recall_curve(index, "model") is None
    (index / "evaluated.json").write_text(json.dumps(content))
    shutil.copytree(index, tmp_path / "again")
    assert load_recall_curve(tmp_path / "again", "model") == (curve, False)
    build_index(tmp_path / "again", **made(32))
    assert load_recall_curve(tmp_path / "again", "model") == (curve, True), "measured before it was built again"
    (tmp_path / "again" / "evaluated.json").unlink()
    save_recall_curve(tmp_path / "again", report, "model", "test")
    assert not (tmp_path / "again" / "evaluated.json").exists(), "built again while it was measured"
