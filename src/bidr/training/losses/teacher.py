"""Teachers: scores of an encoder's unquantized vectors, or of a cross-encoder."""

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
from bidr.training.run_context import TrainingRun
from bidr.utils.array_types import Rows
from bidr.utils.progress import say, show_progress

PAIRS_PER_BLOCK, BATCH_SIZE = 16_384, 256
Floats = npt.NDArray[np.floating[Any]]


class Teacher(Protocol):
    """Scores the documents of a batch."""

    def __call__(self, batch: Batch, contrast: Contrast) -> TeacherScores: ...


class VectorTeacher(NamedTuple):
    """Scores all documents of a batch by inner product."""

    queries: Floats
    documents: Floats
    scale: float

    def __call__(self, batch: Batch, contrast: Contrast) -> TeacherScores:
        documents = np.asarray(self.documents[contrast.documents], dtype=np.float32)
        return TeacherScores(
            None, self.scale * (np.asarray(self.queries[batch.queries], dtype=np.float32) @ documents.T)
        )


class PairTeacher(NamedTuple):
    """Looks up precomputed scores of a query's positive and its hard negatives."""

    pool: Rows
    scores: JudgeScores
    pairs: Positives
    scale: float

    def __call__(self, batch: Batch, contrast: Contrast) -> TeacherScores:
        targets = contrast.targets[: len(batch.queries), None]  # cropped queries come after the batch's
        positions = np.concatenate([targets, contrast.hard_negatives], axis=1)
        negatives = contrast.documents[contrast.hard_negatives]
        same = self.pool[batch.queries][:, None, :] == negatives[:, :, None]
        columns = same.argmax(axis=2)
        negative_scores = np.take_along_axis(self.scores.mined[batch.queries], columns, axis=1)
        negative_scores = np.where(same.any(axis=2), negative_scores, np.nan)
        return TeacherScores(
            positions, self.scale * np.concatenate([self._get_positive_scores(batch)[:, None], negative_scores], axis=1)
        )

    def _get_positive_scores(self, batch: Batch) -> Floats:
        queries, rows = self.pairs.list_edges(batch.queries)
        matches = np.flatnonzero(rows == batch.positives[queries])
        first = matches[np.unique(queries[matches], return_index=True)[1]]
        starts = self.pairs.starts[batch.queries]
        counts = self.pairs.starts[batch.queries + 1] - starts
        within = first - (np.cumsum(counts) - counts)
        scores: Floats = self.scores.positives[starts + within]
        return scores


def score_teacher_pool(run: TrainingRun, mined: Rows, name: str) -> tuple[Rows, JudgeScores]:
    """Score documents of each train query with the teacher; cached.

    Returns the scored documents and their scores.

    A cross-encoder scores the query's positives and its best mined documents; a file has its own documents.
    """
    teacher = run.config.distil.teacher or ""
    if Path(teacher).is_file():
        return _read_scores_file(run, Path(teacher))
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
    except Exception as error:  # transformers raises various errors for an invalid folder
        raise ModelError(f"distil.teacher: cannot load cross-encoder {teacher} ({error})") from error
    text = run.config.text
    # The teacher reads as much of a text as the students.
    model.max_seq_length = min(model.max_seq_length or 512, text.query_length + text.document_length)
    if run.device.startswith("cuda"):
        model.half()
    row_set, titles = set(rows.tolist()), text.titles
    texts = {row: compose_text(document, titles) for row, document in enumerate(run.dataset.corpus) if row in row_set}
    say(f"scoring {len(rows):,} pairs of query and document with the teacher")
    scores = np.empty(len(rows), dtype=np.float32)
    with show_progress("teacher", len(rows), "pairs") as advance:
        for start in range(0, len(rows), PAIRS_PER_BLOCK):
            part = slice(start, start + PAIRS_PER_BLOCK)
            pairs = [
                (run.data.train.texts[query], texts[row])
                for query, row in zip(queries[part].tolist(), rows[part].tolist(), strict=True)
            ]
            scores[part] = model.predict(
                pairs, activation_fn=nn.Identity(), batch_size=BATCH_SIZE, show_progress_bar=False
            )
            advance(len(pairs))
    return scores


def _read_scores_file(run: TrainingRun, path: Path) -> tuple[Rows, JudgeScores]:
    """Read scores by query and document id; up to `depth` documents that are not positives form the pool."""
    config, pairs = run.config, run.data.train.pairs
    splits = read_splits(run.dataset, config.dev_queries, config.seed, config.min_dev_queries)
    numbers = {query.id: number for number, query in enumerate(splits.train.queries)}
    lines = [line for line in _read_score_lines(path) if line[0] in numbers]
    rows = splits.ids.find_rows([document for _, document, _ in lines]).tolist() if lines else []
    pool = np.full((len(pairs), config.distil.depth), -1, dtype=np.int64)
    negative_scores = np.full(pool.shape, np.nan, dtype=np.float32)
    positives, filled = np.full(len(pairs.rows), np.nan, dtype=np.float32), np.zeros(len(pairs), dtype=np.int64)
    for (query, _, score), row in zip(lines, rows, strict=True):
        number = numbers[query]
        positive_columns = np.flatnonzero(pairs.get_rows(number) == row)
        if len(positive_columns):
            positives[pairs.starts[number] + positive_columns] = score
        elif filled[number] < pool.shape[1]:
            pool[number, filled[number]], negative_scores[number, filled[number]] = row, score
            filled[number] += 1
    if not filled.any():
        raise DataError(
            f"{path}: no score of a document that is not a positive of a train query; expected query ids as in the data"
        )
    return pool, JudgeScores(negative_scores, positives)


def _read_score_lines(path: Path) -> Iterator[tuple[str, str, float]]:
    with path.open(encoding="utf-8", newline="") as file:
        for number, cells in enumerate(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE), start=1):
            try:
                query, document, score = cells
                yield query, document, float(score)
            except ValueError as error:
                if number == 1:
                    continue  # a header
                raise DataError(
                    f"{path}, line {number}: given {cells}, expected query id, document id and score separated by tabs"
                ) from error
