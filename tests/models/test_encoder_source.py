import json
import socket
import time

import numpy as np
import pytest
from sample_encoder_index import make_encoder, make_onnx
from sample_static import TABLE, make_static_embedding

from bidr.errors import ModelError
from bidr.models.auto import open_pretrained_encoder
from bidr.models.corpus_encoding import encode_texts
from bidr.models.encoder_source import fingerprint_encoder, locate_encoder, read_encoder_metric, read_prompts
from bidr.models.huggingface_encoder import TransformerEncoder
from bidr.models.onnx_encoder import OnnxEncoder
from bidr.models.static_encoder import StaticEncoder

TEXTS = ["the night watch", "oysters", "a girl with a pearl earring by night"]


def encode(encoder):
    return encode_texts(encoder, TEXTS, prompt="", max_length=64)


def test_an_id_that_cannot_be_had_is_one_error_within_seconds(monkeypatch, tmp_path):
    # A host that accepts and never answers, which is worse than a refused connection.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr("bidr.models.encoder_source.CONNECT_SECONDS", 0.3)
        for load in (open_pretrained_encoder, TransformerEncoder.open):
            started = time.monotonic()
            with pytest.raises(
                ModelError, match=r"cannot be reached .*; give a folder, or download it first .* hf dow"
            ):
                load("nobody/has-this-encoder")
            assert time.monotonic() - started < 5


def test_offline_nothing_is_tried(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *args, **kwargs: pytest.fail("connected"))
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE is set; give a folder"):
        locate_encoder("nobody/has-this-encoder")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/nowhere/at/all", "no such folder"),
        ("./nowhere", "no such folder"),
        ("a/b/c", "no such folder"),
        ("two words/name", "neither a folder nor a Hugging Face id"),
    ],
)
def test_names_that_cannot_be_encoders_are_refused(name, message):
    with pytest.raises(ModelError, match=message):
        locate_encoder(name)


def test_a_folder_without_an_encoder_says_what_is_expected(tmp_path):
    with pytest.raises(ModelError, match=r"no encoder here, expected .*model\.onnx"):
        locate_encoder(tmp_path)
    (tmp_path / "notes.txt").write_text("text")
    with pytest.raises(ModelError, match="a file, expected a folder"):
        locate_encoder(tmp_path / "notes.txt")


def test_each_layout_opens_with_its_program(tmp_path):
    assert isinstance(open_pretrained_encoder(make_encoder(tmp_path / "a")), StaticEncoder)
    assert isinstance(open_pretrained_encoder(make_static_embedding(tmp_path / "b")), StaticEncoder)
    assert isinstance(open_pretrained_encoder(make_onnx(tmp_path / "c")), OnnxEncoder)
    assert isinstance(open_pretrained_encoder(tmp_path / "c" / "onnx" / "model.onnx"), OnnxEncoder)


def test_an_onnx_graph_is_pooled_as_its_folder_says(tmp_path):
    static = StaticEncoder.load_pretrained(str(make_encoder(tmp_path / "static")))
    vectors = encode(open_pretrained_encoder(make_onnx(tmp_path / "mean")))
    assert np.allclose(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), encode(static), atol=1e-5)
    folder = make_onnx(tmp_path / "cls")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    first = [static.tokenizer.encode(text).ids[0] for text in TEXTS]
    assert np.allclose(encode(open_pretrained_encoder(folder)), TABLE[first], atol=1e-6)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "weightedmean"}))
    with pytest.raises(ModelError, match="pooling 'weightedmean', expected one of mean"):
        open_pretrained_encoder(folder)


def test_onnx_folders_that_cannot_be_used_say_why(tmp_path):
    with pytest.raises(ModelError, match="takes pixel_values, expected the inputs of a text encoder"):
        open_pretrained_encoder(make_onnx(tmp_path / "image", extra_input="pixel_values"))
    folder = make_onnx(tmp_path / "bare")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        open_pretrained_encoder(folder)
    folder = make_onnx(tmp_path / "broken")
    (folder / "onnx" / "model.onnx").write_bytes(b"not a graph")
    with pytest.raises(ModelError, match="cannot be used as an encoder"):
        open_pretrained_encoder(folder)
    folder = make_onnx(tmp_path / "two")
    (folder / "onnx" / "model.onnx").rename(folder / "onnx" / "a.onnx")
    (folder / "onnx" / "b.onnx").write_bytes((folder / "onnx" / "a.onnx").read_bytes())
    with pytest.raises(ModelError, match=r"several ONNX graphs \(a.onnx, b.onnx\); give the file of one"):
        open_pretrained_encoder(folder)


def test_the_fingerprint_follows_weights_and_tokenizer_but_not_the_readme(tmp_path):
    first = fingerprint_encoder(make_encoder(tmp_path / "a"))
    (tmp_path / "a" / "README.md").write_text("changed")
    assert fingerprint_encoder(tmp_path / "a") == first == fingerprint_encoder(make_encoder(tmp_path / "b"))
    assert fingerprint_encoder(make_encoder(tmp_path / "c", seed=1)) != first
    (tmp_path / "a" / "tokenizer.json").write_text("{}")
    assert fingerprint_encoder(tmp_path / "a") != first
    graph = fingerprint_encoder(make_onnx(tmp_path / "d"))
    (tmp_path / "d" / "onnx" / "model.onnx").write_bytes(b"other")
    assert fingerprint_encoder(tmp_path / "d") != graph


def test_prompts_and_similarity_are_those_of_sentence_transformers(tmp_path):
    folder = make_encoder(tmp_path / "a")
    assert tuple(read_prompts(folder)) == ("", "")
    assert read_encoder_metric(folder) == "cosine"
    settings = {"prompts": {"query": "query: ", "passage": "passage: "}, "similarity_fn_name": "dot"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    assert tuple(read_prompts(folder)) == ("query: ", "passage: ")
    assert read_encoder_metric(folder) == "ip"
