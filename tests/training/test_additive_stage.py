"""Codes that are sums of codewords, for a text encoder's own vectors."""

import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from sample_training import CONFIG, files, losses

import bidr
from bidr.data.dataset import Dataset
from bidr.data.types import Document, Query
from bidr.errors import StoppedError
from bidr.models.auto import open_encoder
from bidr.models.corpus_encoding import encode_rows, hash_weights
from bidr.models.trainable_quantizer import TrainableAdditiveQuantizer
from bidr.quantization.additive_quantizer import to_additive
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.exact_search import search_codes
from bidr.tokenization.token_store import TokenArray
from bidr.training import stages
from bidr.training.additive_stage import make_teacher_vectors
from bidr.training.codes_only import train as frozen
from bidr.training.config import CodesOnlyConfig, TrainConfig
from bidr.training.engine.logs import read_lines
from bidr.training.losses.distillation import DistillationObjective
from bidr.training.mining import encode_corpus_codes
from bidr.training.presets import with_recipe
from bidr.training.run_context import TrainingRun
from bidr.training.train import open_run, train, train_model

DOCUMENTS = 600
WIDE = replace(
    CONFIG,
    codewords=256,
    encoder=replace(CONFIG.encoder, dim=32),
    frozen=CodesOnlyConfig(steps=30, batch_size=32, own=8, others=100, depth=16),
)


def hash_saved(run: TrainingRun, stage: str) -> str:
    """Hash a stage's encoder as a model opens it: the built-in one hashes otherwise while it trains."""
    return hash_weights(open_encoder(run.folder / run.get_stage_name(stage) / "encoder"))


def quick(recipe: str) -> TrainConfig:
    """A recipe of sums with few steps."""
    return replace(with_recipe(WIDE, recipe), frozen=WIDE.frozen)


def many() -> Dataset:
    """Like made_training's, with more documents than a book has codewords."""
    random = np.random.default_rng(7)
    words = [f"{a}{b}{c}" for a in "bdfgkp" for b in "aeiou" for c in "lmnrst"]
    texts = [" ".join(random.choice(words, 12)) for _ in range(DOCUMENTS)]
    queries, qrels = [], {"train": {}, "dev": {}}
    for number in range(160):
        row = int(random.integers(DOCUMENTS))
        queries.append(Query(f"q{number}", " ".join(random.choice(texts[row].split(), 3))))
        qrels["train" if number < 120 else "dev"][f"q{number}"] = {f"d{row}": 1}
    return Dataset.from_records(
        "many", [Document(f"d{row}", "", text) for row, text in enumerate(texts)], queries, qrels
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return open_run(many(), quick("star-distilled"), tmp_path_factory.mktemp("summed") / "run")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return train(many(), quick("star-distilled"), tmp_path_factory.mktemp("summed") / "model")


def test_additive_codes_rank_closer_to_vectors_than_pq(run):
    queries, vectors = (
        encode_rows(stages.train_conventional(run), source) for source in (run.data.dev.tokens, run.data.documents)
    )
    wanted = np.argsort(-queries @ vectors.T, axis=1)[:, :10]

    def share(side) -> float:
        found = search_codes(queries, side.codebooks, encode_corpus_codes(run, side), 30).rows
        return float(np.mean([np.isin(want, got).mean() for want, got in zip(wanted, found, strict=True)]))

    assert share(stages.distill_codes(run)) > share(stages.fit_codes(run)) + 0.05


def test_saved_codebooks_encode_as_the_trained_ones(model):
    again = Codebooks.load(model.folder / "sparse" / "quantizer.safetensors")
    vectors = np.random.default_rng(0).standard_normal((20, again.dim)).astype(np.float32)
    assert np.array_equal(again.encode(vectors), model.codebooks.encode(vectors))
    assert again.bytes_per_doc == WIDE.bytes_per_doc
    product = again._replace(document=None, centre=None, choosing=None)
    assert product.centroids.shape[2] == again.rotation.shape[0] // again.books


def test_with_all_documents_as_candidates_the_answer_is_the_vectors_own(model, tmp_path):
    data = many()
    bidr.build(data, model, tmp_path / "index")
    texts = [query.text for query in data.split("dev").queries]
    with bidr.open_index(tmp_path / "index") as searcher:
        found = [[answer.id for answer in searcher.search(text, k=10, candidates=DOCUMENTS)] for text in texts]
        few = [[answer.id for answer in searcher.search(text, k=10, candidates=60)] for text in texts]
    queries, store = model.encode_queries(texts)[1], model.dense.get_tokenizer(32)([text.text for text in data.corpus])
    vectors = encode_rows(model.dense, TokenArray(store)).astype(np.float16).astype(np.float32)
    for query, answers in zip(queries, found, strict=True):
        scores = vectors @ query
        assert np.sort(scores)[::-1][:10] == pytest.approx([scores[int(name[1:])] for name in answers], abs=1e-3)
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, few, strict=True)]) > 0.5


def test_distillation_resumes_with_the_same_result(model, tmp_path, monkeypatch):
    taken, real = [], frozen.Distillation.train_step

    def watched(self):
        value = real(self)
        taken.append(value)
        if len(taken) == 7:
            signal.raise_signal(signal.SIGTERM)
        return value

    monkeypatch.setattr(frozen.Distillation, "train_step", watched)
    with pytest.raises(StoppedError, match="run the same command again"):
        train(many(), quick("star-distilled"), tmp_path / "cut")
    again = train(many(), quick("star-distilled"), tmp_path / "cut")
    assert len(taken) == 30
    assert not list(again.folder.rglob("checkpoint.pt"))
    lines = [read_lines(path) for path in (again.folder / "work").glob("distilled*/log.jsonl")]
    assert [line["step"] for line in lines[0] if "loss" in line] == [10, 20, 30]
    assert [line["measured"] for line in lines[0] if "measured" in line] == [1, 2, 3, 4, 5]
    assert files(again.folder / "sparse") == files(model.folder / "sparse")


def test_books_of_16_codewords_learn_too(tmp_path):
    config = replace(quick("star-distilled"), codewords=16)
    books = train(many(), config, tmp_path / "run").codebooks
    assert (books.words, books.bytes_per_doc) == (16, WIDE.bytes_per_doc)
    vectors = np.random.default_rng(0).standard_normal((20, books.dim)).astype(np.float32)
    assert books.encode(vectors).shape == (20, 2 * WIDE.bytes_per_doc)


@pytest.fixture(scope="module")
def taught_run(tmp_path_factory):
    return open_run(many(), quick("star-taught"), tmp_path_factory.mktemp("taught") / "run")


def test_distillation_reduces_the_divergence_from_the_teacher(taught_run):
    encoder = stages.train_conventional(taught_run)
    quantizer = TrainableAdditiveQuantizer(to_additive(stages.distill_codes(taught_run).codebooks))
    material, leader = taught_run.data, make_teacher_vectors(taught_run, encoder)
    objective = DistillationObjective(encoder, quantizer, material.documents, material.train, leader, codebook_rate=1.0)
    batch = taught_run.make_random_sampler("in-batch").plan(0).get_batch(0)
    prepared = objective.prepare(batch, np.random.default_rng(0))
    assert len(prepared.texts[0].offsets) - 1 == 3 * len(batch.queries), "two passages for each question"
    optimizer = torch.optim.Adam(objective.make_param_groups(1e-3, 0.0))
    found = []
    for _ in range(20):
        loss = losses(objective, prepared)["following"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    assert found[-1] < 0.8 * found[0]


def test_taught_codes_find_the_teachers_top_documents(taught_run):
    side, leader = stages.learn_taught_codes(taught_run), stages.train_conventional(taught_run)
    dev, documents = taught_run.data.dev.tokens, taught_run.data.documents
    wanted = np.argsort(-encode_rows(leader, dev) @ encode_rows(leader, documents).T, axis=1)[:, :10]
    found = search_codes(encode_rows(side.encoder, dev), side.codebooks, encode_corpus_codes(taught_run, side), 30).rows
    assert np.mean([np.isin(want, got).mean() for want, got in zip(wanted, found, strict=True)]) > 0.7


def test_a_taught_model_has_an_encoder_for_each_side_and_trains_as_long_as_others(tmp_path, taught_run):
    model = train_model(taught_run, tmp_path / "model")
    assert not model.unified
    assert hash_weights(model.sparse) == hash_saved(taught_run, "taught")
    assert hash_weights(model.dense) == hash_saved(taught_run, "conventional")
    histories = {name.partition("+")[0]: history for name, history in model.training["stages"].items()}
    codes_history = histories.pop("taught-codes")
    epochs = {name: history[-1]["epoch"] for name, history in histories.items()}
    config = quick("star-taught")
    assert epochs["taught"] == config.sparse.epochs
    assert codes_history
    assert sum(epochs.values()) == sum(
        stage.epochs for stage in (config.warmup, config.sparse, config.dense, config.unify)
    )


def test_tuning_moves_codewords_and_queries_and_leaves_every_code(tmp_path):
    config = quick("star-tuned")
    model = train(many(), config, tmp_path / "run")
    run = open_run(many(), config, tmp_path / "run")
    before, side = stages.distill_codes(run), stages.train_tuned(run)
    assert not np.allclose(model.codebooks.centroids, before.codebooks.centroids, atol=1e-4)
    vectors = encode_rows(model.sparse, run.data.documents)
    assert np.array_equal(model.codebooks.encode(vectors), before.codebooks.encode(vectors))
    assert hash_weights(model.query) == hash_saved(run, side.name) != hash_weights(model.sparse)
    assert hash_weights(model.sparse) == hash_weights(model.dense) == hash_saved(run, "conventional")
    assert run.read_history(side.name)[-1]["epoch"] == config.unify.epochs
