"""Several processes, and texts encoded in parts, give the gradient of one process that encodes all at once."""

import json
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sample_training import CONFIG, dataset, files
from training_processes import (
    KINDS,
    LIMITS,
    RECIPES,
    STEP_SEED,
    STOPS,
    TRANSFORMER_BATCH,
    batch_of,
    compute,
    everything,
    gradients,
    objective,
    recipes,
    signalled,
    spawn,
    with_dropout,
)

from bidr.models.corpus_encoding import batch_by_length
from bidr.tokenization.token_store import TokenArray, Tokens
from bidr.training.engine.distributed import ProcessGroup
from bidr.training.engine.gradients import concat_tokens, slice_tokens, split_by_tokens
from bidr.training.presets import with_recipe
from bidr.training.run_context import TrainingRun
from bidr.training.train import train

NAMES = [f"{kind} {limit}" for kind in (*KINDS, "one query", "dropout") for limit in LIMITS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from sample_encoders import bert

    folder = tmp_path_factory.mktemp("processes")
    bert(folder / "bert")
    with_dropout(folder)  # tokenises, once for all
    return folder


@pytest.fixture(scope="module")
def two(folder):
    """What each of two processes found."""
    spawn(everything, folder)
    return [torch.load(folder / f"found{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def one(folder, two):
    return compute(ProcessGroup(), folder)


@cache
def workshop(folder: Path) -> TrainingRun:
    return TrainingRun(dataset(), CONFIG, folder / "work")


@cache
def plain(name: str, folder: Path, size: int = 1):
    """One process, one graph, no cleverness; with the random numbers of so many processes and the parts."""
    kind, limit = name.rsplit(" ", 1)
    run = workshop(folder)
    made = with_dropout(folder) if kind == "dropout" else objective("unified" if kind == "one query" else kind, run)
    batch = TRANSFORMER_BATCH if kind == "dropout" else batch_of(run, 1 if kind == "one query" else 11)
    prepared = made.prepare(batch, np.random.default_rng(5))
    found: list[list[torch.Tensor]] = [[] for _ in prepared.texts]
    for rank in range(size):
        STEP_SEED.set(1, rank)
        own = [slice_tokens(tokens, *split_by_tokens(tokens, size)[rank : rank + 2]) for tokens in prepared.texts]
        rows = TokenArray(concat_tokens(own))
        parts = list(batch_by_length(rows.get_lengths(), LIMITS[limit]))
        parts = [np.arange(len(rows))] if len(parts) == 1 else parts
        if not parts:  # fewer texts than processes
            continue
        vectors = torch.cat([made.encoder.encode(rows.get_batch(part)) for part in parts])
        vectors = vectors[torch.from_numpy(np.argsort(np.concatenate(parts)))]
        for each, some in zip(found, vectors.split([len(tokens.offsets) - 1 for tokens in own]), strict=True):
            each.append(some)
    STEP_SEED.set(0)
    terms = made.compute_terms([torch.cat(each) for each in found], prepared.comparison)
    sum(terms.values()).backward()
    return terms, gradients(made)


def assert_equal(found, expected) -> None:
    for term, value in expected[0].items():
        assert float(found[0][term]) == pytest.approx(float(value.detach()), rel=1e-5)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        assert (found[1][name] is None) == (gradient is None), name
        if gradient is not None:
            assert gradient.norm() > 0 or name.startswith("encoder.model")
            assert (found[1][name] - gradient).norm() <= 1e-5 * gradient.norm().clamp(min=1e-3), name


@pytest.mark.parametrize("name", NAMES)
def test_one_process_alone_gives_the_plain_gradient(one, folder, name):
    assert_equal(one[name], plain(name, folder))


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_give_the_gradient_of_one(two, folder, name):
    expected = plain(name, folder, size=2)
    for found in two:
        assert_equal(found[name], expected)
    for parameter, gradient in two[0][name][1].items():
        other = two[1][name][1][parameter]
        assert (gradient is None and other is None) or torch.equal(gradient, other)


def test_without_chance_the_number_of_processes_and_parts_makes_no_difference(two, folder):
    for name in NAMES:
        if not name.startswith("dropout"):
            assert_equal(two[0][name], plain(name.rsplit(" ", 1)[0] + " whole", folder))


def test_dropout_is_at_work(one, folder):
    """Else the tests above say nothing of it."""
    weights = [one[name][1]["encoder.model.0.model.embeddings.word_embeddings.weight"] for name in NAMES[-2:]]
    assert not torch.allclose(*weights, rtol=0.01)


def test_the_corpus_is_encoded_by_all_into_one_file(two, folder):
    run = workshop(folder)
    expected = run.encode_corpus(run.load_backbone(), folder / "alone.npy", "encode")
    assert np.array_equal(np.load(folder / "encoded" / "vectors.npy"), expected)
    assert {path.name for path in (folder / "encoded").iterdir()} == {"vectors.npy", "vectors.progress.json"}


def test_what_the_first_process_cannot_do_ends_the_others_too(two, folder):
    assert (folder / "failed0").read_text() == "no such luck\nno such luck"
    assert (folder / "failed1").read_text().splitlines() == ["rank zero failed: no such luck"] * 2


def test_a_process_that_waits_is_told_to_stop_and_all_stop(tmp_path):
    spawn(signalled, tmp_path)
    first, second = ((tmp_path / f"said{rank}").read_text().splitlines() for rank in range(2))
    assert first == second
    assert first[::2] == ["stopped at step 3"] * 2
    assert all("run the same command again" in line for line in first[1::2])
    assert len(first) == 4
    assert (tmp_path / "lost1").read_text().startswith("another process of this run has ended; what was finished")


def test_one_process_goes_on_with_what_two_began(two, folder):
    """Without dropout only the order of sums is another."""
    assert (folder / "left" / "work" / "warmup" / "checkpoint.pt").exists()
    train(dataset(), CONFIG, folder / "left", "must")
    tables = [
        load_file(folder / run / "work/warmup/encoder/0_StaticEmbedding/model.safetensors")["embedding.weight"]
        for run in ("left", "whole")
    ]
    assert torch.allclose(*tables, atol=1e-3)


@pytest.mark.slow
def test_recipes_give_two_processes_what_they_give_one(tmp_path):
    """What each stage showed after each epoch; all of it depends on every step before."""
    spawn(recipes, tmp_path)
    for name in RECIPES:
        together = json.loads((tmp_path / name / "model.json").read_text())["training"]["stages"]
        alone = train(dataset(), with_recipe(CONFIG, name), tmp_path / "alone" / name).training["stages"]
        assert together.keys() == alone.keys()
        for stage, history in alone.items():
            losses = [epoch["loss"] for epoch in history[1:]]  # the initial weights have none
            assert [epoch["loss"] for epoch in together[stage][1:]] == pytest.approx(losses, rel=2e-3), (name, stage)


def test_texts_are_shared_out_by_their_tokens():
    tokens = Tokens(np.arange(30, dtype=np.int32), np.array([0, 10, 12, 14, 16, 18, 20, 30]))
    bounds = split_by_tokens(tokens, 3)
    assert bounds.tolist() == [0, 1, 6, 7]
    assert split_by_tokens(slice_tokens(tokens, 0, 1), 3).tolist() == [0, 1, 1, 1], "one text for three processes"
    parts = [slice_tokens(tokens, *bounds[rank : rank + 2]) for rank in range(3)]
    assert np.concatenate([part.ids for part in parts]).tolist() == list(range(30))
    assert parts[1].offsets.tolist() == [0, 2, 4, 6, 8, 10]


def test_parts_stay_within_the_limit_and_hold_every_text_once():
    lengths = np.array([3, 9, 1, 4, 4, 30, 2])
    parts = list(batch_by_length(lengths, 12))
    assert sorted(np.concatenate(parts).tolist()) == list(range(7))
    assert all(len(part) * lengths[part].max() <= 12 or len(part) == 1 for part in parts)
    assert len(list(batch_by_length(lengths, None))) == 1


def test_whole_runs_of_two_processes_stay_together_and_can_be_stopped_by_either(two, folder):
    first, second = (torch.load(folder / f"ran{rank}.pt", weights_only=True) for rank in range(2))
    assert first == second, "the same weights in both after every step"
    assert first["stops"] == len(STOPS)
    assert first["stopped"] == first["whole"], "no step lost or taken twice"
    assert files(folder / "stopped") == files(folder / "whole")


def test_joined_texts_are_those_of_all_batches_in_their_order():
    """The tests above join texts by the same function, so it needs one of its own."""
    batches = [[[1, 2, 3], [4]], [], [[5, 6]], [[7], [8, 9]]]
    made = [
        Tokens(
            np.array(list(chain.from_iterable(texts)), dtype=np.int32), np.cumsum([0, *map(len, texts)], dtype=np.int64)
        )
        for texts in batches
    ]
    found = concat_tokens(made)
    assert [part.tolist() for part in np.split(found.ids, found.offsets[1:-1])] == list(chain.from_iterable(batches))
    assert (found.offsets[0], found.offsets[-1]) == (0, len(found.ids))
