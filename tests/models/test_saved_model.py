import json
import shutil
import threading
from dataclasses import replace

import numpy as np
import pytest
from sample_encoders import TEXTS, bag, bert, close

from bidr.errors import ModelError
from bidr.models.corpus_encoding import encode_texts
from bidr.models.huggingface_encoder import TransformerEncoder
from bidr.models.saved_model import Model, ModelParts, TextSettings, read_model_json, save_model
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.learned_ivf import LearnedIvf

TEXT = TextSettings(titles="prepend", query_length=16, document_length=64)


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Three different bag encoders, saved, and codebooks."""
    root = tmp_path_factory.mktemp("parts")
    for seed, name in enumerate(("sparse", "dense", "query")):
        bag(root / "tokens", seed=seed)[0].save(root / name)
    random = np.random.default_rng(0)
    codebooks = Codebooks(np.eye(8, dtype=np.float32), random.standard_normal((4, 16, 2)).astype(np.float32))
    return ModelParts(sparse=root / "sparse", dense=root / "dense", query=root / "query", codebooks=codebooks)


@pytest.fixture
def saved(tmp_path, parts):
    folder = tmp_path / "model"
    folder.mkdir()
    save_model(folder, parts, TEXT, candidates=50, training={"note": "made"})
    return folder


def queries(encoder) -> np.ndarray:
    return encode_texts(encoder, TEXTS, prompt="", max_length=16)


def test_a_model_comes_back_as_it_was_saved(saved, parts):
    model = Model(saved)
    assert (model.text, model.candidates, model.unified, model.training) == (TEXT, 50, True, {"note": "made"})
    for found, given in zip(model.codebooks, parts.codebooks, strict=True):
        assert np.array_equal(found, given)
    for name in ("sparse", "dense", "query"):
        source = getattr(parts, name)
        for path in source.rglob("*.safetensors"):
            assert (saved / name / path.relative_to(source)).read_bytes() == path.read_bytes()
    assert sorted(path.name for path in saved.iterdir()) == ["dense", "model.json", "query", "sparse"]


def test_a_unified_model_encodes_a_query_once_and_for_both_sides(saved):
    model = Model(saved)
    for_codes, for_vectors = model.encode_queries(TEXTS)
    assert for_codes is for_vectors
    assert close(for_codes, queries(model.query))
    assert not close(for_codes, queries(model.dense))


def test_without_a_query_encoder_each_side_has_its_own(saved, parts):
    """Also where there was one before: it must not linger."""
    model = save_model(saved, replace(parts, query=None), TEXT, candidates=5, training={})
    assert not model.unified
    assert not (saved / "query").exists()
    for_codes, for_vectors = model.encode_queries(TEXTS)
    assert close(for_codes, queries(model.sparse))
    assert close(for_vectors, queries(model.dense))
    assert not close(for_codes, for_vectors)


def test_two_transformers_encode_a_query_in_parallel(tmp_path, parts, monkeypatch):
    TransformerEncoder.open(str(bert(tmp_path / "bert"))).save(tmp_path / "encoder")
    (tmp_path / "m").mkdir()
    both = replace(parts, sparse=tmp_path / "encoder", dense=tmp_path / "encoder", query=None)
    model = save_model(tmp_path / "m", both, TEXT, candidates=5, training={})
    expected = queries(model.sparse)
    meeting, encode = threading.Barrier(2), Model._encode

    def encode_together(self, encoder, texts):
        meeting.wait(timeout=60)
        return encode(self, encoder, texts)

    monkeypatch.setattr(Model, "_encode", encode_together)
    assert all(np.array_equal(vectors, expected) for vectors in model.encode_queries(TEXTS))


def test_queries_get_the_models_prompt_and_length(tmp_path, parts):
    TransformerEncoder.open(str(bert(tmp_path / "bert")), query_prompt="query: ").save(tmp_path / "encoder")
    (tmp_path / "m").mkdir()
    made = replace(parts, dense=tmp_path / "encoder", query=None)
    model = save_model(tmp_path / "m", made, replace(TEXT, query_length=6), candidates=5, training={})
    expected = encode_texts(model.dense, ["query: " + text for text in TEXTS], prompt="", max_length=6)
    assert close(model.encode_queries(TEXTS)[1], expected)


def test_the_fingerprint_is_that_of_weights_codewords_and_text_settings(tmp_path, parts):
    def made(parts=parts, text=TEXT, candidates=5) -> str:
        shutil.rmtree(tmp_path / "m", ignore_errors=True)
        (tmp_path / "m").mkdir()
        return save_model(tmp_path / "m", parts, text, candidates=candidates, training={}).fingerprint

    base = made()
    assert made() == made(candidates=6) == base
    moved = parts.codebooks.centroids.copy()
    moved[0, 0, 0] += 1e-3
    others = [
        made(text=replace(TEXT, titles="ignore")),
        made(text=replace(TEXT, query_length=17)),
        made(text=replace(TEXT, document_length=65)),
        made(replace(parts, sparse=parts.dense)),
        made(replace(parts, dense=parts.sparse)),
        made(replace(parts, query=parts.sparse)),
        made(replace(parts, query=None)),
        made(replace(parts, codebooks=parts.codebooks._replace(centroids=moved))),
    ]
    assert len({base, *others}) == 1 + len(others)


def test_lists_that_were_learned_are_part_of_the_model(tmp_path, saved, parts):
    """And of its fingerprint; a model without them has none, also where there were some before."""
    random = np.random.default_rng(1)
    lists = LearnedIvf(*random.standard_normal((2, 5, 8)).astype(np.float32))
    without = Model(saved)
    assert without.lists is None
    model = save_model(saved, replace(parts, lists=lists), TEXT, candidates=50, training={})
    for found, given in zip(model.lists, lists, strict=True):
        assert np.array_equal(found, given)
    assert model.fingerprint != without.fingerprint
    assert json.loads((saved / "model.json").read_text())["lists"] == 5
    damage(saved / "sparse" / "lists.safetensors")
    with pytest.raises(ModelError, match="restore"):
        Model(saved)
    again = save_model(saved, parts, TEXT, candidates=50, training={})
    assert again.lists is None
    assert again.fingerprint == without.fingerprint


def damage(path, at: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "name",
    [
        "sparse/quantizer.safetensors",
        "sparse/0_StaticEmbedding/model.safetensors",
        "dense/0_StaticEmbedding/model.safetensors",
        "dense/0_StaticEmbedding/tokenizer.json",
        "query/0_StaticEmbedding/model.safetensors",
        "dense/modules.json",
    ],
)
def test_damaged_and_missing_files_are_model_errors(saved, name):
    damage(saved / name)
    with pytest.raises(ModelError, match="restore"):
        Model(saved)
    (saved / name).unlink()
    with pytest.raises(ModelError, match="restore"):
        Model(saved)


def test_no_model_and_half_a_model_are_model_errors(saved, tmp_path):
    with pytest.raises(ModelError, match=r"has no model\.json"):
        Model(tmp_path / "nowhere")
    (saved / "model.json").unlink()
    with pytest.raises(ModelError, match=r"has no model\.json"):
        Model(saved)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '"x"', "\x00", '{"format": 1, "text": {"titles": "ignore"}}'])
def test_a_model_json_that_says_nothing_is_a_model_error(saved, content):
    (saved / "model.json").write_text(content)
    with pytest.raises(ModelError, match=r"model\.json cannot be read"):
        Model(saved)


@pytest.mark.parametrize("flip", [0x01, 0x02, 0x10, 0x20, 0x80, 0xFF])
def test_any_changed_byte_of_model_json_is_a_model_error(saved, flip):
    path = saved / "model.json"
    content = path.read_bytes()
    assert read_model_json(saved)["candidates"] == 50
    for offset in range(len(content)):
        changed = bytearray(content)
        changed[offset] ^= flip
        path.write_bytes(changed)
        with pytest.raises(ModelError, match=r"model\.json"):
            read_model_json(saved)
    for size in range(0, len(content), 7):
        path.write_bytes(content[:size])
        with pytest.raises(ModelError, match=r"model\.json"):
            read_model_json(saved)


def test_a_model_json_without_a_checksum_opens(saved):
    """As it was written before there was one."""
    about = json.loads((saved / "model.json").read_text())
    del about["xxh3"]
    (saved / "model.json").write_text(json.dumps(about, indent=2) + "\n")
    assert Model(saved).candidates == 50
    about["candidatez"] = about.pop("candidates")
    (saved / "model.json").write_text(json.dumps(about))
    with pytest.raises(ModelError, match="checksum"):
        Model(saved)


def test_another_format_is_named_whatever_else_it_holds(saved):
    """A later version will have other fields: what is wrong is the version, not the file."""
    (saved / "model.json").write_text(json.dumps({"format": 99, "something": "new"}))
    with pytest.raises(ModelError, match="format 99, expected 1"):
        Model(saved)


def test_saving_that_is_cut_off_leaves_no_model_or_a_whole_one(saved, parts, monkeypatch):
    def full(path, value):
        raise OSError("stop")

    monkeypatch.setattr("bidr.models.saved_model.write_signed_json", full)
    with pytest.raises(OSError, match="stop"):
        save_model(saved, replace(parts, dense=parts.sparse), TEXT, candidates=5, training={})
    monkeypatch.undo()
    with pytest.raises(ModelError, match=r"has no model\.json"):
        Model(saved)
    assert save_model(saved, parts, TEXT, candidates=5, training={}).text == TEXT
    assert not (saved / ".new").exists()
