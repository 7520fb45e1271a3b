"""Additive codes distilled from the ranking by an encoder's full vectors; the encoder is fixed."""

from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from bidr.data.positives import Positives
from bidr.data.vector_source import Metric, VectorSource
from bidr.models.corpus_encoding import discard_encoded, encode_rows
from bidr.models.trainable_encoder import Encoder
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.exact_search import search_vectors
from bidr.tokenization.token_store import TokenArray, Tokens
from bidr.training.codes_only.data import (
    MIN_QUESTIONS,
    TOP,
    HeldOutQuestions,
    PreparedDistillation,
    SourceVectors,
    prepare_distillation,
)
from bidr.training.codes_only.train import SPREAD_DOCUMENTS, estimate_score_spread, forget, learn
from bidr.training.cropped_queries import make_crop_sampler
from bidr.training.losses.distillation import Passages, TeacherVectors
from bidr.training.losses.objectives import CODEBOOKS
from bidr.training.mining import TEACHER_FILE
from bidr.training.run_context import DONE, TrainingRun
from bidr.utils.array_types import Rows
from bidr.utils.files import write_json

MAX_PASSAGES = 250_000


def learn_additive_codes(run: TrainingRun, encoder: Encoder, stage: str, teacher: Encoder | None = None) -> Codebooks:
    """Learn additive codes of the corpus, or load those of a finished stage.

    Train queries alone teach little, since the encoder was trained to rank them; passages of documents are used too.

    Args:
        encoder: Encoder whose vectors are coded.
        teacher: Encoder whose ranking is learned; None: `encoder`.
    """
    folder = run.folder / stage
    if not run.is_finished(stage):
        sides = {"vectors.npy": encoder} | ({"leader.npy": teacher} if teacher else {})
        corpus = [
            run.encode_corpus(side_encoder, folder / name, "encode for the codes")
            for name, side_encoder in sides.items()
        ]
        with run.group.rank_zero_first():
            if not run.is_finished(stage):
                _learn(run, list(zip(sides.values(), corpus, strict=True)), stage)
        for name in sides:
            run.group.run_on_rank_zero(partial(discard_encoded, folder / name))
    return Codebooks.load(folder / CODEBOOKS)


def _learn(run: TrainingRun, sides: list[tuple[Encoder, npt.NDArray[np.float16]]], stage: str) -> None:
    folder = run.folder / stage
    texts, labels = _draw_queries(run, sides[0][0])
    pairs = [_encode_sources(encoder, vectors, texts) for encoder, vectors in sides]
    query_count = sum(len(tokens.offsets) - 1 for tokens in texts)
    config = replace(run.config, frozen=replace(run.config.frozen, questions=query_count))
    asked_for = np.unique(run.data.train.pairs.rows)
    prepared = prepare_distillation(pairs[-1], labels, config, encoded=pairs[0], asked_for=asked_for, device=run.device)
    if len(prepared.lessons.own.documents) == len(sides[0][1]):
        prepared = prepared._replace(probe=_use_dev_queries(run, sides, prepared))
    additive, history = learn(prepared, config, folder, run.device)
    length = np.float32(prepared.length)
    additive = additive._replace(centre=additive.centre * length, document=additive.document / length)
    additive.to_adapted_codebooks().save(folder / CODEBOOKS)
    best = max(entry["kept_by"] for entry in history)
    write_json(folder / DONE, {"stage": stage, "best": best, "history": history})
    forget(folder, folder / CODEBOOKS)


def _encode_sources(encoder: Encoder, vectors: npt.NDArray[np.float16], texts: tuple[Tokens, Tokens]) -> SourceVectors:
    metric: Metric = "cosine" if encoder.normalized else "ip"
    questions = np.concatenate([encode_rows(encoder, TokenArray(tokens)) for tokens in texts])
    return SourceVectors(VectorSource(vectors, "the corpus", metric), VectorSource(questions, "questions", metric))


def _draw_queries(run: TrainingRun, encoder: Encoder) -> tuple[tuple[Tokens, Tokens], dict[int, list[int]]]:
    """Draw train queries and passages, and the positives of the queries."""
    random, frozen, train = np.random.default_rng(run.config.seed), run.config.frozen, run.data.train
    rows = np.sort(random.permutation(len(train.pairs))[: frozen.questions])
    count = max(round(frozen.crops * len(rows)), MIN_QUESTIONS - len(rows), 0)
    passages, _ = draw_passages(run, encoder, count, random)
    labels = {position: train.pairs.get_rows(row).tolist() for position, row in enumerate(rows.tolist())}
    return (train.tokens.get_batch(rows), passages), labels


def draw_passages(run: TrainingRun, encoder: Encoder, count: int, random: np.random.Generator) -> tuple[Tokens, Rows]:
    """Draw random passages as long as train queries, and the rows of their documents."""
    crops = make_crop_sampler(encoder, 1.0, run.data.train.tokens.get_lengths())
    drawn = random.integers(len(run.data.documents), size=count)
    return crops.cut(run.data.documents.get_batch(drawn), random), drawn


def make_teacher_vectors(run: TrainingRun, encoder: Encoder) -> TeacherVectors:
    """Encode the corpus, train queries and passages as the teacher of an encoder."""
    config, train = run.config, run.data.train
    share = config.sparse.crops
    count = min(round(share * config.sparse.epochs * len(train.pairs)) + 1, MAX_PASSAGES)
    tokens, rows = draw_passages(run, encoder, count, np.random.default_rng((config.seed, 2)))
    passage_vectors = encode_rows(encoder, TokenArray(tokens), dtype=np.float16)
    passages = Passages(tokens, rows, passage_vectors, share)
    documents = run.encode_corpus(
        encoder, run.folder / run.get_stage_name("taught") / TEACHER_FILE, "encode for the teacher"
    )
    sampled_rows = np.linspace(0, len(documents) - 1, SPREAD_DOCUMENTS).astype(np.int64)
    score_spread = estimate_score_spread(documents[sampled_rows].astype(np.float32), passage_vectors.astype(np.float32))
    return TeacherVectors(
        encode_rows(encoder, train.tokens), documents, passages, 1 / (config.frozen.temperature * score_spread)
    )


def _use_dev_queries(
    run: TrainingRun, sides: list[tuple[Encoder, npt.NDArray[np.float16]]], prepared: PreparedDistillation
) -> HeldOutQuestions:
    """Use dev queries for validation in place of held-out train queries, which the encoder has seen."""
    dev = run.data.dev
    student_queries, teacher_queries = (encode_rows(encoder, dev.tokens) for encoder in (sides[0][0], sides[-1][0]))
    top_rows = search_vectors(teacher_queries, prepared.lessons.full.documents, TOP, device=run.device).rows
    return HeldOutQuestions(student_queries, top_rows, _pad_positives(dev.pairs))


def _pad_positives(pairs: Positives) -> Rows:
    """Make a table of each query's positives, padded with -1."""
    counts = np.diff(pairs.starts)
    table = np.full((len(pairs), int(counts.max())), -1, dtype=np.int64)
    table[np.arange(table.shape[1]) < counts[:, None]] = pairs.rows
    return table
