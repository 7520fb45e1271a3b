"""Scores to learn from: of an encoder's unquantized vectors, or of a cross-encoder that reads query and document."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bidr.data.dataset import compose_text
from bidr.data.positives import Positives
from bidr.errors import DataError, MissingExtraError, ModelError
from bidr.training.data import read_splits
from bidr.training.losses.infonce import Contrast, TeacherScores
from bidr.training.negatives.false_negatives import JudgeScores
from bidr.training.negatives.samplers import Batch
from bidr.training.run import TrainingRun
from bidr.utils.array_types import Rows
from bidr.utils.progress import say, show_progress

PAIRS_AT_ONCE, PAIRS_A_PASS = 16_384, 256
Floats = npt.NDArray[np.floating[Any]]


class Teacher(Protocol):
    """Says how a batch's documents should be ranked."""

    def __call__(self, batch: Batch, compared: Contrast) -> TeacherScores: ...


class VectorTeacher(NamedTuple):
    """Ranks all documents of a batch by inner product."""

    queries: Floats
    documents: Floats
    scale: float

    def __call__(self, batch: Batch, compared: Contrast) -> TeacherScores:
        documents = np.asarray(self.documents[compared.documents], dtype=np.float32)
        return TeacherScores(
            None, self.scale * (np.asarray(self.queries[batch.queries], dtype=np.float32) @ documents.T)
        )


class PairTeacher(NamedTuple):
    """Ranks a query's positive and its own negatives, by scores that were computed before."""

    pool: Rows
    judged: JudgeScores
    pairs: Positives
    scale: float

    def __call__(self, batch: Batch, compared: Contrast) -> TeacherScores:
        targets = compared.targets[: len(batch.queries), None]  # documents that ask for themselves come behind
        places = np.concatenate([targets, compared.own], axis=1)
        negatives = compared.documents[compared.own]
        same = self.pool[batch.queries][:, None, :] == negatives[:, :, None]
        columns = same.argmax(axis=2)
        known = np.take_along_axis(self.judged.found[batch.queries], columns, axis=1)
        known = np.where(same.any(axis=2), known, np.nan)
        return TeacherScores(places, self.scale * np.concatenate([self._positives(batch)[:, None], known], axis=1))

    def _positives(self, batch: Batch) -> Floats:
        places, rows = self.pairs.list_edges(batch.queries)
        mine = np.flatnonzero(rows == batch.positives[places])
        first = mine[np.unique(places[mine], return_index=True)[1]]
        starts = self.pairs.starts[batch.queries]
        counts = self.pairs.starts[batch.queries + 1] - starts
        within = first - (np.cumsum(counts) - counts)
        scores: Floats = self.judged.positives[starts + within]
        return scores


def score_teacher_pool(run: TrainingRun, mined: Rows, name: str) -> tuple[Rows, JudgeScores]:
    """The documents of each train query that the teacher scored, and the scores; computed once and kept.

    A cross-encoder scores the query's positives and its best mined documents; a file has its own documents.
    """
    teacher = run.config.distil.teacher or ""
    if Path(teacher).is_file():
        return _from_file(run, Path(teacher))
    pool = np.asarray(mined[:, : run.config.distil.depth], dtype=np.int64)
    pairs = run.data.train.pairs

    def make() -> npt.NDArray[Any]:
        queries = np.concatenate(
            [np.repeat(np.arange(len(pool)), pool.shape[1]), pairs.list_edges(np.arange(len(pairs)))[0]]
        )
        rows = np.concatenate([pool.ravel(), pairs.rows])
        scores = np.full(len(rows), np.nan, dtype=np.float32)
        real = np.flatnonzero(rows >= 0)
        scores[real] = _score_with_cross_encoder(run, teacher, queries[real], rows[real])
        return scores

    scores = np.asarray(run.cache_array(f"{name}-taught", make))
    return pool, JudgeScores(scores[: pool.size].reshape(pool.shape), scores[pool.size :])


def _score_with_cross_encoder(run: TrainingRun, teacher: str, queries: Rows, rows: Rows) -> npt.NDArray[np.float32]:
    try:
        from sentence_transformers import CrossEncoder
        from torch import nn
    except ImportError as error:
        raise MissingExtraError("a cross-encoder as teacher", "sentence-transformers", "transformers") from error
    try:
        model = CrossEncoder(teacher, device=run.device, num_labels=1)
    except Exception as error:  # whatever transformers raises for a folder that is none
        raise ModelError(f"distil.teacher: {teacher} is no cross-encoder that can be read ({error})") from error
    text = run.config.text
    # It reads as much of a text as its pupils do.
    model.max_seq_length = min(model.max_seq_length or 512, text.query_length + text.document_length)
    if run.device.startswith("cuda"):
        model.half()
    wanted, titles = set(rows.tolist()), text.titles
    texts = {row: compose_text(one, titles) for row, one in enumerate(run.dataset.corpus) if row in wanted}
    say(f"the teacher scores {len(rows):,} pairs of query and document, once")
    scores = np.empty(len(rows), dtype=np.float32)
    with show_progress("teacher", len(rows), "pairs") as advance:
        for start in range(0, len(rows), PAIRS_AT_ONCE):
            part = slice(start, start + PAIRS_AT_ONCE)
            pairs = [
                (run.data.train.texts[query], texts[row])
                for query, row in zip(queries[part].tolist(), rows[part].tolist(), strict=True)
            ]
            scores[part] = model.predict(
                pairs, activation_fn=nn.Identity(), batch_size=PAIRS_A_PASS, show_progress_bar=False
            )
            advance(len(pairs))
    return scores


def _from_file(run: TrainingRun, path: Path) -> tuple[Rows, JudgeScores]:
    """Scores by query and document id; the documents that are no positives are the pool, as many as the depth."""
    config, pairs = run.config, run.data.train.pairs
    splits = read_splits(run.dataset, config.dev_queries, config.seed)
    numbers = {query.id: number for number, query in enumerate(splits.train.queries)}
    lines = [line for line in _lines(path) if line[0] in numbers]
    rows = splits.ids.find_rows([document for _, document, _ in lines]).tolist() if lines else []
    pool = np.full((len(pairs), config.distil.depth), -1, dtype=np.int64)
    found = np.full(pool.shape, np.nan, dtype=np.float32)
    positives, filled = np.full(len(pairs.rows), np.nan, dtype=np.float32), np.zeros(len(pairs), dtype=np.int64)
    for (query, _, score), row in zip(lines, rows, strict=True):
        number = numbers[query]
        own = np.flatnonzero(pairs.get_rows(number) == row)
        if len(own):
            positives[pairs.starts[number] + own] = score
        elif filled[number] < pool.shape[1]:
            pool[number, filled[number]], found[number, filled[number]] = row, score
            filled[number] += 1
    if not filled.any():
        raise DataError(
            f"{path}: no score of a train query's document that is no positive; expected query ids as in the data"
        )
    return pool, JudgeScores(found, positives)


def _lines(path: Path) -> Iterator[tuple[str, str, float]]:
    with path.open(encoding="utf-8", newline="") as file:
        for number, cells in enumerate(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE), start=1):
            try:
                query, document, score = cells
                yield query, document, float(score)
            except ValueError as error:
                if number == 1:
                    continue  # a heading
                raise DataError(
                    f"{path}, line {number}: given {cells}, expected query id, document id and score with tabs between"
                ) from error
