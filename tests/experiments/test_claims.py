"""Claims: what holds, what does not, and what was not measured."""

import pytest
from sample_rows import baselines, curve, row_result

from bidr.experiments.reproduce.claims import CLAIMS, Outcome, evaluate_claims
from bidr.experiments.reproduce.result_groups import Measure, ResultGroup
from bidr.experiments.reproduce.row_files import RowResult


def evaluate(results: list[RowResult]) -> dict[str, Outcome]:
    return {claim.text: outcome for claim, outcome in evaluate_claims(ResultGroup(results))}


LEAD = "random walk beats the strongest baseline, R@10"
GROWS = "the lead over STAR grows with the corpus, R@10"
UNIFIED = "a unified query encoder costs at most .0084 of R@10, random walk"


def test_a_gain_holds_only_beyond_its_interval() -> None:
    for walk, verdict in ((0.7, "holds"), (0.505, "does not hold here"), (0.3, "does not hold here")):
        outcome = evaluate([row_result("star-opq", 0.5), row_result("bidr-random-walk", walk)])[LEAD]
        assert outcome.verdict == verdict
        assert outcome.difference is not None
        assert outcome.difference.difference == pytest.approx(walk - 0.5)
        assert outcome.difference.low <= outcome.difference.difference <= outcome.difference.high


def test_the_strongest_baseline_is_chosen_on_dev_and_not_on_test() -> None:
    rows = baselines({"star-opq": 0.9, "warmup-opq": 0.4}, dev={"star-opq": 0.3, "warmup-opq": 0.6})
    group = ResultGroup([*rows, row_result("bidr-random-walk", 0.7)])
    assert group.strongest == "warmup-opq"
    assert evaluate(group.results)[LEAD].verdict == "holds"
    assert evaluate(group.results)["random walk beats STAR + DiskANN (diskannpy), R@10"].verdict == "not measured"


def test_a_baseline_with_fewer_seeds_is_not_the_strongest() -> None:
    rows = baselines({"star-opq": 0.5}, dev={"star-opq": 0.5}, seeds=(0, 1))
    assert ResultGroup([*rows, row_result("dpr-opq", 0.5, dev=0.9)]).strongest == "star-opq"


def test_seeds_are_compared_with_themselves() -> None:
    rows = [row_result("star-opq", 0.5, seed=seed) for seed in (0, 1)]
    rows += [row_result("bidr-random-walk", recall, seed=seed) for recall, seed in ((0.6, 0), (0.7, 1), (0.1, 2))]
    difference = ResultGroup(rows).compare("bidr-random-walk", "star-opq", Measure("answers", 10))
    assert difference is not None
    assert difference.per_seed == pytest.approx([0.1, 0.2])
    assert difference.difference == pytest.approx(0.15)
    assert difference.relative == pytest.approx(0.3)
    assert difference.seeds == 2


def test_a_small_loss_holds_up_to_the_papers_largest() -> None:
    for unified, verdict in ((0.5, "holds"), (0.495, "holds"), (0.49, "does not hold here")):
        rows = [row_result("bidr-random-walk", 0.5), row_result("bidr-random-walk-unified", unified)]
        assert evaluate(rows)[UNIFIED].verdict == verdict


def test_leads_on_curves_are_those_of_points_that_both_have() -> None:
    def measure(star: dict[float, float], walk: dict[float, float]) -> Outcome:
        rows = [row_result("star-opq-sizes", curve=curve("documents", star), ranks={})]
        rows.append(row_result("bidr-random-walk-sizes", curve=curve("documents", walk), ranks={}))
        return evaluate(rows)[GROWS]

    assert measure({1e3: 0.5, 1e4: 0.4}, {1e3: 0.5, 1e4: 0.45}).verdict == "holds"
    assert measure({1e3: 0.5, 1e4: 0.4}, {1e3: 0.6, 1e4: 0.45}).verdict == "does not hold here"
    assert measure({1e3: 0.5}, {1e3: 0.6, 1e4: 0.7}).verdict == "not measured"


def test_fewer_bits_are_compared_with_the_runs_own_size_among_them() -> None:
    own = [row_result("star-opq", 0.4), row_result("bidr-random-walk", 0.6)]
    many = [row_result("star-opq-1024-bits", 0.7, bytes_per_doc=128)]
    many.append(row_result("bidr-random-walk-1024-bits", 0.72, bytes_per_doc=128))
    middle = row_result("bidr-random-walk-256-bits", 0.715, bytes_per_doc=32)
    outcomes = evaluate([*own, *many, middle])
    assert outcomes["the lead over STAR is larger with fewer bits, R@100"].verdict == "holds"
    assert outcomes["256 bits reach 99 % of R@100 with 1,024 bits"].verdict == "holds"


def test_every_claim_says_where_and_with_which_figures() -> None:
    assert len({claim.text for claim in CLAIMS}) == len(CLAIMS) > 25
    assert all(claim.source and claim.paper for claim in CLAIMS)
    assert {outcome.verdict for outcome in evaluate([row_result("bm25")]).values()} == {"not measured"}


def test_a_claim_without_a_shown_difference_is_level() -> None:
    for walk, is_level in ((0.7, False), (0.505, True), (0.3, False)):
        outcome = evaluate([row_result("star-opq", 0.5), row_result("bidr-random-walk", walk)])[LEAD]
        assert outcome.is_level == is_level
