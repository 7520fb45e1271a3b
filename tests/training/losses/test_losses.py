"""The laws of what recipes switch on: losses as plain words say them, filters, balanced choices, live negatives."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_training import CONFIG, dataset, losses
from torch.nn import functional

from bidr.data.positives import Positives, remove_positives
from bidr.models.corpus_encoding import encode_rows
from bidr.models.trainable_quantizer import TrainableQuantizer, balance_assignment
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.learned_ivf import IvfAssignment, assign_to_lists, measure_probes
from bidr.training.losses.full_corpus_infonce import make_full_corpus_contrast
from bidr.training.losses.infonce import (
    TeacherScores,
    hard_negative_infonce,
    infonce,
    make_contrast,
    ranking_divergence,
)
from bidr.training.losses.jpq import JpqObjective
from bidr.training.losses.objectives import DenseObjective, QuantizedObjective
from bidr.training.losses.shared_query_encoder import FixedDocuments, UnifyObjective
from bidr.training.losses.teacher import PairTeacher, VectorTeacher
from bidr.training.negatives.false_negatives import JudgeScores, drop_false_negatives, score_by_vectors
from bidr.training.negatives.samplers import Batch, RandomSampler
from bidr.training.run_context import TrainingRun


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return TrainingRun(dataset(), CONFIG, tmp_path_factory.mktemp("run") / "work")


@pytest.fixture(scope="module")
def sides(run):
    """All vectors of queries and documents by the untrained encoder."""
    encoder = run.load_backbone()
    return encode_rows(encoder, run.data.train.tokens), encode_rows(encoder, run.data.documents)


def pool_of(run, sides, depth=12):
    queries, documents = sides
    return remove_positives(np.argsort(-queries @ documents.T, axis=1)[:, :depth], run.data.train.pairs)


@pytest.fixture(scope="module")
def batch(run, sides):
    """Ten queries with three mined negatives each."""
    pairs, documents = run.data.train.pairs, len(run.data.documents)
    return RandomSampler(pairs, documents, 10, 0, pool_of(run, sides), per_query=3).plan(0).get_batch(0)


def terms_of(objective, batch, seed=0):
    found = losses(objective, objective.prepare(batch, np.random.default_rng(seed)))
    return {name: float(value.detach()) for name, value in found.items()}


def own(run, query):
    return set(run.data.train.pairs.get_rows(query).tolist())


def entropy(scores, positive):
    """Of the positive (first) among scores."""
    return float(np.log(np.exp(scores).sum()) - positive)


# negatives


def test_several_negatives_per_query_come_from_its_pool(run, sides, batch):
    pool = pool_of(run, sides)
    assert batch.negatives.shape == (10, 3)
    assert all(set(row) <= set(pool[query]) for query, row in zip(batch.queries, batch.negatives, strict=True))
    assert len(np.unique(batch.negatives)) > 10


def test_hard_negative_infonce_ignores_other_documents(run, sides, batch):
    queries, documents = sides
    objective = DenseObjective(run.load_backbone(), run.data.documents, run.data.train, 20.0, hard_negatives_only=True)
    scores = 20 * queries @ documents.T
    expected = [
        entropy(scores[query, [positive, *negatives]], scores[query, positive])
        for query, positive, negatives in zip(batch.queries, batch.positives, batch.negatives, strict=True)
    ]
    assert terms_of(objective, batch)["dense"] == pytest.approx(np.mean(expected), rel=1e-4)


def test_hard_negative_infonce_gives_other_documents_no_gradient():
    batch = Batch(np.array([0, 1]), np.array([0, 1]), np.array([2, 3]))
    compared = make_contrast(batch, Positives(np.array([0, 1, 2]), np.array([0, 1])))
    scores = torch.randn(2, 4, requires_grad=True)
    hard_negative_infonce(scores, compared).backward()
    assert ((scores.grad != 0) == torch.tensor([[1, 0, 1, 0], [0, 1, 0, 1]]).bool()).all()


@given(st.integers(0, 2**32 - 1), st.sampled_from([-0.5, 0.0, 0.5]))
@settings(max_examples=50, deadline=None)
def test_live_margin_masks_documents_above_the_threshold(seed, margin):
    random = np.random.default_rng(seed)
    scores, targets = random.standard_normal((4, 6)), random.integers(6, size=4)
    expected = []
    for row, target in zip(scores, targets, strict=True):
        kept = [place for place in range(6) if place == target or row[place] <= row[target] - margin]
        expected.append(entropy(row[kept], row[target]))
    nobody = (np.empty(0, dtype=np.int64),) * 2
    found = float(infonce(torch.from_numpy(scores), targets, nobody, margin))
    assert found == pytest.approx(np.mean(expected))


@given(st.integers(0, 2**32 - 1), st.sampled_from([-0.2, 0.0, 0.3]))
@settings(max_examples=50, deadline=None)
def test_drop_false_negatives_splits_exactly_at_the_margin(seed, margin):
    random = np.random.default_rng(seed)
    queries, documents = random.standard_normal((5, 3)), random.standard_normal((20, 3))
    pairs = Positives(np.array([0, 1, 3, 4, 5, 6]), random.permutation(20)[:6])
    found = remove_positives(np.argsort(-queries @ documents.T, axis=1)[:, :9], pairs)
    kept = drop_false_negatives(found, score_by_vectors(found, pairs, queries, documents), pairs, margin)
    scores = queries @ documents.T
    for query in range(5):
        limit = scores[query, pairs.get_rows(query)].min() - margin
        rows = [row for row in found[query] if row >= 0 and scores[query, row] <= limit]
        assert kept[query].tolist() == rows + [-1] * (9 - len(rows))


def test_documents_without_a_score_are_dropped():
    pairs = Positives(np.array([0, 1, 2]), np.array([7, 8]))
    judged = JudgeScores(
        np.array([[0.1, np.nan], [0.1, 0.2]], dtype=np.float32), np.array([0.5, np.nan], dtype=np.float32)
    )
    assert drop_false_negatives(np.array([[1, 2], [3, 4]]), judged, pairs, 0.0).tolist() == [[1, -1], [-1, -1]]


# codes


def quantized(run, **options) -> QuantizedObjective:
    encoder = run.load_backbone()
    quantizer = TrainableQuantizer(run.fit_codebooks(encoder), 0.01, options.pop("assignment", "nearest"))
    settings = {"kind": "joint", "codebook_rate": 1.0, **options}
    return QuantizedObjective(encoder, quantizer, run.data.documents, run.data.train, 20.0, **settings)


def test_dpq_is_dense_infonce_plus_reconstruction(run, sides, batch):
    objective = quantized(run, kind="dpq", reconstruction=0.7)
    found = terms_of(objective, batch)
    plain = DenseObjective(run.load_backbone(), run.data.documents, run.data.train, 20.0)
    books = objective.get_codebooks()
    seen = sides[1][np.unique(np.concatenate([batch.positives, batch.negatives.ravel()]))]
    errors = np.square(books.rotate(seen) - books.decode(books.encode(seen))).sum(axis=1)
    assert found["reconstruction"] == pytest.approx(0.7 * errors.mean(), rel=1e-4)
    assert found == {"dense": pytest.approx(terms_of(plain, batch)["dense"]), "reconstruction": found["reconstruction"]}


def test_reconstruction_moves_vectors_and_codewords_towards_each_other(run):
    objective = quantized(run)
    vectors = torch.randn(50, 16, requires_grad=True)
    before = objective.quantizer.compute_error(vectors)
    before.backward()
    centroids = objective.quantizer.centroids
    with torch.no_grad():
        centroids -= 0.5 * centroids.grad
        moved = vectors - 0.5 * vectors.grad
    assert float(objective.quantizer.compute_error(moved).detach()) < 0.99 * float(before.detach())


@pytest.mark.parametrize(("count", "words"), [(512, 16), (64, 16), (40, 16), (600, 256)])
def test_uniform_assignment_uses_all_codewords_equally(count, words):
    """Even of vectors that all lie at a few of them, far from the others."""
    torch.manual_seed(0)
    parts = torch.randn(count, 2, 4) * 0.05 + torch.randn(3, 2, 4)[torch.randint(3, (count,))]
    codewords = torch.randn(2, words, 4)
    distances = (parts[:, :, None] - codewords[None]).square().sum(3)
    shares = balance_assignment(distances)
    assert shares.dtype == torch.float64
    assert torch.allclose(shares.sum(2), torch.ones(count, 2, dtype=torch.float64))
    assert torch.allclose(shares.sum(0), torch.full((2, words), count / words, dtype=torch.float64), rtol=0.1)
    nearest = torch.stack([distances[:, book].argmin(1).bincount(minlength=words) for book in range(2)])
    chosen = torch.stack([shares[:, book].argmax(1).bincount(minlength=words) for book in range(2)])
    assert chosen.double().std(1).max() < 0.5 * nearest.double().std(1).min()


def test_uniform_assignment_applies_only_in_training(run, sides):
    objective = quantized(run, assignment="uniform")
    vectors, books = torch.from_numpy(sides[1]), objective.get_codebooks()
    plain = torch.from_numpy(books.decode(books.encode(sides[1])))
    objective.train()
    assert not torch.allclose(objective.quantizer(vectors), plain, atol=1e-4)
    objective.eval()
    assert torch.allclose(objective.quantizer(vectors), plain, atol=1e-4)


# teachers


def test_ranking_divergence_covers_only_scored_documents():
    scores, wanted = torch.randn(3, 5, dtype=torch.float64), np.random.default_rng(0).standard_normal((3, 3))
    wanted[1, 2] = np.nan
    places = np.array([[0, 3, 4], [1, 2, 3], [4, 0, 1]])
    expected = []
    for row, where, said in zip(scores.numpy(), places, wanted, strict=True):
        known = ~np.isnan(said)
        p = np.exp(said[known]) / np.exp(said[known]).sum()
        q = np.exp(row[where[known]]) / np.exp(row[where[known]]).sum()
        expected.append((p * np.log(p / q)).sum())
    assert float(ranking_divergence(scores, TeacherScores(places, wanted))) == pytest.approx(
        np.mean(expected), rel=1e-4
    )
    assert float(ranking_divergence(scores, TeacherScores(None, scores.numpy()))) == pytest.approx(0, abs=1e-6)


def test_codes_are_distilled_from_vector_scores_of_the_batch(run, sides, batch):
    queries, documents = sides
    objective = quantized(run, teacher=VectorTeacher(queries, documents, 20.0), taught_weight=0.5)
    found, books = terms_of(objective, batch), objective.get_codebooks()
    seen = np.unique(np.concatenate([batch.positives, batch.negatives.ravel()]))
    teacher = torch.from_numpy(20 * queries[batch.queries] @ documents[seen].T).log_softmax(1)
    student = torch.from_numpy(
        20 * books.compute_scores(queries[batch.queries], books.encode(documents[seen]))
    ).log_softmax(1)
    expected = functional.kl_div(student, teacher, reduction="batchmean", log_target=True)
    assert found["taught"] == pytest.approx(0.5 * float(expected), rel=1e-3)
    assert set(found) == {"codes", "dense", "taught"}


def test_a_pair_teacher_looks_up_its_scores(run, sides, batch):
    pairs, pool = run.data.train.pairs, pool_of(run, sides)
    table = np.random.default_rng(1).standard_normal((len(pairs), len(run.data.documents))).astype(np.float32)
    places, rows = pairs.list_edges(np.arange(len(pairs)))
    judged = JudgeScores(
        np.where(pool >= 0, np.take_along_axis(table, np.maximum(pool, 0), 1), np.nan), table[places, rows]
    )
    strange = batch._replace(negatives=np.concatenate([batch.negatives[:, :2], batch.positives[::-1, None]], axis=1))
    for each in (batch, strange):
        compared = make_contrast(each, pairs)
        found = PairTeacher(pool, judged, pairs, 2.0)(each, compared)
        meant = np.concatenate([each.positives[:, None], each.negatives], axis=1)
        assert np.array_equal(compared.documents[found.positions], meant)
        scored = np.array(
            [
                [row in {*pool[query], *own(run, query)} for row in line]
                for query, line in zip(each.queries, meant, strict=True)
            ]
        )
        scored[:, 1:] &= np.array(
            [[row in pool[query] for row in line] for query, line in zip(each.queries, meant[:, 1:], strict=True)]
        )
        expected = np.where(scored, 2 * table[each.queries[:, None], meant], np.nan)
        assert np.allclose(found.scores, expected, equal_nan=True)


# codewords learned for codes that stay


@pytest.fixture
def live(run, sides):
    documents = sides[1]
    encoder = run.load_backbone()
    books = run.fit_codebooks(encoder)
    codes = books.encode(documents)
    fixed = FixedDocuments(books, codes, documents.astype(np.float16), pool_of(run, sides))
    options = {"pool": 100_000, "own": 4, "others": 20, "dense_weight": 1.0}
    return lambda top: JpqObjective(encoder, fixed, run.data.train, 20.0, **options, top=top, codebook_rate=3.0)


def test_jpq_hard_negatives_are_the_current_top_by_codes(run, sides, batch, live, monkeypatch):
    objective = live(7)
    with torch.no_grad():
        objective._centroids += 0.1 * torch.randn_like(objective._centroids)
    books = objective.get_codebooks()
    scores = 20 * books.compute_scores(sides[0], objective.fixed.codes)
    expected, highest = [], []
    for query, positive in zip(batch.queries.tolist(), batch.positives.tolist(), strict=True):
        order = [row for row in np.argsort(-scores[query]).tolist() if row not in own(run, query)][:7]
        expected.append(entropy(scores[query, [positive, *order]], scores[query, positive]))
        highest.append(scores[query, order])
    for at_once in (65_536, 20):
        monkeypatch.setattr("bidr.training.losses.jpq.DOCUMENTS_PER_BLOCK", at_once)
        rotated = torch.from_numpy(books.rotate(sides[0][batch.queries]))
        rows = objective.search_hard_negatives(rotated, make_full_corpus_contrast(batch, run.data.train.pairs)).numpy()
        assert np.allclose(scores[batch.queries[:, None], rows], highest, atol=1e-3)
        assert terms_of(objective, batch)["codes"] == pytest.approx(np.mean(expected), rel=1e-4)


def test_jpq_learns_codewords_and_encodes_by_the_initial_ones(sides, batch, live, tmp_path):
    objective = live(7)
    sum(losses(objective, objective.prepare(batch, np.random.default_rng(0))).values()).backward()
    assert objective._centroids.grad.abs().sum() > 0
    with torch.no_grad():
        objective._centroids += 1
    learned = objective.get_codebooks()
    assert np.array_equal(learned.encode(sides[1]), objective.fixed.codes)
    learned.save(tmp_path / "books")
    again = Codebooks.load(tmp_path / "books")
    assert np.array_equal(again.encode(sides[1]), objective.fixed.codes)
    assert np.allclose(again.centroids, objective.fixed.codebooks.centroids + 1)
    rates = [group["lr"] for group in objective.make_param_groups(0.1, 0.5)]
    assert rates == [0.1, pytest.approx(0.3)]


# vectors that may be cut off


def test_prefix_losses_use_normalized_truncated_vectors(run, sides, batch):
    queries, documents = (torch.from_numpy(side) for side in sides)
    objective = DenseObjective(run.load_backbone(), run.data.documents, run.data.train, 20.0, prefixes=(4, 8))
    found = terms_of(objective, batch)
    compared = make_contrast(batch, run.data.train.pairs)
    for dim in (4, 8):
        cut = [functional.normalize(side[:, :dim], dim=1) for side in (queries, documents)]
        scores = 20 * cut[0][batch.queries] @ cut[1][compared.documents].T
        assert found[f"first {dim}"] == pytest.approx(
            float(infonce(scores, compared.targets, compared.hidden)), rel=1e-4
        )


# coarse lists


def test_list_centroids_move_towards_queries_of_their_documents(run, sides, batch):
    queries, documents = sides
    encoder = run.load_backbone()
    books = run.fit_codebooks(encoder)
    codes = books.encode(documents)
    lists = assign_to_lists(books, codes, 9)
    near = np.square(books.decode(codes)[:, None] - lists.centroids[None]).sum(axis=2).argmin(axis=1)
    assert np.array_equal(lists.of, near)
    fixed = FixedDocuments(books, codes, documents.astype(np.float16), pool_of(run, sides))
    options = {"pool": 100_000, "own": 4, "others": 20, "dense_weight": 1.0}
    objective = UnifyObjective(encoder, fixed, run.data.train, 20.0, **options, lists=lists, codebook_rate=3.0)
    scores = 20 * books.rotate(queries[batch.queries]) @ lists.centroids.T
    expected = [entropy(row, row[lists.of[positive]]) for row, positive in zip(scores, batch.positives, strict=True)]
    assert terms_of(objective, batch)["lists"] == pytest.approx(np.mean(expected), rel=1e-4)
    assert [group["lr"] for group in objective.make_param_groups(0.1, 0.0)] == [0.1, pytest.approx(0.3)]


def test_recall_and_cost_by_nprobe():
    lists = IvfAssignment(np.eye(3, dtype=np.float32), np.array([0, 0, 0, 1, 1, 2]))
    queries = np.array([[3, 2, 1], [1, 2, 3]], dtype=np.float32)
    positives = np.array([0, 0, 1]), np.array([0, 3, 0])
    assert measure_probes(queries, lists, positives, 1) == pytest.approx((0.25, (3 + 1) / 12))
    assert measure_probes(queries, lists, positives, 2) == pytest.approx((0.5, (5 + 3) / 12))
    assert measure_probes(queries, lists, positives, 3) == pytest.approx((1.0, 1.0))
