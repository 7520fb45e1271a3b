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
from bidr.models.trainable_encoder import Encoder
from bidr.tokenization.token_store import TokenArray, TokenStore
from bidr.tokenization.tokenizer import tokenize_texts
from bidr.utils.progress import say

DEV_SHARE, MAX_DEV_QUERIES = 0.05, 1_000
# The largest shares of the train queries that are set aside for `min_dev_queries`.
MAX_DEV_SHARE, MAX_ADDED_SHARE = 0.25, 0.1


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


def read_splits(dataset: Dataset, dev_queries: int, seed: int, min_dev_queries: int = 0) -> Splits:
    """Read and validate train and dev, which stages are selected on.

    Dev is a random sample of the dev split without the queries of any other split, which results may be reported on
    (MS MARCO's dev contains dev.small). Where none are left, or there is no dev split, it is split off from train.

    Args:
        dev_queries: maximum number of dev queries.
        min_dev_queries: where dev has fewer, train queries are set aside too, at most a tenth of them (a quarter where
            there is no dev split).
    """
    train = dataset.split("train")
    ids = check(dataset, splits=[])
    check_split(dataset, train, ids)
    reported = _read_reported_queries(dataset)
    dev = _read_dev(dataset, reported)
    if dev is None:
        share = max(DEV_SHARE, min(MAX_DEV_SHARE, min_dev_queries / max(1, len(train.queries))))
        train, dev = _split_off_dev(train, int(len(train.queries) * share), seed, reported)
        if not dev.queries:
            unreported = sum(not reported.is_reported(query) for query in train.queries)
            raise ConfigError(
                f"{unreported} train queries that are in no other split are too few to set some aside; add a dev split"
            )
        say(f"no dev split: {len(dev.queries)} train queries are set aside to choose on")
    else:
        check_split(dataset, dev, ids)
        lacking = min(min_dev_queries, dev_queries) - len(dev.queries)
        lacking = min(lacking, int(len(train.queries) * MAX_ADDED_SHARE))
        if lacking > 0:
            train, added = _split_off_dev(train, lacking, seed, reported.add(dev.queries))
            say(
                f"dev has {len(dev.queries)} queries: {len(added.queries)} train queries are set aside to choose on too"
            )
            dev = Split(dev.name, [*dev.queries, *added.queries], {**dev.qrels, **added.qrels})
    count = sum(query.id in reported.ids for query in train.queries)
    if count:
        names = ", ".join(reported.names)
        say(f"{count:,} of {len(train.queries):,} train queries are also in {names}: not unseen there")
    return Splits(ids, train, _draw_queries(dev, dev_queries, seed))


class _ReportedQueries(NamedTuple):
    """Queries of the splits other than train and dev."""

    names: list[str]
    ids: set[str]
    texts: set[str]

    def add(self, queries: Sequence[Query]) -> "_ReportedQueries":
        """Return these queries and others."""
        ids, texts = {query.id for query in queries}, {query.text for query in queries}
        return _ReportedQueries(self.names, self.ids | ids, self.texts | texts)

    def is_reported(self, query: Query) -> bool:
        """Check for the same id or the same text."""
        return query.id in self.ids or query.text in self.texts


def _read_reported_queries(dataset: Dataset) -> _ReportedQueries:
    names = [name for name in dataset.splits() if name not in ("train", "dev")]
    queries = [query for name in names for query in dataset.split(name).queries]
    return _ReportedQueries(names, {query.id for query in queries}, {query.text for query in queries})


def _read_dev(dataset: Dataset, reported: _ReportedQueries) -> Split | None:
    """Read the dev split without queries of the splits to report on; None if there are none."""
    if "dev" not in dataset.splits():
        return None
    dev = dataset.split("dev")
    selected = [query for query in dev.queries if not reported.is_reported(query)]
    if len(selected) < len(dev.queries):
        count = f"{len(dev.queries) - len(selected):,} of {len(dev.queries):,} dev queries"
        say(f"{count} are also in {', '.join(reported.names)}: left out of those to choose on")
    return _select_queries(dev, selected) if selected else None


def select_unseen_queries(split: Split, dev: Split) -> Split:
    """Select the queries of a split that are not in dev, by id or text."""
    ids, texts = {query.id for query in dev.queries}, {query.text for query in dev.queries}
    return _select_queries(split, [query for query in split.queries if query.id not in ids and query.text not in texts])


def _draw_queries(split: Split, count: int, seed: int) -> Split:
    """Draw a random sample of a split's queries, in the split's order."""
    if count >= len(split.queries):
        return split
    rows = np.sort(np.random.default_rng(seed).choice(len(split.queries), count, replace=False))
    return _select_queries(split, [split.queries[row] for row in rows.tolist()])


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


def _split_off_dev(train: Split, count: int, seed: int, reported: _ReportedQueries) -> tuple[Split, Split]:
    """Split train at random into train and `count` dev queries, none of which is in a split to report on."""
    unreported = [row for row, query in enumerate(train.queries) if not reported.is_reported(query)]
    count = min(MAX_DEV_QUERIES, count, len(unreported))
    rows = np.random.default_rng(seed).choice(len(unreported), count, replace=False)
    chosen = {unreported[row] for row in rows.tolist()}
    dev = [query for row, query in enumerate(train.queries) if row in chosen]
    rest = [query for row, query in enumerate(train.queries) if row not in chosen]
    return _select_queries(train, rest), _select_queries(Split("dev", train.queries, train.qrels), dev)
