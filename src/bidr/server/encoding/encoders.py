"""What runs an encoder: ONNX Runtime over exported files, or torch; both read tokens that are cut by one tokeniser."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from bidr.export.onnx_files import INT8, TOKENIZER, WHOLE, list_external_data, load_about, read_file, verify_file
from bidr.models.saved_model import Model
from bidr.models.static_encoder import StaticEncoder
from bidr.models.text_encoder import TextEncoder
from bidr.tokenization.token_store import TokenArray, Tokens
from bidr.tokenization.tokenizer import TextTokenizer
from bidr.utils.array_types import Floats

if TYPE_CHECKING:
    from bidr.models.encoder import Encoder

Runner = Callable[[Tokens], Floats]
TOKENS_AT_ONCE = 1_024  # beyond, what lies between two layers leaves the cache
SHORTEST = 0.8
"""A row may be so short beside the longest of its group: below, its padding costs more than another call."""


class EncoderInput(NamedTuple):
    """How texts of one role become vectors. Two with the same encoder, prompt and length are equal."""

    encoder: str
    prompt: str
    max_length: int


class RoleInputs(NamedTuple):
    """A role's reading for the codes, and for the vectors."""

    codes: EncoderInput
    vectors: EncoderInput


class Encoders:
    """The encoders of a model, by name, and what reads queries and documents."""

    def __init__(
        self, runners: dict[str, Runner], tokenisers: dict[EncoderInput, TextTokenizer], roles: dict[str, RoleInputs]
    ):
        self._runners, self._tokenisers, self.roles = runners, tokenisers, roles

    def tokens(self, reading: EncoderInput, texts: list[str]) -> Tokens:
        return self._tokenisers[reading]([reading.prompt + text for text in texts])

    def encode(self, reading: EncoderInput, texts: list[str]) -> Floats:
        """One vector a text."""
        return self._runners[reading.encoder](self.tokens(reading, texts))


def open_encoders(model: Model) -> Encoders:
    """The model as it is, in inference mode."""
    named: dict[str, TextEncoder] = {"sparse": model.sparse, "dense": model.dense}
    if model.query is not None:
        named["query"] = model.query
    roles = {}
    for role, length in (("queries", model.text.query_length), ("documents", model.text.document_length)):
        sides = []
        for name in ("sparse", "dense"):
            asked = "query" if role == "queries" and model.unified else name
            prompts = named[asked].prompts
            prompt = prompts.query if role == "queries" else prompts.document
            sides.append(EncoderInput(asked, prompt, min(length, named[asked].max_length)))
        roles[role] = RoleInputs(*sides)
    runners: dict[str, Runner] = {name: _torch_runner(encoder) for name, encoder in named.items()}
    tokenisers = {
        reading: named[reading.encoder].get_tokenizer(reading.max_length)
        for sides in roles.values()
        for reading in sides
    }
    return Encoders(runners, tokenisers, roles)


def _torch_runner(encoder: TextEncoder) -> Runner:
    if isinstance(encoder, StaticEncoder):
        return encoder.encode
    import torch

    module = cast("Encoder", encoder).eval()

    def run(tokens: Tokens) -> Floats:
        with torch.inference_mode():
            vectors: Floats = module.encode(tokens).float().numpy()
        return vectors

    return run


def load_onnx_encoders(folder: Path, int8: dict[str, bool], threads: int) -> Encoders:
    """Exported files; `int8` says for queries and documents whether the 8-bit files are taken. Loads no torch model.

    Each file is compared with its checksum before it is loaded; ModelError where it is not what was exported.
    """
    from tokenizers import Tokenizer

    about = load_about(folder)
    runners: dict[str, Runner] = {}
    roles, tokenisers = {}, {}
    for role in ("queries", "documents"):
        file = INT8 if int8[role] else WHOLE
        sides = []
        for side in ("codes", "vectors"):
            how = about[role][side]
            reading = EncoderInput(f"{how['encoder']}/{file}", how["prompt"], how["max_length"])
            sides.append(reading)
            pieces = read_file(folder, about, how["encoder"], TOKENIZER).decode("utf-8")
            if reading.encoder not in runners:
                graph = _load_graph(folder, about, how["encoder"], file)
                runners[reading.encoder] = _onnx_runner(graph, pieces, threads)
            if reading not in tokenisers:
                tokenisers[reading] = TextTokenizer(Tokenizer.from_str(pieces), reading.max_length)
        roles[role] = RoleInputs(*sides)
    return Encoders(runners, tokenisers, roles)


def _load_graph(folder: Path, about: dict[str, Any], encoder: str, file: str) -> bytes | str:
    """What ONNX Runtime opens: the very bytes that were compared, or the path where weights lie beside the graph."""
    beside = list_external_data(about, encoder, file)
    if not beside:
        return read_file(folder, about, encoder, file)
    paths = [verify_file(folder, about, encoder, name) for name in (file, *beside)]
    return str(paths[0])


def _onnx_runner(graph: bytes | str, tokenizer: str, threads: int) -> Runner:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session: Any = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    pad_id = int(json.loads(tokenizer)["padding"]["pad_id"])

    def run(tokens: Tokens) -> Floats:
        rows = TokenArray(tokens)
        out: Floats | None = None
        for places in groups(rows.get_lengths()):
            ids, mask = pad_tokens(rows.get_batch(places), pad_id)
            found: Floats = session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
            if out is None:
                out = np.empty((len(rows), found.shape[1]), dtype=np.float32)
            out[places] = found
        assert out is not None
        return out

    return run


def groups(lengths: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Places of rows that go through the encoder together: of like length, so that little of the work is padding."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    for place in range(1, len(order) + 1):
        longest = int(lengths[order[start]])
        full = (place - start + 1) * longest > TOKENS_AT_ONCE
        if place == len(order) or full or lengths[order[place]] < SHORTEST * longest:
            yield order[start:place]
            start = place


def pad_tokens(tokens: Tokens, pad_id: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Ragged rows filled up to the longest, and the mask of what is real."""
    lengths = np.diff(tokens.offsets)
    mask = np.arange(int(lengths.max())) < lengths[:, None]
    ids = np.full(mask.shape, pad_id, dtype=np.int64)
    ids[mask] = tokens.ids
    return ids, mask.astype(np.int64)
