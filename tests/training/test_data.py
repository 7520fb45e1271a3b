"""Which queries a run trains on and which it selects on."""

import numpy as np
import pytest

from bidr.data.dataset import Dataset, load
from bidr.data.types import Document, Query
from bidr.errors import ConfigError
from bidr.training import data
from bidr.training.data import read_splits

DOCUMENTS = [Document(f"d{row}", "", f"text {row}") for row in range(50)]


def make_dataset(**splits: range) -> Dataset:
    """Query number n is answered by document n % 50; a split is a range of numbers."""
    queries = [Query(f"q{number}", f"question {number}") for number in range(200)]
    qrels = {
        name.replace("_", "."): {f"q{number}": {f"d{number % 50}": 1} for number in numbers}
        for name, numbers in splits.items()
    }
    return Dataset.from_records("made", DOCUMENTS, queries, qrels)


def get_dev_ids(dataset: Dataset, count: int = 1_000, seed: int = 0) -> list[str]:
    return [query.id for query in read_splits(dataset, count, seed).dev.queries]


def test_dev_is_a_random_sample_drawn_with_the_seed():
    dataset = make_dataset(train=range(50), dev=range(50, 150))
    drawn = [get_dev_ids(dataset, 20, seed) for seed in range(20)]
    assert all(len(ids) == len(set(ids)) == 20 for ids in drawn)
    assert get_dev_ids(dataset, 20, 3) == drawn[3] != drawn[4]
    numbers = np.array([[int(name[1:]) for name in ids] for ids in drawn])
    assert abs(numbers.mean() - 99.5) < 5  # the first 20 of the file would have a mean of 59.5
    assert (np.diff(numbers, axis=1) > 0).all()
    assert get_dev_ids(dataset, 100) == [f"q{number}" for number in range(50, 150)]


def test_queries_of_other_splits_are_not_selected_on(monkeypatch):
    """As in MS MARCO, whose dev contains dev.small."""
    said = []
    monkeypatch.setattr(data, "say", said.append)
    dataset = make_dataset(train=range(50), dev=range(50, 150), dev_small=range(60, 100), test=range(140, 160))
    assert get_dev_ids(dataset) == [f"q{number}" for number in [*range(50, 60), *range(100, 140)]]
    assert said == ["50 of 100 dev queries are also in dev.small, test: left out of those to choose on"]


def test_equal_texts_are_not_selected_on_either():
    queries = [Query("a", "one"), Query("b", "two"), Query("c", "two"), Query("t", "three")]
    qrels = {"train": {"t": {"d0": 1}}, "dev": {"a": {"d1": 1}, "b": {"d2": 1}}, "test": {"c": {"d2": 1}}}
    dataset = Dataset.from_records("made", DOCUMENTS, queries, qrels)
    assert get_dev_ids(dataset) == ["a"]


def test_dev_is_split_off_from_train_if_all_of_it_is_reported_on():
    dataset = make_dataset(train=range(100), dev=range(100, 150), test=range(100, 150))
    splits = read_splits(dataset, 1_000, 0)
    assert len(splits.dev.queries) == 5
    assert {query.id for query in splits.dev.queries} <= {f"q{number}" for number in range(100)}
    assert not {query.id for query in splits.dev.queries} & {query.id for query in splits.train.queries}


@pytest.mark.parametrize(("train", "count"), [(2, 0), (20, 5), (60, 15), (100, 20), (190, 20)])
def test_without_a_dev_split_a_quarter_of_train_at_most_is_set_aside_to_choose_on(train, count):
    if not count:
        with pytest.raises(ConfigError, match="2 train queries that are in no other split are too few"):
            read_splits(make_dataset(train=range(train)), 1_000, 0, 20)
        return
    splits = read_splits(make_dataset(train=range(train)), 1_000, 0, 20)
    assert (len(splits.dev.queries), len(splits.train.queries)) == (count, train - count)


@pytest.mark.parametrize(("dev", "limit", "added"), [(30, 1_000, 0), (20, 1_000, 5), (3, 1_000, 12), (3, 10, 7)])
def test_a_small_dev_split_gets_train_queries_at_most_a_tenth_of_them(dev, limit, added, monkeypatch):
    said = []
    monkeypatch.setattr(data, "say", said.append)
    dataset = make_dataset(train=range(120), dev=range(120, 120 + dev), test=range(110, 120))
    splits = read_splits(dataset, limit, 0, 25)
    ids = [query.id for query in splits.dev.queries]
    assert len(ids) == len(set(ids)) == dev + added
    assert {f"q{number}" for number in range(120, 120 + dev)} <= {*ids}
    assert not {*ids} & {f"q{number}" for number in range(110, 120)}, "queries to report on are no dev queries"
    assert {query.id for query in splits.train.queries} == {f"q{number}" for number in range(120)} - {*ids}
    assert splits.dev.qrels.keys() == {*ids}
    told = [f"dev has {dev} queries: {added} train queries are set aside to choose on too"] if added else []
    assert said[: len(told)] == told
    assert len(said) == len(told) + 1, "and train queries in test are counted"


def test_msmarco_file_names_select_on_none_of_dev_small(tmp_path):
    lines = [(number, f"question {number}") for number in range(60)]
    (tmp_path / "collection.tsv").write_text("".join(f"{row}\ttext {row}\n" for row in range(60)))
    for name, numbers in (("train", range(30)), ("dev", range(30, 60))):
        (tmp_path / f"queries.{name}.tsv").write_text("".join(f"{n}\t{text}\n" for n, text in lines if n in numbers))
        (tmp_path / f"qrels.{name}.tsv").write_text("".join(f"{n}\t0\t{n}\t1\n" for n in numbers))
    (tmp_path / "qrels.dev.small.tsv").write_text("".join(f"{n}\t0\t{n}\t1\n" for n in range(30, 45)))
    assert get_dev_ids(load(tmp_path)) == [str(number) for number in range(45, 60)]


def test_what_is_split_off_from_train_has_no_query_to_report_on():
    dataset = make_dataset(train=range(100), test=range(90))
    assert set(get_dev_ids(dataset)) <= {f"q{number}" for number in range(90, 100)}
    with pytest.raises(ConfigError, match="0 train queries that are in no other split are too few"):
        read_splits(make_dataset(train=range(100), test=range(100)), 1_000, 0)


def test_train_queries_that_are_reported_on_are_counted(monkeypatch):
    said = []
    monkeypatch.setattr(data, "say", said.append)
    read_splits(make_dataset(train=range(50), dev=range(60, 80), test=range(45, 60)), 1_000, 0)
    assert said == ["5 of 50 train queries are also in test: not unseen there"]
