"""Pretrained static embeddings: layouts, refusals, and the encoder that starts from them."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from sample_encoders import TEXTS
from sample_static import TABLE, VOCABULARY, make_model2vec, make_static_embedding, make_tokenizer, make_wordllama

from bidr.errors import MissingExtraError, ModelError
from bidr.models.bag_of_tokens import BagOfTokensEncoder, compute_idf, list_pieces
from bidr.models.static_embeddings import StaticEmbeddings, embed_pieces, is_static_model, load_static_embeddings
from bidr.tokenization.tokenizer import tokenize
from bidr.tokenization.wordpieces import train_wordpieces


@pytest.mark.parametrize("make", [make_model2vec, make_static_embedding])
def test_both_layouts_are_detected_and_read(make, tmp_path):
    make(tmp_path / "model")
    assert is_static_model(str(tmp_path / "model"))
    static = load_static_embeddings(str(tmp_path / "model"))
    assert np.array_equal(static.table, TABLE)
    assert static.table.dtype == np.float32
    assert static.tokenizer.encode("night pearl").ids == [VOCABULARY["night"], VOCABULARY["pearl"]], "no special tokens"


def test_the_saved_layout_of_model2vec_with_modules_is_read(tmp_path):
    make_model2vec(tmp_path / "model")
    modules = [{"idx": 0, "name": "0", "path": ".", "type": "sentence_transformers.models.StaticEmbedding"}]
    (tmp_path / "model" / "modules.json").write_text(json.dumps(modules))
    assert is_static_model(str(tmp_path / "model"))
    assert np.array_equal(load_static_embeddings(str(tmp_path / "model")).table, TABLE)


def test_mapping_and_weights_are_applied(tmp_path):
    mapping = np.arange(len(TABLE))[::-1].copy() // 2
    weights = np.linspace(0.5, 2, len(TABLE)).astype(np.float32)
    make_model2vec(tmp_path / "model", mapping=mapping, weights=weights)
    expected = TABLE[mapping] * weights[:, None]
    assert np.allclose(load_static_embeddings(str(tmp_path / "model")).table, expected)


@pytest.mark.parametrize("dtype", [np.float16, np.int8])
def test_small_number_types_become_float32(dtype, tmp_path):
    make_model2vec(tmp_path / "model", (TABLE * 8).astype(dtype))
    static = load_static_embeddings(str(tmp_path / "model"))
    assert static.table.dtype == np.float32
    assert np.array_equal(static.table, (TABLE * 8).astype(dtype).astype(np.float32))


def test_other_names_are_not_static(tmp_path):
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}')
    for name in (str(tmp_path / "bert"), str(tmp_path / "missing"), "built-in", "no-one/has-this", "a b/c?d", "a/b/c"):
        assert not is_static_model(name)


def test_a_cached_hub_id_is_found_without_a_download(tmp_path, monkeypatch):
    snapshot = tmp_path / "models--some--static" / "snapshots" / ("0" * 40)
    make_model2vec(snapshot)
    (tmp_path / "models--some--static" / "refs").mkdir()
    (tmp_path / "models--some--static" / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.file_download.HF_HUB_CACHE", str(tmp_path), raising=False)
    monkeypatch.chdir(tmp_path)
    assert is_static_model("some/static")
    assert np.array_equal(load_static_embeddings("some/static").table, TABLE)


DAMAGE = {
    "one axis": (lambda folder: save_file({"embeddings": TABLE[0]}, folder / "model.safetensors"), "shape"),
    "too few rows": (lambda folder: save_file({"embeddings": TABLE[:3]}, folder / "model.safetensors"), "3 vectors"),
    "other name": (lambda folder: save_file({"weight": TABLE}, folder / "model.safetensors"), "embeddings"),
    "not finite": (lambda folder: save_file({"embeddings": TABLE * np.inf}, folder / "model.safetensors"), "finite"),
    "mapping": (lambda folder: make_model2vec(folder, mapping=np.full(len(TABLE), len(TABLE))), "mapping"),
    "fraction mapping": (lambda folder: make_model2vec(folder, mapping=np.full(len(TABLE), 0.5)), "mapping"),
    "weights": (lambda folder: make_model2vec(folder, weights=np.ones(3, np.float32)), "weights of shape"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
    "cut": (lambda folder: (folder / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{"), "cannot be read"),
    "bad tokenizer": (lambda folder: (folder / "tokenizer.json").write_text('{"model": 1}'), "cannot be read"),
    "list tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("[]"), "cannot be read"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_folder_is_a_model_error(name, tmp_path):
    damage, expected = DAMAGE[name]
    make_model2vec(tmp_path / "model")
    damage(tmp_path / "model")
    with pytest.raises(ModelError, match=expected):
        load_static_embeddings(str(tmp_path / "model"))


def test_modules_after_the_embeddings_are_refused(tmp_path):
    make_static_embedding(tmp_path / "model", extra="sentence_transformers.models.Dense")
    with pytest.raises(ModelError, match="Dense after StaticEmbedding"):
        load_static_embeddings(str(tmp_path / "model"))


def test_wordllama_is_read_from_its_wheel_without_an_import(tmp_path, monkeypatch):
    make_wordllama(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    static = load_static_embeddings("wordllama")
    assert np.array_equal(static.table, TABLE)
    assert "wordllama" not in sys.modules, "its __init__ imports much"
    (tmp_path / "wordllama" / "weights" / "l2_supercat_256.safetensors").unlink()
    with pytest.raises(ModelError, match=r"another version.*pip install 'wordllama=="):
        load_static_embeddings("wordllama")


def test_a_missing_wheel_is_named_with_its_command(monkeypatch):
    monkeypatch.setattr("bidr.models.static_embeddings.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[static\]'"):
        load_static_embeddings("wordllama")


def test_a_piece_is_the_sum_of_the_case_with_the_fewest_tokens():
    static = StaticEmbeddings(make_tokenizer(), TABLE)
    night, pearls, oslo, unknown = embed_pieces(static, ["night", "pearls", "oslo", "zzz"])
    assert np.array_equal(night, TABLE[VOCABULARY["night"]])
    assert np.allclose(pearls, TABLE[VOCABULARY["pearl"]] + TABLE[VOCABULARY["##s"]])
    assert np.array_equal(oslo, TABLE[VOCABULARY["Oslo"]]), "lower-case Oslo has no token"
    assert not unknown.any()


def test_a_pretrained_bag_has_their_directions_and_idf_times_the_root_of_their_length(tmp_path):
    tokenizer, static = train_wordpieces(TEXTS, 200), StaticEmbeddings(make_tokenizer(), TABLE)
    store = tokenize(TEXTS, tokenizer, tmp_path / "tokens", max_length=64, source="made")
    encoder = BagOfTokensEncoder.create_pretrained(tokenizer, store, static, seed=0)
    pieces, sums = list_pieces(tokenizer), embed_pieces(static, list_pieces(tokenizer))
    known = np.flatnonzero(sums.any(axis=1))
    assert {"night", "pearl"} <= {pieces[row] for row in known}
    assert len(known) < len(pieces), "some pieces are unknown to the pretrained model"
    lengths = np.linalg.norm(sums[known], axis=1)
    directions, weights = encoder.directions.detach().numpy(), encoder.weights.detach().numpy()
    assert np.allclose(directions[known], sums[known] / lengths[:, None], atol=1e-5)
    assert np.allclose(np.linalg.norm(directions, axis=1), 1, atol=1e-5)
    idf = compute_idf(store, len(pieces))
    expected = idf[known] * np.sqrt(lengths)
    assert np.allclose(weights[known] / expected, weights[known[0]] / expected[0], rtol=1e-4)
    assert np.isclose(weights.mean(), idf.mean(), rtol=1e-4)
    again = BagOfTokensEncoder.create_pretrained(tokenizer, store, static, seed=0)
    assert torch.equal(again.directions, encoder.directions)


def test_the_pretrained_tokenizer_keeps_its_rows(tmp_path):
    static = StaticEmbeddings(make_tokenizer(), TABLE)
    store = tokenize(TEXTS, static.tokenizer, tmp_path / "tokens", max_length=64, source="made")
    encoder = BagOfTokensEncoder.create_pretrained(static.tokenizer, store, static, seed=0)
    expected = TABLE / np.linalg.norm(TABLE, axis=1, keepdims=True)
    assert np.allclose(encoder.directions.detach().numpy(), expected, atol=1e-5)


def test_sentence_transformers_reads_the_same_vectors(tmp_path):
    from sentence_transformers import SentenceTransformer

    make_static_embedding(Path(tmp_path / "model"))
    static = load_static_embeddings(str(tmp_path / "model"))
    ids = static.tokenizer.encode("pearls in oysters").ids
    mean = static.table[ids].mean(axis=0)
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(["pearls in oysters"])[0]
    assert np.allclose(theirs, mean / np.linalg.norm(mean), atol=1e-5)
