"""What training leaves for others: encoders that sentence-transformers reads as bidr does, and a card."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_encoders import TEXTS, WORDS, bert, close
from sample_training import dataset, with_settings

from bidr.cli.config_parsing import load_toml
from bidr.data.dataset import Dataset
from bidr.data.types import Document, Query
from bidr.models.corpus_encoding import encode_texts
from bidr.models.model_card import render_card
from bidr.models.saved_model import Model
from bidr.training.config import EncoderConfig, TrainConfig
from bidr.training.train import train

QUERY_LENGTH, DOCUMENT_LENGTH = 6, 14
LONG = "the night watch was painted by a girl with a pearl earring sorting numbers quickly in oysters " * 3
EPOCH = {"epochs": 1}
SHORT: dict[str, Any] = {
    "warmup": EPOCH,
    "sparse": EPOCH,
    "dense": EPOCH,
    "text": {"query_length": QUERY_LENGTH, "document_length": DOCUMENT_LENGTH},
}


def words(name: str = "words") -> Dataset:
    """Documents and questions of the few words that the small BERT knows."""
    random = np.random.default_rng(3)
    texts = [" ".join(random.choice(WORDS, 8)) for _ in range(40)]
    queries = [Query(f"q{row}", " ".join(texts[row].split()[:3])) for row in range(40)]
    qrels = {f"q{row}": {f"d{row}": 1} for row in range(40)}
    splits = {"train": dict(list(qrels.items())[:30]), "dev": dict(list(qrels.items())[30:])}
    return Dataset.from_records(
        name, [Document(f"d{row}", "", text) for row, text in enumerate(texts)], queries, splits
    )


def prepared(kind: str, folder: Path) -> tuple[Dataset, TrainConfig]:
    if kind == "bag":
        return dataset(), with_settings(**SHORT, unify=EPOCH)
    encoder = EncoderConfig(
        backbone=str(bert(folder / "a place" / "small-bert")),
        projection=8,
        normalise=True,
        query_prompt="query: ",
        document_prompt="document: ",
    )
    unify = {"epochs": 1 if kind == "bert, unified" else 0}
    return words(), replace(with_settings(**SHORT, unify=unify), encoder=encoder, learning_rate=1e-3)


@pytest.fixture(scope="module", params=["bag", "bert, unified", "bert, two query encoders"])
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("output")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        data, config = prepared(request.param, folder)
        yield train(data, config, folder / "run"), config


def elsewhere(folder: Path):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu")


def encoders(model: Model) -> list[str]:
    return ["sparse", "dense", *(["query"] if model.unified else [])]


def test_every_encoder_gives_the_same_vectors_in_sentence_transformers(trained):
    """With the same prompts, cut at the same length, pooled, projected and normalised likewise."""
    model, config = trained
    texts = [*filter(None, TEXTS), LONG]  # sentence-transformers gives a bag of nothing the vector 0
    for name in encoders(model):
        encoder, other = getattr(model, name), elsewhere(model.folder / name)
        role = "query" if name == "query" else "document"
        length = {"query": QUERY_LENGTH, "document": DOCUMENT_LENGTH}[role]
        prompt = getattr(encoder.prompts, role)
        assert prompt == (getattr(config.encoder, f"{role}_prompt") or "")
        mine = encode_texts(encoder, texts, prompt=prompt, max_length=length)
        assert close(other.encode(texts, **({"prompt_name": role} if prompt else {})), mine), name
        assert mine.shape[1] == other.get_embedding_dimension() == encoder.dim
        uncut = encode_texts(encoder, texts, prompt=prompt, max_length=length - 2)
        assert not close(uncut, mine), "the length must matter, or nothing is shown"


def test_short_questions_are_the_same_through_an_encoder_of_both_kinds(trained):
    model, _ = trained
    texts = ["pearl", "night watch"]
    names = ["query", "query"] if model.unified else ["sparse", "dense"]
    for name, mine in zip(names, model.encode_queries(texts), strict=True):
        prompted = {"prompt_name": "query"} if getattr(model, name).prompts.query else {}
        assert close(elsewhere(model.folder / name).encode(texts, **prompted), mine)


def test_the_saved_length_is_the_trained_one(trained):
    """A bag has no length of its own in sentence-transformers: its tokenizer cuts."""
    model, config = trained
    for name in encoders(model):
        other = elsewhere(model.folder / name)
        found = other.tokenizer.truncation["max_length"] if config.encoder_kind == "built-in" else other.max_seq_length
        assert found == (QUERY_LENGTH if name == "query" else DOCUMENT_LENGTH)


def test_the_card_says_what_and_how(trained):
    model, config = trained
    text = (model.folder / "README.md").read_text()
    front, body = re.fullmatch(r"---\n(.*?)\n---\n(.*)", text, re.DOTALL).groups()
    assert "library_name: bidr" in front
    assert "pipeline_tag: sentence-similarity" in front
    training = model.training
    assert f"{training['data']}: {training['documents']} documents" in body
    assert model.fingerprint in body
    assert f"{config.bytes_per_doc} bytes a document" in body
    assert f"{training['codewords']['used']:.1%} used" in body
    for stage, epochs in training["stages"].items():
        table = body.split(f"### {stage}\n")[1].split("###")[0]
        for epoch in epochs:
            loss = [] if epoch["epoch"] == 0 else [epoch["loss"]]  # the initial weights have none
            assert "| ".join([f"| {epoch['epoch']} ", *(f"{value:.4f}".rstrip("0") for value in loss)]) in table
            assert all(name in table for name in epoch)


def test_the_cards_settings_are_those_of_the_run(trained, tmp_path):
    model, config = trained
    toml = re.search(r"```toml\n(.*?)```", (model.folder / "README.md").read_text(), re.DOTALL).group(1)
    (tmp_path / "run.toml").write_text(toml)
    found = load_toml(TrainConfig(), tmp_path / "run.toml")
    assert replace(found, encoder=replace(found.encoder, backbone=config.encoder.backbone)) == config


def test_the_card_tells_nothing_of_this_machine(trained):
    model, config = trained
    text = (model.folder / "README.md").read_text()
    assert str(model.folder.parent) not in text
    assert "a place" not in text
    if config.encoder_kind != "built-in":
        assert "small-bert" in text
    assert "base_model" not in text


def test_a_backbone_with_an_id_is_the_base_model(trained):
    model = Model(trained[0].folder)
    model.training["config"]["encoder"]["backbone"] = "someone/some-model"
    assert f"base_model: {json.dumps('someone/some-model')}" in render_card(model, {}).split("---")[1]
