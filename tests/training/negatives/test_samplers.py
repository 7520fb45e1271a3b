import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_graphs import Found, large_corpus, searches

from bidr.data.positives import remove_positives
from bidr.training.mining import describe_locality
from bidr.training.negatives import graph_sampling_kernels as walks
from bidr.training.negatives.proximity_graph import build_graph
from bidr.training.negatives.samplers import EpochPlan, LocalitySampler, RandomSampler, Sampler, measure_locality

LOCAL = ["random-walk", "snowball"]
STRATEGIES = ["in-batch", "mined", *LOCAL]


def make(strategy: str, found: Found, size: int, seed: int = 0, hops: int | None = None) -> Sampler:
    if strategy in LOCAL:
        graph = build_graph(found.rows, found.pairs, found.documents, backward=(0, hops or 200))
        return LocalitySampler(graph, found.pairs, size, seed, strategy, hops)
    pool = remove_positives(found.rows, found.pairs) if strategy == "mined" else None
    return RandomSampler(found.pairs, found.documents, size, seed, pool)


def same(one: EpochPlan, other: EpochPlan) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(found=searches(), size=st.integers(2, 6), seed=st.integers(0, 99), hops=st.sampled_from([None, 1, 2]))
@settings(max_examples=40, deadline=None)
def test_an_epoch_visits_every_query_once_without_positives_as_negatives(strategy, found, size, seed, hops):
    plan = make(strategy, found, size, seed, hops).plan(0)
    assert sorted(plan.queries.tolist()) == list(range(len(found.positives)))
    candidates = remove_positives(found.rows, found.pairs).tolist()
    for place, query in enumerate(plan.queries.tolist()):
        assert plan.positives[place] in found.positives[query]
        if strategy == "in-batch":
            continue
        negative, own = int(plan.negatives[place]), [row for row in candidates[query] if row >= 0]
        assert 0 <= negative < found.documents
        assert negative in own or not own
        if len(found.positives[query]) < found.documents:
            assert negative not in found.positives[query]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_plan_is_a_function_of_seed_and_epoch(strategy):
    found = large_corpus(300, 2_000, 10, depth=20)
    plan = make(strategy, found, 32, seed=5).plan(3)
    assert same(plan, make(strategy, found, 32, seed=5).plan(3))
    sampler = make(strategy, found, 32, seed=5)
    first = sampler.plan(0)
    assert same(plan, sampler.plan(3)), "an earlier epoch's plan must not matter"
    assert not np.array_equal(first.queries, plan.queries)
    assert not np.array_equal(plan.queries, make(strategy, found, 32, seed=6).plan(3).queries)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("size", [32, 100, 1_000])
def test_batches_have_the_configured_size(strategy, size):
    found = large_corpus(300, 2_000, 10, depth=20)
    plan = make(strategy, found, size).plan(0)
    batches = [plan.get_batch(step) for step in range(plan.steps)]
    assert [len(batch.queries) for batch in batches[:-1]] == [size] * (len(batches) - 1)
    assert sum(len(batch.queries) for batch in batches) == 300
    assert np.array_equal(np.concatenate([batch.queries for batch in batches]), plan.queries)
    for batch in batches:
        assert len(batch.positives) == len(batch.queries)
        assert len(batch.negatives) == (0 if strategy == "in-batch" else len(batch.queries))


def test_a_walk_goes_from_query_to_query_over_a_shared_candidate():
    """Query i shares one candidate with query i - 1 and one with i + 1, and none with any other."""
    rows = np.array([[query, query + 1] for query in range(400)])
    found = Found([[401 + query] for query in range(400)], rows, 801)
    plan = make("random-walk", found, 400).plan(0)
    assert plan.restarts == sum(abs(a - b) != 1 for a, b in pairwise(plan.queries.tolist()))
    assert plan.restarts < 20


def test_a_snowball_takes_all_queries_of_a_candidate_before_it_goes_on():
    """Eight queries share a candidate, and no other is shared."""
    rows = np.repeat(np.arange(50), 8)[:, None]
    plan = make("snowball", Found([[50]] * 400, rows, 51), 80).plan(0)
    groups = (plan.queries // 8).reshape(50, 8)
    assert (groups == groups[:, :1]).all()
    assert plan.restarts == 50 - plan.steps


@pytest.mark.parametrize("strategy", LOCAL)
@pytest.mark.parametrize(("hops", "shares"), [(20, (0.9, 1.0)), (2, (0.0, 0.7))])
def test_the_walk_of_the_paper_goes_through_the_drawn_negative(strategy, hops, shares):
    """With hops as deep as the graph, the document that leads to the next query is the negative of the one before.

    A dead end, a candidate without an unvisited query, is left by another one, which is rare in the first batch.
    """
    found = large_corpus(4_000, 2_000, 10, depth=20)
    plan = make(strategy, found, 64, hops=hops).plan(0)
    candidates = [set(row) for row in remove_positives(found.rows, found.pairs).tolist()]
    queries, negatives = plan.queries[:64].tolist(), plan.negatives[:64].tolist()
    earlier = [negatives[place - 1 if strategy == "random-walk" else 0 : place] for place in range(1, 64)]
    through = [not candidates[query].isdisjoint(drawn) for query, drawn in zip(queries[1:], earlier, strict=True)]
    assert shares[0] <= np.mean(through) <= shares[1]


@pytest.mark.parametrize("strategy", LOCAL)
@pytest.mark.parametrize("depth", [3, 20])
def test_in_the_papers_walk_every_query_but_a_restart_is_reached_through_a_drawn_negative(strategy, depth):
    """A random walk goes through the negative before it, a snowball through one of the batch."""
    found = large_corpus(2_000, 2_000, 10, depth=depth)
    plan = LocalitySampler(found.graph, found.pairs, 64, 0, strategy, is_paper_walk=True).plan(0)
    candidates = [set(row) for row in remove_positives(found.rows, found.pairs).tolist()]
    unreached = 0
    for batch in map(plan.get_batch, range(plan.steps)):
        queries, negatives = batch.queries.tolist(), batch.negatives.tolist()
        for place in range(1, len(queries)):
            earlier = negatives[place - 1 if strategy == "random-walk" else 0 : place]
            unreached += candidates[queries[place]].isdisjoint(earlier)
    assert unreached <= plan.restarts < 2_000 - plan.steps
    assert plan.restarts - unreached < 0.1 * plan.restarts, "a restart is only by chance a neighbor"


@pytest.mark.parametrize("strategy", LOCAL)
def test_dead_ends_are_counted(strategy):
    alone = Found([[query] for query in range(10)], np.arange(10, 20)[:, None], 20)
    assert make(strategy, alone, 5).plan(0).restarts == 8, "each of two batches begins once and restarts four times"
    couples = Found([[20]] * 20, (np.arange(20) // 2)[:, None], 21)
    assert make(strategy, couples, 20).plan(0).restarts == 9


@pytest.fixture(scope="module")
def large():
    """100,000 documents in 200 neighbourhoods, 8,000 queries with 200 candidates each, one in twenty a stray."""
    return large_corpus(8_000, 100_000, 200, noise=0.05)


def others_share(plan: EpochPlan, found: Found) -> float:
    """How likely a document that is in the batch for another query is one of a query's candidates; naively."""
    shares = []
    for step in range(plan.steps // 4):
        batch = plan.get_batch(step)
        for place, query in enumerate(batch.queries):
            others = np.delete(np.stack([batch.positives, batch.negatives]), place, axis=1)
            shares.append(np.isin(others, found.rows[query]).mean())
    return float(np.mean(shares))


@pytest.mark.parametrize("strategy", LOCAL)
@pytest.mark.parametrize("hops", [None, 20])
def test_local_batches_are_ten_times_as_local_as_random_ones(large, strategy, hops):
    graph, plan = large.graph, make(strategy, large, 64, hops=hops).plan(0)
    shares = measure_locality(plan, graph)
    quarter = len(shares) // 4
    assert shares[:quarter].mean() >= 10 * measure_locality(make("in-batch", large, 64).plan(0), graph).mean()
    assert others_share(plan, large) >= 10 * others_share(make("mined", large, 64).plan(0), large)
    logged = describe_locality(plan, graph)
    assert logged["locality_first_quarter"] == shares[:quarter].mean()
    assert logged["locality_last_quarter"] == shares[-quarter:].mean()
    assert logged["locality_last_quarter"] < logged["locality_first_quarter"]
    assert logged["restarts"] == plan.restarts


def test_locality_is_the_share_of_a_batchs_documents_among_the_candidates():
    found = Found([[5], [6], [7]], np.array([[0, 6, 7], [0, 1, -1], [3, 4, 8]]), 10)
    plan = EpochPlan(np.array([0, 1, 2]), np.array([5, 6, 7]), np.array([0, 0, 4]), 2)
    # first batch: documents 0, 5, 6; query 0 has 0 and 6 among its candidates, query 1 has 0
    assert measure_locality(plan, found.graph).tolist() == [3 / 6, 1 / 2]


@pytest.mark.parametrize("strategy", LOCAL)
def test_hubs_do_not_slow_the_plan(strategy):
    found = large_corpus(20_000, 20_000, 20, depth=10)
    found.rows[:, 0] = 0
    sampler = make(strategy, found, 64)
    started = time.process_time()
    plan = sampler.plan(0)
    assert time.process_time() - started < 2
    assert len(np.unique(plan.queries)) == 20_000


@pytest.mark.parametrize("strategy", LOCAL)
def test_without_the_compiler_the_plan_is_the_same(strategy, monkeypatch):
    found = large_corpus(300, 2_000, 10, depth=20)
    compiled = make(strategy, found, 32, hops=10).plan(0)
    for name in ("_draw_candidate", "_draw_unvisited", "_choose_bridge", "sample_random_walk", "sample_snowball"):
        monkeypatch.setattr(walks, name, getattr(walks, name).py_func)
    assert same(compiled, make(strategy, found, 32, hops=10).plan(0))


@pytest.mark.parametrize("strategy", LOCAL)
def test_a_dead_end_in_one_candidate_is_left_by_another(strategy):
    """Each query has ten candidates that no other has, and one that leads on."""
    rows = np.concatenate([np.full((300, 1), 0), np.arange(1, 3_001).reshape(300, 10)], axis=1)
    plan = make(strategy, Found([[3_001]] * 300, rows, 3_002), 300).plan(0)
    assert plan.restarts < 0.7 * 300
