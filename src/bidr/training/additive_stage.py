"""Additive codes of an encoder's vectors, taught by what these vectors rank: the encoder stays as it is."""

from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from bidr.data.positives import Positives
from bidr.data.vector_source import Metric, VectorSource
from bidr.models.corpus_encoding import discard, encode_rows
from bidr.models.encoder import Encoder
from bidr.quantization import Codebooks
from bidr.quantization.additive_quantizer import fit_additive
from bidr.quantization.exact_search import top_k
from bidr.tokenization.token_store import TokenArray, Tokens
from bidr.training.codes_only.data import LEAST_QUESTIONS, TOP, Pair, Prepared, Probe, prepare
from bidr.training.codes_only.train import SPREAD_DOCUMENTS, forget, learn, spread
from bidr.training.losses.cropped_queries import as_questions
from bidr.training.losses.distillation import Leader, Passages
from bidr.training.losses.objectives import CODEBOOKS
from bidr.training.mining import TEACHER
from bidr.training.run import DONE, Workshop
from bidr.utils.array_types import Rows
from bidr.utils.files import write_json
from bidr.utils.progress import say

MOST_PASSAGES = 250_000


def learn_summed(shop: Workshop, encoder: Encoder, stage: str, leader: Encoder | None = None) -> Codebooks:
    """The codes, learned once and kept. Train questions ask, and passages of documents: what an encoder was trained on
    it ranks too well to teach much.

    leader: the encoder whose ranking is learned, where it is not the one whose vectors are coded.
    """
    folder = shop.folder / stage
    if not shop.finished(stage):
        sides = {"vectors.npy": encoder} | ({"leader.npy": leader} if leader else {})
        corpus = [shop.encode_corpus(one, folder / name, "encode for the codes") for name, one in sides.items()]
        with shop.group.turn():
            if not shop.finished(stage):
                _learn(shop, list(zip(sides.values(), corpus, strict=True)), stage)
        for name in sides:
            shop.group.once(partial(discard, folder / name))
    return Codebooks.load(folder / CODEBOOKS)


def _learn(shop: Workshop, sides: list[tuple[Encoder, npt.NDArray[np.float16]]], stage: str) -> None:
    folder = shop.folder / stage
    asked, labels = _questions(shop, sides[0][0])
    pairs = [_pair(encoder, vectors, asked) for encoder, vectors in sides]
    count = sum(len(tokens.offsets) - 1 for tokens in asked)
    config = replace(shop.config, frozen=replace(shop.config.frozen, questions=count))
    asked_for = np.unique(shop.material.train.pairs.rows)
    prepared = prepare(pairs[-1], labels, config, own=pairs[0], asked_for=asked_for, device=shop.device)
    if len(prepared.lessons.own.documents) == len(sides[0][1]):
        prepared = prepared._replace(probe=_dev(shop, sides, prepared))
    say(f"fit {config.books} books of {config.codewords} codewords that are summed")
    own = prepared.lessons.own.documents
    start = fit_additive(own, config.books, config.codewords, seed=config.seed, device=shop.device)
    found, history = learn(start, prepared, config, folder, shop.device)
    length = np.float32(prepared.length)
    found = found._replace(centre=found.centre * length, document=found.document / length)
    found.with_adapter().save(folder / CODEBOOKS)
    best = max(each["kept_by"] for each in history)
    write_json(folder / DONE, {"stage": stage, "best": best, "history": history})
    forget(folder, folder / CODEBOOKS)


def _pair(encoder: Encoder, vectors: npt.NDArray[np.float16], asked: tuple[Tokens, Tokens]) -> Pair:
    metric: Metric = "cosine" if encoder.normalised else "ip"
    questions = np.concatenate([encode_rows(encoder, TokenArray(tokens)) for tokens in asked])
    return Pair(VectorSource(vectors, "the corpus", metric), VectorSource(questions, "questions", metric))


def _questions(shop: Workshop, encoder: Encoder) -> tuple[tuple[Tokens, Tokens], dict[int, list[int]]]:
    """Train questions and passages, and the labelled answers of the former."""
    random, frozen, train = np.random.default_rng(shop.config.seed), shop.config.frozen, shop.material.train
    rows = np.sort(random.permutation(len(train.pairs))[: frozen.questions])
    count = max(round(frozen.crops * len(rows)), LEAST_QUESTIONS - len(rows), 0)
    passages, _ = draw_passages(shop, encoder, count, random)
    labels = {place: train.pairs.get_rows(row).tolist() for place, row in enumerate(rows.tolist())}
    return (train.tokens.get_batch(rows), passages), labels


def draw_passages(shop: Workshop, encoder: Encoder, count: int, random: np.random.Generator) -> tuple[Tokens, Rows]:
    """So many random passages, as long as train questions, and the documents they are of."""
    crops = as_questions(encoder, 1.0, shop.material.train.tokens.get_lengths())
    drawn = random.integers(len(shop.material.documents), size=count)
    return crops.cut(shop.material.documents.get_batch(drawn), random), drawn


def leader_of(shop: Workshop, encoder: Encoder) -> Leader:
    """An encoder's vectors as they are now, for another (or itself, as it changes) to follow."""
    config, train = shop.config, shop.material.train
    share = config.sparse.crops
    count = min(round(share * config.sparse.epochs * len(train.pairs)) + 1, MOST_PASSAGES)
    tokens, rows = draw_passages(shop, encoder, count, np.random.default_rng((config.seed, 2)))
    asked = encode_rows(encoder, TokenArray(tokens), dtype=np.float16)
    passages = Passages(tokens, rows, asked, share)
    documents = shop.encode_corpus(encoder, shop.folder / shop.name("taught") / TEACHER, "encode what is followed")
    some = np.linspace(0, len(documents) - 1, SPREAD_DOCUMENTS).astype(np.int64)
    width = spread(documents[some].astype(np.float32), asked.astype(np.float32))
    return Leader(encode_rows(encoder, train.tokens), documents, passages, 1 / (config.frozen.temperature * width))


def _dev(shop: Workshop, sides: list[tuple[Encoder, npt.NDArray[np.float16]]], prepared: Prepared) -> Probe:
    """The dev questions to choose on, in place of held-out train questions, which the encoder has seen."""
    dev = shop.material.dev
    asked, ranked = (encode_rows(encoder, dev.tokens) for encoder in (sides[0][0], sides[-1][0]))
    best = top_k(ranked, prepared.lessons.full.documents, TOP, device=shop.device).rows
    return Probe(asked, best, _table(dev.pairs))


def _table(pairs: Positives) -> Rows:
    """Every query's positives as a row, -1 where there are fewer."""
    counts = np.diff(pairs.starts)
    table = np.full((len(pairs), int(counts.max())), -1, dtype=np.int64)
    table[np.arange(table.shape[1]) < counts[:, None]] = pairs.rows
    return table
