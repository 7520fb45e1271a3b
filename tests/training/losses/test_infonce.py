import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_training import CONFIG, dataset, losses

from bidr.data.positives import Positives
from bidr.models.corpus_encoding import encode_rows
from bidr.training.losses import full_corpus_infonce as whole
from bidr.training.losses.infonce import infonce, make_contrast
from bidr.training.losses.objectives import DenseObjective, QuantizedObjective
from bidr.training.losses.shared_query_encoder import FixedDocuments, UnifyObjective
from bidr.training.negatives.samplers import Batch
from bidr.training.run_context import TrainingRun


def pairs_of(lists: list[list[int]]) -> Positives:
    starts = np.cumsum([0, *(len(each) for each in lists)]).astype(np.int64)
    return Positives(starts, np.array([row for each in lists for row in each], dtype=np.int64))


def naive(scores: np.ndarray, queries: list[int], positives: list[int], others: set[int], own: list[set[int]]) -> float:
    """InfoNCE in plain words. scores: (all queries, all documents); own: every query's positives."""
    losses = []
    for query, positive in zip(queries, positives, strict=True):
        negatives = (others | set(positives)) - own[query]
        total = np.exp(scores[query, [positive, *negatives]]).sum()
        losses.append(np.log(total) - scores[query, positive])
    return float(np.mean(losses))


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[int]], Batch]:
    """Few documents: duplicates and other queries' positives are common."""
    row = st.integers(0, 7)
    positives = draw(st.lists(st.lists(row, min_size=1, max_size=3, unique=True), min_size=2, max_size=6))
    queries = draw(st.permutations(range(len(positives))))[: draw(st.integers(1, len(positives)))]
    drawn = [draw(st.sampled_from(positives[query])) for query in queries]
    negatives = draw(st.one_of(st.just([]), st.lists(row, min_size=len(queries), max_size=len(queries))))
    return positives, Batch(np.array(queries), np.array(drawn), np.array(negatives, dtype=np.int64))


@given(batches(), st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_a_document_counts_once_and_other_positives_are_hidden(made, seed):
    positives, batch = made
    scores = np.random.default_rng(seed).standard_normal((len(positives), 8))
    compared = make_contrast(batch, pairs_of(positives))
    assert compared.documents.tolist() == sorted({*batch.positives.tolist(), *batch.negatives.tolist()})
    seen = torch.from_numpy(scores[batch.queries][:, compared.documents])
    found = float(infonce(seen, compared.targets, compared.hidden))
    others = set(batch.negatives.tolist())
    own = [set(each) for each in positives]
    assert found == pytest.approx(naive(scores, batch.queries.tolist(), batch.positives.tolist(), others, own))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return TrainingRun(dataset(), CONFIG, tmp_path_factory.mktemp("run") / "work")


@pytest.fixture(scope="module")
def sides(run):
    """All vectors of queries and documents by the untrained encoder, and its codebooks."""
    encoder = run.load_backbone()
    questions = run.data.train
    return encode_rows(encoder, questions.tokens), encode_rows(encoder, run.data.documents)


@pytest.fixture(scope="module")
def batch(run):
    return run.make_random_sampler("in-batch").plan(0).get_batch(0)


def loss_of(objective, batch, seed=0):
    return sum(losses(objective, objective.prepare(batch, np.random.default_rng(seed))).values())


def own_positives(run) -> list[set[int]]:
    pairs = run.data.train.pairs
    return [set(pairs.get_rows(query).tolist()) for query in range(len(pairs))]


def arguments(run, batch, others=()) -> tuple:
    return batch.queries.tolist(), batch.positives.tolist(), set(others), own_positives(run)


def test_dense_objective_equals_naive_infonce(run, sides, batch):
    queries, documents = sides
    with_negatives = batch._replace(negatives=np.arange(30, 30 + len(batch.queries)))
    objective = DenseObjective(run.load_backbone(), run.data.documents, run.data.train, 20.0)
    for each in (batch, with_negatives):
        expected = naive(20 * queries @ documents.T, *arguments(run, each, each.negatives.tolist()))
        assert float(loss_of(objective, each).detach()) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", ["quantized", "joint"])
def test_quantized_objective_equals_naive_infonce_on_code_scores(run, sides, batch, kind):
    from bidr.models.trainable_quantizer import TrainableQuantizer

    queries, documents = sides
    encoder = run.load_backbone()
    codebooks = run.fit_codebooks(encoder)
    objective = QuantizedObjective(
        encoder, TrainableQuantizer(codebooks), run.data.documents, run.data.train, 20.0, kind=kind, codebook_rate=3.0
    )
    expected = naive(20 * codebooks.compute_scores(queries, codebooks.encode(documents)), *arguments(run, batch))
    if kind == "joint":
        expected += naive(20 * queries @ documents.T, *arguments(run, batch))
    loss = loss_of(objective, batch)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-4)
    loss.backward()
    assert objective.quantizer.centroids.grad.abs().sum() > 0
    assert encoder.directions.grad.abs().sum() > 0
    rates = {
        len(group["params"]): (group["lr"], group["weight_decay"]) for group in objective.make_param_groups(0.1, 0.5)
    }
    assert rates == {2: (0.1, 0.5), 1: (pytest.approx(0.3), 0.0)}


def unified(run, sides, **options) -> UnifyObjective:
    """Unification over the untrained encoder: candidates are the codes' best, the last two missing."""
    queries, documents = sides
    encoder = run.load_backbone()
    codebooks = run.fit_codebooks(encoder)
    codes = codebooks.encode(documents)
    found = np.argsort(-codebooks.compute_scores(queries, codes), axis=1)[:, :12]
    own = own_positives(run)
    candidates = np.array([[row if row not in own[query] else -1 for row in rows] for query, rows in enumerate(found)])
    candidates[:, -2:] = -1
    fixed = FixedDocuments(codebooks, codes, documents.astype(np.float16), candidates)
    settings = {"pool": 100_000, "own": 100, "others": 100_000, "dense_weight": 1.0, **options}
    return UnifyObjective(encoder, fixed, run.data.train, 20.0, **settings)


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_unification_contrasts_with_all_of_a_small_corpus(run, sides, batch, weight):
    """Every candidate is among the shared documents then: counted twice, it would show."""
    queries, documents = sides
    objective = unified(run, sides, dense_weight=weight)
    rows, fixed = range(len(documents)), objective.fixed
    by_codes = naive(20 * fixed.codebooks.compute_scores(queries, fixed.codes), *arguments(run, batch, rows))
    by_vectors = naive(20 * queries @ fixed.vectors.T.astype(np.float32), *arguments(run, batch, rows))
    found = float(loss_of(objective, batch).detach())
    assert found == pytest.approx(by_codes + weight * by_vectors, rel=1e-4)


@pytest.mark.parametrize("rows", [1, 7, 90, 1000])
def test_blockwise_full_corpus_infonce_equals_the_naive_one(run, sides, batch, rows, monkeypatch):
    """Loss and gradient as with all documents decoded and all scores there at once; never more than a block of them."""
    seen, real = [], whole.decode

    def decode(codes, centroids):
        seen.append(len(codes))
        return real(codes, centroids)

    monkeypatch.setattr(whole, "MAX_ROWS_PER_BLOCK", rows)
    monkeypatch.setattr(whole, "decode", decode)
    found = []
    for pool in (100_000, 0):
        objective = unified(run, sides, pool=pool)
        loss = loss_of(objective, batch)
        loss.backward()
        found.append((loss.detach(), objective.encoder.directions.grad))
    assert torch.allclose(found[0][0], found[1][0], rtol=1e-6)
    assert (found[0][1] - found[1][1]).norm() < 1e-5 * found[0][1].norm()
    assert max(seen) <= max(rows, len(batch.queries))
    assert sum(seen) == 90 + len(batch.queries)


@pytest.mark.parametrize("seed", range(4))
def test_unification_on_parts_of_the_corpus(run, sides, batch, seed):
    """A query's own candidates count once, whether or not they are among the shared documents too."""
    queries, _ = sides
    objective = unified(run, sides, others=40, pool=50)
    fixed, own = objective.fixed, own_positives(run)
    random = np.random.default_rng(seed)
    pool, others = set(random.integers(90, size=50).tolist()), set(random.integers(90, size=40).tolist())
    by_codes = naive(20 * fixed.codebooks.compute_scores(queries, fixed.codes), *arguments(run, batch, pool))
    by_vectors = []
    scores = 20 * queries @ fixed.vectors.T.astype(np.float32)
    for query, positive in zip(batch.queries.tolist(), batch.positives.tolist(), strict=True):
        seen = others | set(batch.positives.tolist()) | {row for row in fixed.candidates[query].tolist() if row >= 0}
        by_vectors.append(naive(scores, [query], [positive], seen, own))
    found = float(loss_of(objective, batch, seed).detach())
    assert found == pytest.approx(by_codes + np.mean(by_vectors), rel=1e-4)


def test_unification_samples_candidates_per_step(run, sides, batch):
    objective = unified(run, sides, own=3, others=1)
    comparison = objective.prepare(batch, np.random.default_rng(0)).comparison
    assert comparison.candidates.shape == (len(batch.queries), 3)


def test_unification_learns_the_query_encoder_only(run, sides):
    objective = unified(run, sides)
    (group,) = objective.make_param_groups(0.1, 0.0)
    assert {id(value) for value in group["params"]} == {id(value) for value in objective.encoder.parameters()}
    assert set(objective.state_dict()) == {f"encoder.{name}" for name in objective.encoder.state_dict()}
