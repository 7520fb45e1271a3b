"""A tiny cross-encoder: the score of a pair is the sum of the weights of its words."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = [f"w{number}" for number in range(40)]


def write_cross_encoder(folder: Path, outputs: int = 1, words: Sequence[str] = WORDS) -> Path:
    """Word number N weighs N; the query's words count nothing, as token types tell them apart."""
    folder.mkdir(parents=True)
    vocabulary = {"[UNK]": 0, "[SEP]": 1} | {word: 2 + number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A", pair="$A:0 [SEP]:0 $B:1", special_tokens=[("[SEP]", 1)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    weights = np.concatenate([[0, 0], np.arange(len(words))]).astype(np.float32)[:, None].repeat(outputs, axis=1)
    shape = ["batch", "length"]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, shape)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    nodes = [
        helper.make_node("Gather", ["weights", "input_ids"], ["embedded"]),
        helper.make_node("Mul", ["attention_mask", "token_type_ids"], ["mask"]),
        helper.make_node("Cast", ["mask"], ["as_float"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["as_float", "last"], ["wide"]),
        helper.make_node("Mul", ["embedded", "wide"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "middle"], ["logits"], keepdims=0),
    ]
    constants = {"weights": weights, "last": np.array([2]), "middle": np.array([1])}
    graph = helper.make_graph(
        nodes,
        "words",
        inputs,
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", outputs])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(folder / "model.onnx"))
    return folder
