"""What codes for given vectors are learned from: a sample of documents, questions, and what full vectors rank first."""

from typing import NamedTuple

import numpy as np

from bidr.codes.additive import WORDS
from bidr.codes.codebooks import Floats
from bidr.codes.exact import top_k
from bidr.codes.vectors import VectorRows
from bidr.progress import say
from bidr.training.config import TrainConfig
from bidr.training.frozen.distil import Lessons, Rows

TOP = 10
# Of very wide vectors fewer documents are learned from: the sample stays within 1 GiB.
SAMPLE_NUMBERS = 1 << 28
MOST_LABELLED = 16
# Documents stand in for what questions are missing: some hundred questions alone teach less than none.
LEAST_QUESTIONS = 5_000
Labels = dict[int, list[int]]


class Probe(NamedTuple):
    """Questions held out to choose on, what their full vectors rank first, and their labelled rows."""

    questions: Floats
    best: Rows
    labelled: Rows


class Prepared(NamedTuple):
    """What is learned from and chosen on, in units in which vectors have length 1 on average."""

    lessons: Lessons
    probe: Probe
    length: float
    """Of a document on average, before."""


def prepare(documents: VectorRows, questions: VectorRows | None, labels: Labels, config: TrainConfig) -> Prepared:
    """Sample what is too much, rank the sample by full vectors, hold some questions out."""
    frozen, random = config.frozen, np.random.default_rng(config.seed)
    most = max(WORDS, min(frozen.sample, SAMPLE_NUMBERS // documents.dim))
    rows = _sample_rows(documents, labels, most, random)
    sample = documents[rows]
    length = _mean_length(sample)
    sample /= length
    asked = np.sort(random.permutation(len(questions))[: frozen.questions]) if questions else np.empty(0, np.int64)
    stand_ins = _stand_ins(len(sample), frozen.questions if questions is None else LEAST_QUESTIONS - len(asked), config)
    vectors = sample[stand_ins]
    if questions is not None:
        own = questions[asked]
        own /= _mean_length(own)
        vectors = np.concatenate([own, vectors])
    say(f"ranking {len(sample):,} documents by full vectors for {len(vectors):,} questions")
    best = _without_self(
        top_k(vectors, sample, frozen.depth + 1).rows, np.concatenate([np.full(len(asked), -1), stand_ins])
    )
    labelled = _labelled(asked, rows, labels if questions else {})
    labelled = np.concatenate([labelled, np.full((len(stand_ins), labelled.shape[1]), -1)])
    # Of a handful of questions none can be spared: then stand-ins are held out.
    spared = np.arange(len(asked)) if len(asked) >= 10 else np.arange(len(asked), len(vectors))
    held = spared[random.permutation(len(spared))[: min(frozen.dev_questions, len(spared) // 10)]]
    learned = np.setdiff1d(np.arange(len(vectors)), held)
    return Prepared(
        Lessons(sample, vectors[learned], best[learned], labelled[learned]),
        Probe(vectors[held], best[held, :TOP], labelled[held]),
        length,
    )


def _mean_length(vectors: Floats) -> float:
    return float(np.linalg.norm(vectors, axis=1).mean()) or 1.0


def _sample_rows(documents: VectorRows, labels: Labels, most: int, random: np.random.Generator) -> Rows:
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
