"""Additive codes of an encoder's vectors, taught by what these vectors rank: the encoder stays as it is."""

from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from bidr.data.positives import Positives
from bidr.data.vector_source import Metric, VectorSource
from bidr.models.corpus_encoding import discard_encoded, encode_rows
from bidr.models.encoder import Encoder
from bidr.quantization.additive_quantizer import fit_additive
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.exact_search import search_vectors
from bidr.tokenization.token_store import TokenArray, Tokens
from bidr.training.codes_only.data import (
    LEAST_QUESTIONS,
    TOP,
    HeldOutQuestions,
    PreparedDistillation,
    SourceVectors,
    prepare_distillation,
)
from bidr.training.codes_only.train import SPREAD_DOCUMENTS, estimate_score_spread, forget, learn
from bidr.training.losses.cropped_queries import make_crop_sampler
from bidr.training.losses.distillation import Passages, TeacherVectors
from bidr.training.losses.objectives import CODEBOOKS
from bidr.training.mining import TEACHER
from bidr.training.run import DONE, TrainingRun
from bidr.utils.array_types import Rows
from bidr.utils.files import write_json
from bidr.utils.progress import say

MOST_PASSAGES = 250_000


def learn_additive_codes(run: TrainingRun, encoder: Encoder, stage: str, leader: Encoder | None = None) -> Codebooks:
    """The codes, learned once and kept. Train questions ask, and passages of documents: what an encoder was trained on
    it ranks too well to teach much.

    leader: the encoder whose ranking is learned, where it is not the one whose vectors are coded.
    """
    folder = run.folder / stage
    if not run.is_finished(stage):
        sides = {"vectors.npy": encoder} | ({"leader.npy": leader} if leader else {})
        corpus = [run.encode_corpus(one, folder / name, "encode for the codes") for name, one in sides.items()]
        with run.group.rank_zero_first():
            if not run.is_finished(stage):
                _learn(run, list(zip(sides.values(), corpus, strict=True)), stage)
        for name in sides:
            run.group.run_on_rank_zero(partial(discard_encoded, folder / name))
    return Codebooks.load(folder / CODEBOOKS)


def _learn(run: TrainingRun, sides: list[tuple[Encoder, npt.NDArray[np.float16]]], stage: str) -> None:
    folder = run.folder / stage
    asked, labels = _questions(run, sides[0][0])
    pairs = [_pair(encoder, vectors, asked) for encoder, vectors in sides]
    count = sum(len(tokens.offsets) - 1 for tokens in asked)
    config = replace(run.config, frozen=replace(run.config.frozen, questions=count))
    asked_for = np.unique(run.data.train.pairs.rows)
    prepared = prepare_distillation(pairs[-1], labels, config, own=pairs[0], asked_for=asked_for, device=run.device)
    if len(prepared.lessons.own.documents) == len(sides[0][1]):
        prepared = prepared._replace(probe=_dev(run, sides, prepared))
    say(f"fit {config.books} books of {config.codewords} codewords that are summed")
    own = prepared.lessons.own.documents
    start = fit_additive(own, config.books, config.codewords, seed=config.seed, device=run.device)
    found, history = learn(start, prepared, config, folder, run.device)
    length = np.float32(prepared.length)
    found = found._replace(centre=found.centre * length, document=found.document / length)
    found.to_adapted_codebooks().save(folder / CODEBOOKS)
    best = max(each["kept_by"] for each in history)
    write_json(folder / DONE, {"stage": stage, "best": best, "history": history})
    forget(folder, folder / CODEBOOKS)


def _pair(encoder: Encoder, vectors: npt.NDArray[np.float16], asked: tuple[Tokens, Tokens]) -> SourceVectors:
    metric: Metric = "cosine" if encoder.normalized else "ip"
    questions = np.concatenate([encode_rows(encoder, TokenArray(tokens)) for tokens in asked])
    return SourceVectors(VectorSource(vectors, "the corpus", metric), VectorSource(questions, "questions", metric))


def _questions(run: TrainingRun, encoder: Encoder) -> tuple[tuple[Tokens, Tokens], dict[int, list[int]]]:
    """Train questions and passages, and the labelled answers of the former."""
    random, frozen, train = np.random.default_rng(run.config.seed), run.config.frozen, run.data.train
    rows = np.sort(random.permutation(len(train.pairs))[: frozen.questions])
    count = max(round(frozen.crops * len(rows)), LEAST_QUESTIONS - len(rows), 0)
    passages, _ = draw_passages(run, encoder, count, random)
    labels = {place: train.pairs.get_rows(row).tolist() for place, row in enumerate(rows.tolist())}
    return (train.tokens.get_batch(rows), passages), labels


def draw_passages(run: TrainingRun, encoder: Encoder, count: int, random: np.random.Generator) -> tuple[Tokens, Rows]:
    """So many random passages, as long as train questions, and the documents they are of."""
    crops = make_crop_sampler(encoder, 1.0, run.data.train.tokens.get_lengths())
    drawn = random.integers(len(run.data.documents), size=count)
    return crops.cut(run.data.documents.get_batch(drawn), random), drawn


def make_teacher_vectors(run: TrainingRun, encoder: Encoder) -> TeacherVectors:
    """An encoder's vectors as they are now, for another (or itself, as it changes) to follow."""
    config, train = run.config, run.data.train
    share = config.sparse.crops
    count = min(round(share * config.sparse.epochs * len(train.pairs)) + 1, MOST_PASSAGES)
    tokens, rows = draw_passages(run, encoder, count, np.random.default_rng((config.seed, 2)))
    asked = encode_rows(encoder, TokenArray(tokens), dtype=np.float16)
    passages = Passages(tokens, rows, asked, share)
    documents = run.encode_corpus(
        encoder, run.folder / run.get_stage_name("taught") / TEACHER, "encode what is followed"
    )
    some = np.linspace(0, len(documents) - 1, SPREAD_DOCUMENTS).astype(np.int64)
    width = estimate_score_spread(documents[some].astype(np.float32), asked.astype(np.float32))
    return TeacherVectors(
        encode_rows(encoder, train.tokens), documents, passages, 1 / (config.frozen.temperature * width)
    )


def _dev(
    run: TrainingRun, sides: list[tuple[Encoder, npt.NDArray[np.float16]]], prepared: PreparedDistillation
) -> HeldOutQuestions:
    """The dev questions to choose on, in place of held-out train questions, which the encoder has seen."""
    dev = run.data.dev
    asked, ranked = (encode_rows(encoder, dev.tokens) for encoder in (sides[0][0], sides[-1][0]))
    best = search_vectors(ranked, prepared.lessons.full.documents, TOP, device=run.device).rows
    return HeldOutQuestions(asked, best, _table(dev.pairs))


def _table(pairs: Positives) -> Rows:
    """Every query's positives as a row, -1 where there are fewer."""
    counts = np.diff(pairs.starts)
    table = np.full((len(pairs), int(counts.max())), -1, dtype=np.int64)
    table[np.arange(table.shape[1]) < counts[:, None]] = pairs.rows
    return table
