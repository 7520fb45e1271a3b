"""What a run learns from: the tokenised corpus, and the judged questions of train and dev as rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bidr.data.dataset import Dataset, Split, Titles, check, check_split
from bidr.data.id_map import IdMap
from bidr.data.positives import Positives, build_positives
from bidr.data.types import Query
from bidr.errors import ConfigError
from bidr.models.corpus_tokens import tokenize_corpus
from bidr.models.encoder import Encoder
from bidr.tokenization.token_store import TokenArray, TokenStore
from bidr.tokenization.tokenizer import tokenize_texts
from bidr.utils.progress import say

DEV_SHARE, DEV_MOST = 0.05, 1_000


class Questions(NamedTuple):
    """Judged questions and their positives."""

    texts: list[str]
    tokens: TokenArray
    pairs: Positives
    ids: Sequence[str] = ()


class TrainingData(NamedTuple):
    """Everything that the stages share."""

    documents: TokenStore
    train: Questions
    dev: Questions


class Splits(NamedTuple):
    """Queries to learn from and to choose on, and the ids of the corpus."""

    ids: IdMap
    train: Split
    dev: Split


def read_splits(dataset: Dataset, dev_queries: int, seed: int) -> Splits:
    """Read and check train and dev; without a dev split, a part of train is set aside for it."""
    train = dataset.split("train")
    ids = check(dataset, splits=[])
    check_split(dataset, train, ids)
    if "dev" in dataset.splits():
        dev = dataset.split("dev")
        check_split(dataset, dev, ids)
    else:
        train, dev = _set_aside(train, seed)
        say(f"no dev split: {len(dev.queries)} train queries are set aside to choose on")
    return Splits(ids, train, _select_queries(dev, dev.queries[:dev_queries]))


def prepare_training_data(
    dataset: Dataset,
    splits: Splits,
    encoder: Encoder,
    folder: Path,
    *,
    titles: Titles,
    query_length: int,
    document_length: int,
) -> TrainingData:
    """Tokenise what the encoder will read."""
    documents = tokenize_corpus(dataset, encoder, folder, titles=titles, max_length=document_length)
    length = min(query_length, encoder.max_length)

    def tokenize_queries(split: Split) -> Questions:
        texts = [query.text for query in split.queries]
        tokens = tokenize_texts([encoder.prompts.query + text for text in texts], encoder.tokenizer, length)
        ids = [query.id for query in split.queries]
        return Questions(texts, TokenArray(tokens), make_pairs(split, splits.ids), ids)

    return TrainingData(documents, tokenize_queries(splits.train), tokenize_queries(splits.dev))


def make_pairs(split: Split, ids: IdMap) -> Positives:
    judged = {doc for found in split.qrels.values() for doc in found}
    rows = dict(zip(judged, ids.find_rows(judged).tolist(), strict=True))
    return build_positives([query.id for query in split.queries], split.qrels, rows)


def _select_queries(split: Split, queries: list[Query]) -> Split:
    return Split(split.name, queries, {query.id: split.qrels[query.id] for query in queries})


def _set_aside(train: Split, seed: int) -> tuple[Split, Split]:
    count = min(DEV_MOST, int(len(train.queries) * DEV_SHARE))
    if not count:
        raise ConfigError(f"{len(train.queries)} train queries are too few to set some aside; add a dev split")
    chosen = set(np.random.default_rng(seed).choice(len(train.queries), count, replace=False).tolist())
    dev = [query for place, query in enumerate(train.queries) if place in chosen]
    rest = [query for place, query in enumerate(train.queries) if place not in chosen]
    return _select_queries(train, rest), _select_queries(Split("dev", train.queries, train.qrels), dev)
