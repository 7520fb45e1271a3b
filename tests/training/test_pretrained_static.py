"""Training from pretrained static embeddings."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sample_static import TABLE, make_model2vec, make_static_embedding, make_tokenizer
from sample_training import CONFIG, dataset, files

from bidr.errors import ConfigError, MissingExtraError, ModelError, StoppedError
from bidr.models.static_embeddings import StaticEmbeddings, embed_pieces
from bidr.models.static_encoder import StaticEncoder
from bidr.pipeline.build import build
from bidr.training.config import EncoderConfig, TrainConfig
from bidr.training.engine.loop import StageTrainer
from bidr.training.run_context import TrainingRun
from bidr.training.train import train


def static_config(folder: Path, **encoder: object) -> TrainConfig:
    settings = EncoderConfig(backbone=str(folder), vocabulary=200, **encoder)  # type: ignore[arg-type]
    return replace(CONFIG, encoder=settings)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> Path:
    return make_model2vec(tmp_path_factory.mktemp("pretrained") / "model")


def test_the_backbone_starts_from_the_pretrained_vectors(pretrained, tmp_path):
    run = TrainingRun(dataset(), static_config(pretrained), tmp_path / "work")
    encoder = run.load_backbone()
    assert encoder.dim == run.dim == TABLE.shape[1]
    vocabulary = encoder.tokenizer.get_vocab()
    static = StaticEmbeddings(make_tokenizer(), TABLE)
    pieces = [piece for piece in vocabulary if embed_pieces(static, [piece]).any()]
    assert len(pieces) > 10
    for piece in pieces:
        expected = embed_pieces(static, [piece])[0]
        direction = encoder.directions[vocabulary[piece]].detach().numpy()
        assert np.allclose(direction, expected / np.linalg.norm(expected), atol=1e-5), piece


def test_the_pretrained_tokenizer_can_be_kept(pretrained, tmp_path):
    config = replace(CONFIG, encoder=EncoderConfig(backbone=str(pretrained), tokenizer="pretrained"))
    run = TrainingRun(dataset(), config, tmp_path / "work")
    assert run.load_backbone().tokenizer.get_vocab() == make_tokenizer().get_vocab()


@pytest.mark.parametrize("tokenizer", ["corpus", "pretrained"])
def test_a_stopped_run_ends_with_the_same_bytes(pretrained, tmp_path, monkeypatch, tokenizer):
    config = replace(CONFIG, encoder=EncoderConfig(backbone=str(pretrained), tokenizer=tokenizer))
    train(dataset(), config, tmp_path / "straight")
    steps, real = [], StageTrainer.train_step

    def stop_often(self, *arguments):
        value = real(self, *arguments)
        steps.append(self.name)
        if len(steps) in (3, 13, 31):
            signal.raise_signal(signal.SIGTERM)
        return value

    monkeypatch.setattr(StageTrainer, "train_step", stop_often)
    for _ in range(5):
        try:
            train(dataset(), config, tmp_path / "cut")
            break
        except StoppedError:
            continue
    assert len(steps) > 31
    assert files(tmp_path / "cut") == files(tmp_path / "straight")


def test_a_run_resumes_when_the_pretrained_folder_is_gone(tmp_path, monkeypatch):
    config = static_config(make_static_embedding(tmp_path / "model"))
    config = replace(config, encoder=replace(config.encoder, vocabulary=30_000), learning_rate=None)
    train(dataset(), config, tmp_path / "straight")
    real = StageTrainer.train_step

    def stop_first(self, *arguments):
        signal.raise_signal(signal.SIGTERM)
        return real(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(StageTrainer, "train_step", stop_first)
        with pytest.raises(StoppedError):
            train(dataset(), config, tmp_path / "cut")
    (tmp_path / "model").rename(tmp_path / "elsewhere")
    train(dataset(), config, tmp_path / "cut")
    assert files(tmp_path / "cut") == files(tmp_path / "straight")


@pytest.mark.parametrize("tokenizer", ["corpus", "pretrained"])
def test_words_are_searched_without_torch(pretrained, tmp_path, tokenizer):
    config = replace(CONFIG, encoder=EncoderConfig(backbone=str(pretrained), tokenizer=tokenizer))
    model = train(dataset(), config, tmp_path / "run")
    assert isinstance(model.dense, StaticEncoder)
    build(dataset(), model, tmp_path / "index", device="cpu")
    text = next(iter(dataset().corpus)).text
    code = """
import bidr, sys
with bidr.open_index(sys.argv[1]) as searcher:
    print(searcher.search(sys.argv[2], k=1)[0].id)
assert "torch" not in sys.modules and "huggingface_hub" not in sys.modules
"""
    command = [sys.executable, "-c", code, str(tmp_path / "index"), text]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().startswith("d")


def test_the_learning_rate_depends_on_the_start(pretrained, tmp_path):
    def get_rate(config: TrainConfig, name: str) -> float:
        run = TrainingRun(dataset(), replace(config, learning_rate=None), tmp_path / name)
        return run._get_optimizer_defaults()[0]

    assert get_rate(CONFIG, "scratch") == 0.02
    assert get_rate(static_config(pretrained), "pretrained") == 0.01


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"dim": 64}, "encoder.dim: given 64 with the static embeddings"),
        ({"projection": 64}, "encoder.projection"),
        ({"pooling": "cls"}, "encoder.pooling"),
        ({"tokenizer": "pretrained", "vocabulary": 100}, "encoder.vocabulary: given 100"),
    ],
)
def test_settings_without_effect_are_refused(pretrained, settings, expected):
    with pytest.raises(ConfigError, match=expected):
        TrainConfig(encoder=EncoderConfig(backbone=str(pretrained), **settings))


@pytest.mark.parametrize("backbone", ["built-in", "some/transformer"])
def test_a_pretrained_tokenizer_needs_static_embeddings(backbone):
    with pytest.raises(ConfigError, match=r"encoder\.tokenizer: given 'pretrained'"):
        TrainConfig(encoder=EncoderConfig(backbone=backbone, tokenizer="pretrained"))


def test_bytes_that_do_not_divide_the_dimensions_are_refused(pretrained, tmp_path):
    with pytest.raises(ConfigError, match="16"):
        train(dataset(), replace(static_config(pretrained), bytes_per_doc=3), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_damaged_folder_leaves_nothing_behind(tmp_path):
    folder = make_model2vec(tmp_path / "model", TABLE[:3])
    with pytest.raises(ModelError, match="3 vectors for"):
        train(dataset(), static_config(folder), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_missing_wheel_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("bidr.models.static_embeddings.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[static\]'"):
        train(dataset(), static_config(Path("wordllama")), tmp_path / "run")
    assert not (tmp_path / "run").exists()
