"""Training data: the tokenized corpus, and train and dev queries with their positives."""

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

DEV_SHARE, MAX_DEV_QUERIES = 0.05, 1_000


class Questions(NamedTuple):
    """Queries of a split, tokenized, and their positives."""

    texts: list[str]
    tokens: TokenArray
    pairs: Positives
    ids: Sequence[str] = ()


class TrainingData(NamedTuple):
    """Tokenized corpus and query splits that all stages share."""

    documents: TokenStore
    train: Questions
    dev: Questions


class Splits(NamedTuple):
    """Train and dev split, and the ids of the corpus."""

    ids: IdMap
    train: Split
    dev: Split


def read_splits(dataset: Dataset, dev_queries: int, seed: int) -> Splits:
    """Read and validate train and dev; without a dev split, split it off from train."""
    train = dataset.split("train")
    ids = check(dataset, splits=[])
    check_split(dataset, train, ids)
    if "dev" in dataset.splits():
        dev = dataset.split("dev")
        check_split(dataset, dev, ids)
    else:
        train, dev = _split_off_dev(train, seed)
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
    """Tokenize the corpus and the queries of both splits."""
    documents = tokenize_corpus(dataset, encoder, folder, titles=titles, max_length=document_length)
    length = min(query_length, encoder.max_length)

    def tokenize_queries(split: Split) -> Questions:
        texts = [query.text for query in split.queries]
        tokens = tokenize_texts([encoder.prompts.query + text for text in texts], encoder.tokenizer, length)
        ids = [query.id for query in split.queries]
        return Questions(texts, TokenArray(tokens), make_pairs(split, splits.ids), ids)

    return TrainingData(documents, tokenize_queries(splits.train), tokenize_queries(splits.dev))


def make_pairs(split: Split, ids: IdMap) -> Positives:
    """Resolve a split's qrels to rows of the corpus."""
    positive_ids = {doc for grades in split.qrels.values() for doc in grades}
    rows = dict(zip(positive_ids, ids.find_rows(positive_ids).tolist(), strict=True))
    return build_positives([query.id for query in split.queries], split.qrels, rows)


def _select_queries(split: Split, queries: list[Query]) -> Split:
    return Split(split.name, queries, {query.id: split.qrels[query.id] for query in queries})


def _split_off_dev(train: Split, seed: int) -> tuple[Split, Split]:
    """Split train at random into train and dev."""
    count = min(MAX_DEV_QUERIES, int(len(train.queries) * DEV_SHARE))
    if not count:
        raise ConfigError(f"{len(train.queries)} train queries are too few to set some aside; add a dev split")
    chosen = set(np.random.default_rng(seed).choice(len(train.queries), count, replace=False).tolist())
    dev = [query for row, query in enumerate(train.queries) if row in chosen]
    rest = [query for row, query in enumerate(train.queries) if row not in chosen]
    return _select_queries(train, rest), _select_queries(Split("dev", train.queries, train.qrels), dev)
