"""Small texts and encoders for indexes that are built of texts and a pretrained encoder."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from sample_encoders import WORDS
from sample_static import TABLE, make_model2vec, make_tokenizer

from bidr.data.dataset import Dataset
from bidr.data.types import Document

ENCODER = "encoder"


def make_documents(count: int = 300, seed: int = 0) -> list[Document]:
    random = np.random.default_rng(seed)
    return [
        Document(
            f"d{row}",
            " ".join(random.choice(WORDS, 2)),
            " ".join(random.choice(WORDS, int(random.integers(5, 12)))),
            {"year": 2000 + row % 10},
        )
        for row in range(count)
    ]


def make_dataset(count: int = 300) -> Dataset:
    return Dataset.from_records("made", make_documents(count))


def make_encoder(folder: Path, seed: int | None = None) -> Path:
    """A model2vec folder; seed: other vectors of the same tokens."""
    table = TABLE if seed is None else np.random.default_rng(seed).standard_normal(TABLE.shape).astype(np.float32)
    return make_model2vec(folder, table)


def write_beir(folder: Path, documents: list[Document]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        {"_id": one.id, "title": one.title, "text": one.text, "metadata": dict(one.attributes or {})}
        for one in documents
    ]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def make_onnx(folder: Path, *, output: str = "last_hidden_state", extra_input: str | None = None) -> Path:
    """A graph that looks up token vectors, in the layout of sentence-transformers' onnx/model.onnx."""
    (folder / "onnx").mkdir(parents=True)
    int64, float32 = TensorProto.INT64, TensorProto.FLOAT
    inputs = [
        helper.make_tensor_value_info(name, int64, ["batch", "length"])
        for name in ("input_ids", "attention_mask", *([extra_input] if extra_input else []))
    ]
    outputs = [helper.make_tensor_value_info(output, float32, ["batch", "length", TABLE.shape[1]])]
    nodes = [helper.make_node("Gather", ["table", "input_ids"], [output])]
    graph = helper.make_graph(nodes, "lookup", inputs, outputs, [numpy_helper.from_array(TABLE, "table")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, str(folder / "onnx" / "model.onnx"))
    make_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def shorten_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learn codes in a few steps from a few passages."""
    from bidr.pipeline import passages
    from bidr.training.config import CodesOnlyConfig, TrainConfig

    frozen = CodesOnlyConfig(steps=8, others=64, dev_questions=20, measured=1)
    monkeypatch.setattr(passages, "PASSAGES", 200)
    monkeypatch.setattr(passages, "TrainConfig", partial(TrainConfig, frozen=frozen))
