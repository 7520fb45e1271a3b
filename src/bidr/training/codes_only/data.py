"""What codes for given vectors are learned from: a sample of documents, questions, and what full vectors rank first."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.data.vector_source import VectorSource
from bidr.quantization.exact_search import search_vectors
from bidr.training.codes_only.distillation import DistillationData, EncodedVectors
from bidr.training.codes_only.pseudo_queries import make_pseudo_queries
from bidr.training.config import TrainConfig
from bidr.utils.array_types import Floats, Rows
from bidr.utils.progress import say

TOP = 10
# Of very wide vectors fewer documents are learned from: the sample stays within 1 GiB.
SAMPLE_NUMBERS = 1 << 28
MOST_LABELLED = 16
# Documents stand in for what questions are missing: some hundred questions alone teach less than none.
LEAST_QUESTIONS = 5_000
Labels = dict[int, list[int]]


class SourceVectors(NamedTuple):
    """Documents and questions of one encoder, before any are drawn."""

    documents: VectorSource
    questions: VectorSource | None


class HeldOutQuestions(NamedTuple):
    """Questions held out to choose on, what full vectors rank first for them, and their labelled rows."""

    questions: Floats
    best: Rows
    labelled: Rows


class PreparedDistillation(NamedTuple):
    """What is learned from and chosen on, in units in which vectors have length 1 on average."""

    lessons: DistillationData
    probe: HeldOutQuestions
    length: float
    """Of a document on average, before."""


def prepare_distillation(
    full: SourceVectors,
    labels: Labels,
    config: TrainConfig,
    own: SourceVectors | None = None,
    asked_for: Rows | None = None,
    device: str = "cpu",
) -> PreparedDistillation:
    """Sample what is too much, rank the sample by full vectors, hold some questions out.

    own:       the vectors that codes are made of, where they are not those whose ranking is learned.
    asked_for: documents that have a labelled question, where these are more than `labels` says.
    """
    frozen, random, own = config.frozen, np.random.default_rng(config.seed), own or full
    documents, questions = full
    most = max(config.codewords, min(frozen.sample, SAMPLE_NUMBERS // documents.dim))
    rows = _sample_rows(documents, labels, most, random)
    asked = np.sort(random.permutation(len(questions))[: frozen.questions]) if questions else np.empty(0, np.int64)
    stand_ins = _stand_ins(len(rows), frozen.questions if questions is None else LEAST_QUESTIONS - len(asked), config)
    ranked, length = _drawn(full, rows, asked, stand_ins)
    coded, length = (ranked, length) if own is full else _drawn(own, rows, asked, stand_ins)
    say(f"ranking {len(rows):,} documents by full vectors for {len(ranked.questions):,} questions")
    best = search_vectors(ranked.questions, ranked.documents, frozen.depth + 1, device=device).rows
    best = _without_self(best, np.concatenate([np.full(len(asked), -1), stand_ins]))
    labelled = _labelled(asked, rows, labels if questions else {})
    labelled = np.concatenate([labelled, np.full((len(stand_ins), labelled.shape[1]), -1)])
    # Of a handful of questions none can be spared: then stand-ins are held out.
    spared = np.arange(len(asked)) if len(asked) >= 10 else np.arange(len(asked), len(best))
    held = spared[random.permutation(len(spared))[: min(frozen.dev_questions, len(spared) // 10)]]
    probe = HeldOutQuestions(coded.questions[held], best[held, :TOP], labelled[held])
    learned = np.setdiff1d(np.arange(len(best)), held)
    drawn = [side._replace(questions=side.questions[learned]) for side in (ranked, coded)]
    lessons = DistillationData(drawn[0], drawn[1], best[learned], labelled[learned])
    if asked_for is None:
        asked_for = np.array([row for found in labels.values() for row in found], dtype=np.int64)
    return PreparedDistillation(_with_borrowed(lessons, np.isin(rows, asked_for), config, device), probe, length)


def _with_borrowed(
    lessons: DistillationData, asked_for: npt.NDArray[np.bool_], config: TrainConfig, device: str
) -> DistillationData:
    """And with questions for documents that nobody asked for."""
    frozen, labelled = config.frozen, lessons.labelled
    count = round(frozen.borrowed * np.count_nonzero((labelled >= 0).any(axis=1)))
    if not count:
        return lessons
    borrowers = np.arange(len(asked_for)) if frozen.borrowers == "all" else np.flatnonzero(~asked_for)
    random = np.random.default_rng((config.seed, 3))
    made = make_pseudo_queries(lessons.full, labelled, borrowers, count, random, device)
    full, own = (side._replace(questions=np.concatenate([side.questions, made.vectors(side)])) for side in lessons[:2])
    best = search_vectors(full.questions[len(labelled) :], full.documents, frozen.depth, device=device).rows
    none = np.full((count, labelled.shape[1]), -1)
    return DistillationData(full, own, np.concatenate([lessons.best, best]), np.concatenate([labelled, none]))


def _drawn(pair: SourceVectors, rows: Rows, asked: Rows, stand_ins: Rows) -> tuple[EncodedVectors, float]:
    """What was drawn, in units in which vectors have length 1 on average; a document's length before."""
    sample = pair.documents[rows]
    length = _mean_length(sample)
    sample /= length
    if pair.questions is None:
        return EncodedVectors(sample, sample[stand_ins]), length
    questions = pair.questions[asked]
    questions /= _mean_length(questions)
    return EncodedVectors(sample, np.concatenate([questions, sample[stand_ins]])), length


def _mean_length(vectors: Floats) -> float:
    return float(np.linalg.norm(vectors, axis=1).mean()) or 1.0


def _sample_rows(documents: VectorSource, labels: Labels, most: int, random: np.random.Generator) -> Rows:
    """All rows, or of many a random part with every labelled one in it."""
    if len(documents) <= most:
        return np.arange(len(documents))
    needed = np.unique(np.array([row for found in labels.values() for row in found], dtype=np.int64))[:most]
    drawn = random.choice(len(documents), most, replace=False)
    others = drawn[~np.isin(drawn, needed)][: most - len(needed)]
    return np.sort(np.concatenate([needed, others]))


def _stand_ins(documents: int, wanted: int, config: TrainConfig) -> Rows:
    """Documents of the sample that are asked for as if they were questions."""
    random = np.random.default_rng((config.seed, 1))
    return np.sort(random.permutation(documents)[: max(wanted, 0)])


def _without_self(best: Rows, asked: Rows) -> Rows:
    """A document that stands in for a question finds itself: what it must tell apart are the others."""
    order = np.argsort(best == asked[:, None], axis=1, kind="stable")[:, :-1]
    return np.take_along_axis(best, order, axis=1)


def _labelled(asked: Rows, rows: Rows, labels: Labels) -> Rows:
    """Labelled documents of each question as rows of the sample, -1 where there are fewer."""
    most = min(max((len(found) for found in labels.values()), default=0), MOST_LABELLED)
    table = np.full((len(asked), most), -1, dtype=np.int64)
    for at, question in enumerate(asked.tolist()):
        wanted = np.unique(np.array(labels.get(question, []), dtype=np.int64))
        places = np.searchsorted(rows, wanted).clip(max=len(rows) - 1)
        places = places[rows[places] == wanted][:most]
        table[at, : len(places)] = places
    return table
