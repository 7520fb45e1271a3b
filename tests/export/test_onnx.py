import json
import sys
from pathlib import Path

import numpy as np
import pytest
from sample_encoders import TEXTS, bag, bert, close, sentence_bert

from bidr.errors import ConfigError, MissingExtraError, ModelError
from bidr.export import onnx_check
from bidr.export.onnx import BagGraph, export_onnx
from bidr.models.corpus_encoding import encode_texts
from bidr.models.huggingface_encoder import TransformerEncoder
from bidr.models.saved_model import Model, ModelParts, TextSettings, save_model
from bidr.quantization.codebooks import Codebooks

pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")

TEXT = TextSettings(titles="prepend", query_length=7, document_length=20)
LONG = "sorting pearls in oysters by night " * 8
QUESTIONS = [*TEXTS, LONG]


@pytest.fixture(autouse=True, scope="module")
def offline():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


def saved(root: Path, sparse: Path, dense: Path, query: Path | None, dim: int) -> Model:
    books = np.random.default_rng(0).standard_normal((4, 16, dim // 4)).astype(np.float32)
    codebooks = Codebooks(np.eye(dim, dtype=np.float32), books)
    parts = ModelParts(sparse=sparse, dense=dense, query=query, codebooks=codebooks)
    (root / "model").mkdir()
    return save_model(root / "model", parts, TEXT, candidates=5, training={})


@pytest.fixture(scope="module")
def bags(tmp_path_factory) -> Model:
    """Three encoders that differ."""
    root = tmp_path_factory.mktemp("bags")
    for seed, name in enumerate(("sparse", "dense", "query")):
        bag(root / "tokens", seed=seed)[0].save(root / name)
    return saved(root, root / "sparse", root / "dense", root / "query", 8)


def one_transformer(root: Path, **options) -> Model:
    """One encoder for everything, as the conventional way leaves it.

    Its tokenizer.json cuts and pads, as MiniLM's does; neither may show.
    """
    prompts = {"query_prompt": "query: ", "document_prompt": "document: "}
    TransformerEncoder.open(str(bert(root / "bert", truncation=4)), **prompts, **options).save(root / "encoder")
    return saved(root, *[root / "encoder"] * 3, options.get("projection", 32))


def without_bidr(folder: Path, how: dict, texts: list[str], file: str = "model.onnx") -> np.ndarray:
    """The ten lines of docs/how-to/export.md."""
    import onnxruntime
    from tokenizers import Tokenizer

    encoder = folder / how["encoder"]
    session = onnxruntime.InferenceSession(encoder / file, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(encoder / "tokenizer.json"))
    tokenizer.enable_truncation(how["max_length"])
    rows = tokenizer.encode_batch([how["prompt"] + text for text in texts])
    ids = np.array([row.ids for row in rows], dtype=np.int64)
    mask = np.array([row.attention_mask for row in rows], dtype=np.int64)
    return session.run(None, {"input_ids": ids, "attention_mask": mask})[0]


def assert_same_as_the_model(model: Model, folder: Path) -> None:
    about = json.loads((folder / "onnx.json").read_text())
    assert about["model"] == model.fingerprint
    for side, mine in zip(("codes", "vectors"), model.encode_queries(QUESTIONS), strict=True):
        assert close(without_bidr(folder, about["queries"][side], QUESTIONS), mine), side
    for side, encoder in {"codes": model.sparse, "vectors": model.dense}.items():
        mine = encode_texts(encoder, QUESTIONS, prompt=encoder.prompts.document, max_length=TEXT.document_length)
        assert close(without_bidr(folder, about["documents"][side], QUESTIONS), mine), side


def test_bag_encoders_give_the_same_vectors_in_onnx(bags, tmp_path):
    done = export_onnx(bags, tmp_path / "onnx", int8=True)
    assert sorted(path.name for path in done.folder.iterdir()) == ["dense", "onnx.json", "query", "sparse"]
    assert_same_as_the_model(bags, done.folder)
    exact = [one for one in done.checks if one.file == "model.onnx"]
    assert len(exact) == 3
    assert max(one.difference for one in exact) < 1e-6
    small = [one for one in done.checks if one.file == "model_int8.onnx"]
    assert all(0.9 < one.cosine < 1 - 1e-7 for one in small), "8 bits show, and do not hurt much"


@pytest.mark.parametrize(
    "options",
    [
        {"pooling": "cls", "projection": 8, "normalise": True},
        {"pooling": "mean"},
        pytest.param({"pooling": "max"}, marks=pytest.mark.slow),
        pytest.param({"pooling": "lasttoken"}, marks=pytest.mark.slow),
    ],
    ids=lambda options: options["pooling"],
)
def test_a_transformer_gives_the_same_vectors_in_onnx(tmp_path, options):
    """One file, as the three folders hold the same encoder; pooling, projection and normalisation are in it."""
    model = one_transformer(tmp_path, **options)
    done = export_onnx(model, tmp_path / "onnx", int8=True)
    assert_same_as_the_model(model, done.folder)
    assert json.loads((done.folder / "sparse" / "tokenizer.json").read_text())["truncation"] is None
    how = done.about["queries"]["vectors"]
    assert how == {"encoder": "sparse", "prompt": "query: ", "max_length": TEXT.query_length}
    assert done.about["encoders"]["sparse"]["normalised"] is options.get("normalise", False)
    whole, small = done.checks
    assert (whole.file, small.file) == ("model.onnx", "model_int8.onnx")
    assert small.bytes < whole.bytes
    assert 0.9 < small.cosine < 1 - 1e-7, "8 bits show, and do not hurt much"
    assert done.about["encoders"]["sparse"]["files"]["model_int8.onnx"]["cosine"] == small.cosine


@pytest.mark.slow
@pytest.mark.parametrize("family", ["Roberta", "MPNet", "ModernBert", "Qwen3"])
def test_other_families_give_the_same_vectors_in_onnx(tmp_path, family):
    """Positions counted from the padding, relative or rotated; attention to what went before alone."""
    import transformers

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    sizes |= {"num_key_value_heads": 4, "head_dim": 8} if family == "Qwen3" else {}
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    config = getattr(transformers, f"{family}Config")(vocab_size=40, max_position_embeddings=40, **sizes, **special)
    folder = bert(tmp_path / "other")
    getattr(transformers, f"{family}Model")(config).save_pretrained(folder)
    TransformerEncoder.open(str(folder), pooling="lasttoken").save(tmp_path / "encoder")
    model = saved(tmp_path, *[tmp_path / "encoder"] * 3, 32)
    assert_same_as_the_model(model, export_onnx(model, tmp_path / "onnx").folder)


def test_export_errors_name_the_cause(bags, tmp_path, monkeypatch):
    monkeypatch.setattr(BagGraph, "forward", lambda self, input_ids, attention_mask: attention_mask.nonzero().item())
    with pytest.raises(ModelError, match="the encoder sparse cannot be exported to ONNX by torch") as error:
        export_onnx(bags, tmp_path / "onnx")
    assert "\x1b" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_different_vectors_are_refused_without_leaving_files(bags, tmp_path, monkeypatch):
    real = onnx_check.OnnxEncoder.encode
    monkeypatch.setattr(onnx_check.OnnxEncoder, "encode", lambda *args: real(*args) + 2e-4)
    with pytest.raises(ModelError, match=r"gives other vectors as ONNX: largest difference 0\.0002"):
        export_onnx(bags, tmp_path / "onnx")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(onnx_check.OnnxEncoder, "encode", lambda *args: real(*args) * np.nan)
    with pytest.raises(ModelError, match="nan"):
        export_onnx(bags, tmp_path / "onnx")
    assert list(tmp_path.iterdir()) == []


def test_generated_texts_have_many_lengths_and_some_are_truncated(bags, tmp_path):
    encoders = {"bag": bags.dense, "bert": TransformerEncoder.open(str(sentence_bert(tmp_path / "m")))}
    for encoder in encoders.values():
        texts = onnx_check.generate_texts(encoder.tokenizer, 20)
        lengths = {len(encoder.get_tokenizer(20)([text]).ids) for text in texts}
        assert len(lengths) >= 4
        assert 20 in lengths
        assert max(len(encoder.get_tokenizer(1_000)([text]).ids) for text in texts) > 20


def test_existing_files_are_not_overwritten(bags, tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds something already"):
        export_onnx(bags, tmp_path)
    with pytest.raises(ConfigError, match="holds something already"):
        export_onnx(bags, tmp_path / "note.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


def test_a_missing_extra_names_the_package_to_install(bags, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=r"'onnxscript'; in a checkout of bidr: pip install '\.\[onnx\]'"):
        export_onnx(bags, tmp_path / "onnx")
    assert list(tmp_path.iterdir()) == []
