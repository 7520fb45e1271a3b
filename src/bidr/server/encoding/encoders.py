"""Encoders of a model, run by ONNX Runtime, by torch, or by numpy (static encoders), on the same tokens."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from bidr.errors import MissingExtraError, ModelError
from bidr.export.onnx_files import (
    EXPORT_AGAIN,
    FULL_PRECISION,
    INT8,
    TOKENIZER,
    list_external_data,
    load_manifest,
    read_file,
    verify_file,
)
from bidr.models.encoder_interface import ArrayEncoder, TextEncoder
from bidr.models.onnx_encoder import group_by_length, pad_tokens
from bidr.models.saved_model import Model
from bidr.tokenization.token_store import TokenArray, Tokens
from bidr.tokenization.tokenizer import TextTokenizer
from bidr.utils.array_types import Floats

if TYPE_CHECKING:
    from bidr.models.trainable_encoder import Encoder

Runner = Callable[[Tokens], Floats]


class EncoderInput(NamedTuple):
    """Encoder, prompt and length limit for texts of one role."""

    encoder: str
    prompt: str
    max_length: int


class RoleInputs(NamedTuple):
    """Inputs of a role for codes and for vectors."""

    codes: EncoderInput
    vectors: EncoderInput


class Encoders:
    """The encoders of a model by name, and their inputs for queries and documents."""

    def __init__(
        self, runners: dict[str, Runner], tokenizers: dict[EncoderInput, TextTokenizer], roles: dict[str, RoleInputs]
    ):
        self._runners, self._tokenizers, self.roles = runners, tokenizers, roles

    def tokenize(self, encoder_input: EncoderInput, texts: list[str]) -> Tokens:
        return self._tokenizers[encoder_input]([encoder_input.prompt + text for text in texts])

    def encode(self, encoder_input: EncoderInput, texts: list[str]) -> Floats:
        """Encode each text to a vector."""
        return self._runners[encoder_input.encoder](self.tokenize(encoder_input, texts))


def open_encoders(model: Model) -> Encoders:
    """Open the encoders of a saved model in inference mode."""
    encoders: dict[str, TextEncoder] = {"sparse": model.sparse, "dense": model.dense}
    if model.query is not None:
        encoders["query"] = model.query
    roles = {}
    for role, length in (("queries", model.text.query_length), ("documents", model.text.document_length)):
        inputs = []
        for name in ("sparse", "dense"):
            encoder_name = "query" if role == "queries" and model.unified else name
            prompts = encoders[encoder_name].prompts
            prompt = prompts.query if role == "queries" else prompts.document
            inputs.append(EncoderInput(encoder_name, prompt, min(length, encoders[encoder_name].max_length)))
        roles[role] = RoleInputs(*inputs)
    runners: dict[str, Runner] = {name: _make_runner(encoder) for name, encoder in encoders.items()}
    tokenizers = {
        encoder_input: encoders[encoder_input.encoder].get_tokenizer(encoder_input.max_length)
        for inputs in roles.values()
        for encoder_input in inputs
    }
    return Encoders(runners, tokenizers, roles)


def open_index_encoders(encoder: TextEncoder, query_prompt: str, document_prompt: str, max_length: int) -> Encoders:
    """Use one encoder for codes and vectors of queries and documents."""
    roles, name = {}, "vectors"
    for role, prompt in (("queries", query_prompt), ("documents", document_prompt)):
        encoder_input = EncoderInput(name, prompt, min(max_length, encoder.max_length))
        roles[role] = RoleInputs(encoder_input, encoder_input)
    tokenizers = {inputs.vectors: encoder.get_tokenizer(inputs.vectors.max_length) for inputs in roles.values()}
    return Encoders({name: _make_runner(encoder)}, tokenizers, roles)


def _make_runner(encoder: TextEncoder) -> Runner:
    if isinstance(encoder, ArrayEncoder):
        return encoder.encode
    import torch

    module = cast("Encoder", encoder).eval()

    def run(tokens: Tokens) -> Floats:
        with torch.inference_mode():
            vectors: Floats = module.encode(tokens).float().numpy()
        return vectors

    return run


def load_onnx_encoders(folder: Path, int8: dict[str, bool], threads: int) -> Encoders:
    """Load ONNX encoders; `int8` says for queries and documents whether to use the int8 files.

    Verifies the checksum of each file; raises ModelError if one was modified or cannot be used. Imports no torch.
    """
    from tokenizers import Tokenizer

    manifest = load_manifest(folder)
    runners: dict[str, Runner] = {}
    roles, tokenizers = {}, {}
    for role in ("queries", "documents"):
        file = INT8 if int8[role] else FULL_PRECISION
        inputs = []
        for side in ("codes", "vectors"):
            entry = manifest[role][side]
            encoder_input = EncoderInput(f"{entry['encoder']}/{file}", entry["prompt"], entry["max_length"])
            inputs.append(encoder_input)
            pieces = read_file(folder, manifest, entry["encoder"], TOKENIZER)
            with _report_unusable(folder / entry["encoder"]):
                if encoder_input.encoder not in runners:
                    graph = _load_graph(folder, manifest, entry["encoder"], file)
                    runners[encoder_input.encoder] = _make_onnx_runner(graph, pieces, threads)
                if encoder_input not in tokenizers:
                    tokenizer = Tokenizer.from_str(pieces.decode("utf-8"))
                    tokenizers[encoder_input] = TextTokenizer(tokenizer, encoder_input.max_length)
        roles[role] = RoleInputs(*inputs)
    return Encoders(runners, tokenizers, roles)


@contextmanager
def _report_unusable(folder: Path) -> Iterator[None]:
    """Raise ModelError for what ONNX Runtime and tokenizers raise for files of wrong content."""
    try:
        yield
    except (ModelError, MissingExtraError, KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # tokenizers panics beside Exception
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"{folder} cannot be used ({reason}); {EXPORT_AGAIN}") from error


def _load_graph(folder: Path, manifest: dict[str, Any], encoder: str, file: str) -> bytes | str:
    """Return the verified graph, or its path if the weights are in separate files."""
    external_files = list_external_data(manifest, encoder, file)
    if not external_files:
        return read_file(folder, manifest, encoder, file)
    paths = [verify_file(folder, manifest, encoder, name) for name in (file, *external_files)]
    return str(paths[0])


def _make_onnx_runner(graph: bytes | str, tokenizer: bytes, threads: int) -> Runner:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session: Any = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    pad_id = int(json.loads(tokenizer)["padding"]["pad_id"])

    def run(tokens: Tokens) -> Floats:
        rows = TokenArray(tokens)
        out: Floats | None = None
        for batch_rows in group_by_length(rows.get_lengths()):
            ids, mask = pad_tokens(rows.get_batch(batch_rows), pad_id)
            vectors: Floats = session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
            if out is None:
                out = np.empty((len(rows), vectors.shape[1]), dtype=np.float32)
            out[batch_rows] = vectors
        assert out is not None
        return out

    return run
