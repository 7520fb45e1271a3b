"""Additive codes of an encoder's vectors, taught by what these vectors rank: the encoder stays as it is."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from bidr.codes import Codebooks
from bidr.codes.additive import WORDS, fit_additive
from bidr.codes.exact import top_k
from bidr.codes.vectors import VectorRows
from bidr.files import write_json
from bidr.model.encode import discard, encode_rows
from bidr.model.encoder import Encoder
from bidr.negatives.pairs import Pairs, Rows
from bidr.progress import say
from bidr.text.tokens import TokenRows
from bidr.training.frozen.sampled import LEAST_QUESTIONS, TOP, Prepared, Probe, prepare
from bidr.training.frozen.train import learn
from bidr.training.losses.crops import crops_of
from bidr.training.losses.objectives import CODEBOOKS
from bidr.training.workshop import DONE, Workshop

Floats = npt.NDArray[np.float32]


def learn_summed(shop: Workshop, encoder: Encoder, stage: str) -> Codebooks:
    """The codes, learned once and kept. Train questions ask, and as many passages of documents: what an encoder was
    trained on it ranks too well to teach much."""
    folder = shop.folder / stage
    if not shop.finished(stage):
        path = folder / "vectors.npy"
        vectors = shop.encode_corpus(encoder, path, "encode for the codes")
        with shop.group.turn():
            if not shop.finished(stage):
                _learn(shop, encoder, vectors, stage)
        shop.group.once(lambda: discard(path))
    return Codebooks.load(folder / CODEBOOKS)


def _learn(shop: Workshop, encoder: Encoder, vectors: npt.NDArray[np.float16], stage: str) -> None:
    folder, metric = shop.folder / stage, "cosine" if encoder.normalised else "ip"
    asked, labels = _questions(shop, encoder)
    config = replace(shop.config, frozen=replace(shop.config.frozen, questions=len(asked)))
    documents = VectorRows(vectors, "the corpus", metric)  # type: ignore[arg-type]
    prepared = prepare(documents, VectorRows(asked, "questions", metric), labels, config)  # type: ignore[arg-type]
    if len(prepared.lessons.documents) == len(vectors):
        prepared = prepared._replace(probe=_dev(shop, encoder, prepared))
    say(f"fit {config.books} books of {WORDS} codewords that are summed")
    start = fit_additive(prepared.lessons.documents, config.books, seed=config.seed)
    found, history = learn(start, prepared, config, folder)
    length = np.float32(prepared.length)
    found = found._replace(centre=found.centre * length, document=found.document / length)
    found.with_adapter().save(folder / CODEBOOKS)
    best = max(each["kept_by"] for each in history)
    write_json(folder / DONE, {"stage": stage, "best": best, "history": history})


def _questions(shop: Workshop, encoder: Encoder) -> tuple[Floats, dict[int, list[int]]]:
    """Vectors of train questions and of passages, and the labelled answers of the former."""
    random, frozen, train = np.random.default_rng(shop.config.seed), shop.config.frozen, shop.material.train
    rows = np.sort(random.permutation(len(train.pairs))[: frozen.questions])
    vectors = [encode_rows(encoder, train.tokens, rows)]
    crops = crops_of(encoder, frozen.crops, train.tokens.lengths())
    if crops is not None:
        count = max(round(crops.share * len(rows)), LEAST_QUESTIONS - len(rows))
        drawn = random.integers(len(shop.material.documents), size=count)
        passages = crops.cut(shop.material.documents.batch(drawn), random)
        vectors.append(encode_rows(encoder, TokenRows(passages)))
    labels = {place: train.pairs.of(row).tolist() for place, row in enumerate(rows.tolist())}
    return np.concatenate(vectors), labels


def _dev(shop: Workshop, encoder: Encoder, prepared: Prepared) -> Probe:
    """The dev questions to choose on, in place of held-out train questions, which the encoder has seen."""
    dev = shop.material.dev
    asked: Floats = encode_rows(encoder, dev.tokens)
    best = top_k(asked, prepared.lessons.documents, TOP, device=shop.device).rows
    return Probe(asked, best, _table(dev.pairs))


def _table(pairs: Pairs) -> Rows:
    """Every query's positives as a row, -1 where there are fewer."""
    counts = np.diff(pairs.starts)
    table = np.full((len(pairs), int(counts.max())), -1, dtype=np.int64)
    table[np.arange(table.shape[1]) < counts[:, None]] = pairs.rows
    return table
