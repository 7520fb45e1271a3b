"""Training data of codes for existing vectors: sampled documents, questions and the teacher's ranking."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.data.vector_source import VectorSource
from bidr.quantization.exact_search import search_vectors
from bidr.training.codes_only.pseudo_queries import make_pseudo_queries
from bidr.training.codes_only.ranking_distillation import DistillationData, EncodedVectors
from bidr.training.config import TrainConfig
from bidr.utils.array_types import Floats, Rows
from bidr.utils.progress import say

TOP = 10
# Limits the sample of very wide vectors to 1 GiB.
SAMPLE_NUMBERS = 1 << 28
MAX_LABELED = 16
# Documents substitute for missing questions: a few hundred questions alone are worse than none.
MIN_QUESTIONS = 5_000
Labels = dict[int, list[int]]


class SourceVectors(NamedTuple):
    """Documents and questions of one encoder, before sampling."""

    documents: VectorSource
    questions: VectorSource | None


class HeldOutQuestions(NamedTuple):
    """Held-out questions, their top rows by full vectors, and their labeled rows."""

    questions: Floats
    best: Rows
    labelled: Rows


class PreparedDistillation(NamedTuple):
    """Training data and held-out questions, scaled to a mean vector length of 1."""

    lessons: DistillationData
    probe: HeldOutQuestions
    length: float
    """Mean length of a document vector before scaling."""


def prepare_distillation(
    full: SourceVectors,
    labels: Labels,
    config: TrainConfig,
    encoded: SourceVectors | None = None,
    asked_for: Rows | None = None,
    device: str = "cpu",
) -> PreparedDistillation:
    """Sample documents and questions, rank by full vectors, hold out some questions.

    encoded:   Vectors to encode, if they are not those whose ranking is learned.
    asked_for: Rows of documents with a labeled question, if there are more than in `labels`.
    """
    frozen, random, encoded = config.frozen, np.random.default_rng(config.seed), encoded or full
    documents, questions = full
    max_documents = max(config.codewords, min(frozen.sample, SAMPLE_NUMBERS // documents.dim))
    rows = _sample_rows(documents, labels, max_documents, random)
    question_rows = (
        np.sort(random.permutation(len(questions))[: frozen.questions]) if questions else np.empty(0, np.int64)
    )
    substitutes = _draw_substitutes(
        len(rows), frozen.questions if questions is None else MIN_QUESTIONS - len(question_rows), config
    )
    ranked, length = _draw_vectors(full, rows, question_rows, substitutes)
    coded, length = (ranked, length) if encoded is full else _draw_vectors(encoded, rows, question_rows, substitutes)
    say(
        f"exact ranking of {len(rows):,} documents for {len(question_rows):,} queries and "
        f"{len(substitutes):,} documents used as queries"
    )
    top_rows = search_vectors(ranked.questions, ranked.documents, frozen.depth + 1, device=device).rows
    top_rows = _drop_self(top_rows, np.concatenate([np.full(len(question_rows), -1), substitutes]))
    labelled = _map_labels(question_rows, rows, labels if questions else {})
    labelled = np.concatenate([labelled, np.full((len(substitutes), labelled.shape[1]), -1)])
    # With fewer than 10 questions, hold out substitutes instead.
    spared = np.arange(len(question_rows)) if len(question_rows) >= 10 else np.arange(len(question_rows), len(top_rows))
    held_out_rows = spared[random.permutation(len(spared))[: min(frozen.dev_questions, len(spared) // 10)]]
    probe = HeldOutQuestions(coded.questions[held_out_rows], top_rows[held_out_rows, :TOP], labelled[held_out_rows])
    train_rows = np.setdiff1d(np.arange(len(top_rows)), held_out_rows)
    drawn = [side._replace(questions=side.questions[train_rows]) for side in (ranked, coded)]
    lessons = DistillationData(drawn[0], drawn[1], top_rows[train_rows], labelled[train_rows])
    if asked_for is None:
        asked_for = np.array([row for label_rows in labels.values() for row in label_rows], dtype=np.int64)
    return PreparedDistillation(_add_pseudo_queries(lessons, np.isin(rows, asked_for), config, device), probe, length)


def _add_pseudo_queries(
    lessons: DistillationData, asked_for: npt.NDArray[np.bool_], config: TrainConfig, device: str
) -> DistillationData:
    """Add pseudo-queries for documents without a labeled question."""
    frozen, labelled = config.frozen, lessons.labelled
    count = round(frozen.borrowed * np.count_nonzero((labelled >= 0).any(axis=1)))
    if not count:
        return lessons
    borrowers = np.arange(len(asked_for)) if frozen.borrowers == "all" else np.flatnonzero(~asked_for)
    random = np.random.default_rng((config.seed, 3))
    pseudo_queries = make_pseudo_queries(lessons.full, labelled, borrowers, count, random, device)
    teacher, student = (
        side._replace(questions=np.concatenate([side.questions, pseudo_queries.make_vectors(side)]))
        for side in lessons[:2]
    )
    best = search_vectors(teacher.questions[len(labelled) :], teacher.documents, frozen.depth, device=device).rows
    none = np.full((count, labelled.shape[1]), -1)
    return DistillationData(teacher, student, np.concatenate([lessons.best, best]), np.concatenate([labelled, none]))


def _draw_vectors(
    pair: SourceVectors, rows: Rows, question_rows: Rows, substitutes: Rows
) -> tuple[EncodedVectors, float]:
    """Load the sampled vectors, scaled to mean length 1; returns the documents' mean length too."""
    sample = pair.documents[rows]
    length = _compute_mean_length(sample)
    sample /= length
    if pair.questions is None:
        return EncodedVectors(sample, sample[substitutes]), length
    questions = pair.questions[question_rows]
    questions /= _compute_mean_length(questions)
    return EncodedVectors(sample, np.concatenate([questions, sample[substitutes]])), length


def _compute_mean_length(vectors: Floats) -> float:
    return float(np.linalg.norm(vectors, axis=1).mean()) or 1.0


def _sample_rows(documents: VectorSource, labels: Labels, max_documents: int, random: np.random.Generator) -> Rows:
    """Sample rows at random, with all labeled ones."""
    if len(documents) <= max_documents:
        return np.arange(len(documents))
    needed = np.unique(np.array([row for labeled in labels.values() for row in labeled], dtype=np.int64))[
        :max_documents
    ]
    drawn = random.choice(len(documents), max_documents, replace=False)
    others = drawn[~np.isin(drawn, needed)][: max_documents - len(needed)]
    return np.sort(np.concatenate([needed, others]))


def _draw_substitutes(documents: int, count: int, config: TrainConfig) -> Rows:
    """Draw documents of the sample that are used as questions."""
    random = np.random.default_rng((config.seed, 1))
    return np.sort(random.permutation(documents)[: max(count, 0)])


def _drop_self(best: Rows, documents: Rows) -> Rows:
    """Drop a document that is used as a question from its own ranking."""
    order = np.argsort(best == documents[:, None], axis=1, kind="stable")[:, :-1]
    return np.take_along_axis(best, order, axis=1)


def _map_labels(question_rows: Rows, rows: Rows, labels: Labels) -> Rows:
    """Map each question's labels to rows of the sample, padded with -1."""
    max_labels = min(max((len(labeled) for labeled in labels.values()), default=0), MAX_LABELED)
    table = np.full((len(question_rows), max_labels), -1, dtype=np.int64)
    for at, question in enumerate(question_rows.tolist()):
        label_rows = np.unique(np.array(labels.get(question, []), dtype=np.int64))
        positions = np.searchsorted(rows, label_rows).clip(max=len(rows) - 1)
        positions = positions[rows[positions] == label_rows][:max_labels]
        table[at, : len(positions)] = positions
    return table
