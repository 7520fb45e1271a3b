"""Questions for documents that nobody asked for, made from those of their neighbours."""

import numpy as np
from sample_vectors import quick

from bidr.data.vector_source import VectorSource
from bidr.training.codes_only.data import SourceVectors, prepare_distillation
from bidr.training.codes_only.pseudo_queries import make_pseudo_queries
from bidr.training.codes_only.ranking_distillation import EncodedVectors

DIM, GROUPS, EACH = 16, 10, 100
COUNT, ASKED = GROUPS * EACH, 450


def grouped(seed: int = 0) -> tuple[EncodedVectors, np.ndarray]:
    """Documents in groups; a question of a group lies to one side of its answer, the same in the whole group.

    Only documents with an even number are asked for.
    """
    random = np.random.default_rng(seed)
    centres, sides = random.normal(size=(2, GROUPS, DIM)).astype(np.float32)
    group = np.repeat(np.arange(GROUPS), EACH)
    documents = centres[group] + 0.5 * random.normal(size=(COUNT, DIM)).astype(np.float32)
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    answers = random.choice(np.arange(0, COUNT, 2), ASKED, replace=False)
    return EncodedVectors(documents, documents[answers] + 0.05 * sides[group[answers]]), answers[:, None]


def borrowed(vectors: EncodedVectors, labelled: np.ndarray, borrowers: np.ndarray, count: int = 500):
    return make_pseudo_queries(vectors, labelled, borrowers, count, np.random.default_rng(0))


def test_a_pseudo_query_has_the_offset_of_its_source_question():
    vectors, labelled = grouped()
    made = borrowed(vectors, labelled, np.arange(1, COUNT, 2))
    own = made.documents // EACH
    assert (made.owners // EACH == own).mean() > 0.95  # from the same group
    away = made.make_vectors(vectors) - vectors.documents[made.documents]
    for group in range(GROUPS):
        asked = labelled[:, 0] // EACH == group
        side = (vectors.questions - vectors.documents[labelled[:, 0]])[asked].mean(axis=0)
        found = away[own == group].mean(axis=0)
        assert found @ side > 0.8 * np.linalg.norm(found) * np.linalg.norm(side)


def test_pseudo_queries_have_the_lengths_of_their_sources():
    vectors, labelled = grouped()
    made = borrowed(vectors, labelled, np.arange(COUNT))
    lengths = np.linalg.norm(made.make_vectors(vectors), axis=1)
    np.testing.assert_allclose(lengths, np.linalg.norm(vectors.questions[made.questions], axis=1), rtol=1e-5)


def test_pseudo_queries_are_equivariant_to_rotation():
    """Codes may be made by another encoder than the one they follow."""
    vectors, labelled = grouped()
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(DIM, DIM)))[0].astype(np.float32)
    made = borrowed(vectors, labelled, np.arange(COUNT))
    turned = made.make_vectors(EncodedVectors(vectors.documents @ turn, vectors.questions @ turn))
    np.testing.assert_allclose(turned, made.make_vectors(vectors) @ turn, atol=1e-4)


def lessons_of(vectors: EncodedVectors, labels: dict[int, list[int]], **settings):
    pair = SourceVectors(
        VectorSource(vectors.documents, "documents", "ip"), VectorSource(vectors.questions, "questions", "ip")
    )
    return prepare_distillation(pair, labels, quick(depth=8, **settings)).lessons


def test_training_data_includes_pseudo_queries_for_unlabeled_documents():
    vectors, labelled = grouped()
    labels = {row: [int(answer)] for row, answer in enumerate(labelled[:, 0])}
    plain = lessons_of(vectors, labels, borrowed=0.0)
    asked = (plain.labelled >= 0).any(axis=1).sum()
    odd = {}
    for borrowers in ("unasked", "all"):
        found = lessons_of(vectors, labels, borrowed=2.0, borrowers=borrowers)
        assert len(found.best) == len(found.full.questions) == len(plain.best) + 2 * asked
        assert (found.labelled[len(plain.best) :] == -1).all()  # nobody has judged them
        odd[borrowers] = (found.best[len(plain.best) :, 0] % 2 == 1).mean()
    assert odd["unasked"] > 0.9
    assert 0.4 < odd["all"] < 0.7
    again = lessons_of(vectors, labels, borrowed=2.0, borrowers="all")
    np.testing.assert_array_equal(found.best, again.best)


def test_without_labels_there_are_no_pseudo_queries():
    vectors, _ = grouped()
    assert len(lessons_of(vectors, {}, borrowed=2.0).best) == len(lessons_of(vectors, {}, borrowed=0.0).best)
