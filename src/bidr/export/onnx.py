"""Encoders as ONNX files, for programs without torch; each is compared with the encoder that it came from."""

import contextlib
import importlib
import logging
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from bidr.errors import ConfigError, MissingExtraError, ModelError
from bidr.export.onnx_check import Checked, Role, check
from bidr.export.onnx_files import ABOUT, FORMAT, INT8, TOKENIZER, WHOLE, describe_files
from bidr.models.auto import load_encoder
from bidr.models.bag_of_tokens import BagOfTokensEncoder
from bidr.models.corpus_encoding import hash_weights
from bidr.models.encoder import Encoder
from bidr.models.saved_model import Model
from bidr.models.transformer import TransformerEncoder
from bidr.tokenization.tokenizer import TextTokenizer
from bidr.tokenization.tokenizer import fingerprint as tokenizer_fingerprint
from bidr.utils.files import storage_errors, write_signed_json
from bidr.utils.progress import say

INPUTS, OUTPUT = ("input_ids", "attention_mask"), "vectors"
MOST_IN_ONE_FILE = 1_900_000_000  # a protobuf ends at 2 GiB: larger weights go into a file of their own


class Exported(NamedTuple):
    """What an export left in its folder."""

    folder: Path
    about: dict[str, Any]
    """The content of onnx.json: which encoder reads queries and documents, with which prompt and length."""
    checks: list[Checked]


def export_onnx(model: Model | Path | str, out: Path | str, *, int8: bool = False) -> Exported:
    """Write each distinct encoder of a model as ONNX, pooling, projection and normalisation in the graph.

    The folder appears when every file has given the vectors that the encoder itself gives, and not before.
    int8: smaller and faster files besides, with 8-bit weights; how near they come is in the result, and not bounded.
    """
    _need_packages()
    out = Path(out).absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} holds something already; choose another folder or empty it")
    model = model if isinstance(model, Model) else Model(model)
    encoders, names = _distinct(model)
    roles = _roles(model, names)
    aside = out.with_name(f".{out.name}.new")
    with storage_errors(out):
        try:
            shutil.rmtree(aside, ignore_errors=True)
            checks = []
            for name, encoder in encoders.items():
                own = [role for role in roles if role.encoder == name]
                checks += _export(encoder.eval(), aside / name, own, int8)
            about = _about(model, encoders, roles, checks)
            for name in encoders:
                about["encoders"][name]["checksums"] = describe_files(aside / name)
            write_signed_json(aside / ABOUT, about)
            if out.exists():
                out.rmdir()
            aside.rename(out)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return Exported(out, about, checks)


def _export(encoder: Encoder, folder: Path, roles: list[Role], int8: bool) -> list[Checked]:
    folder.mkdir(parents=True)
    name = folder.name
    say(f"{name}: export to ONNX, then compare")
    graph, pad_id = _graph(encoder)
    _padding(encoder.tokenizer, pad_id).save(str(folder / TOKENIZER))
    _trace(graph, folder / WHOLE, name)
    found = [check(encoder, folder / WHOLE, roles, exact=True)]
    if int8:
        _quantise(folder / WHOLE, folder / INT8)
        found.append(check(encoder, folder / INT8, roles, exact=False))
    return found


class TransformerGraph(nn.Module):
    """A transformer with everything that follows it."""

    def __init__(self, encoder: TransformerEncoder) -> None:
        super().__init__()
        self.model = encoder.model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        vectors: Tensor = self.model({"input_ids": input_ids, "attention_mask": attention_mask})["sentence_embedding"]
        return vectors


class BagGraph(nn.Module):
    """The bag over a rectangle. A row of which nothing is left is the unknown word piece, as in `TextTokenizer`."""

    table: Tensor
    filler: Tensor

    def __init__(self, encoder: BagOfTokensEncoder) -> None:
        super().__init__()
        table = (encoder.directions * encoder.weights.unsqueeze(1)).detach()
        self.register_buffer("table", table)
        # A copy: a table that is used twice stays in the int8 file whole as well.
        self.register_buffer("filler", table[TextTokenizer(encoder.tokenizer, encoder.max_length).filler].clone())

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        pieces = functional.embedding(input_ids, self.table)
        sums = (pieces * attention_mask.unsqueeze(2).to(pieces.dtype)).sum(1)
        empty = attention_mask.sum(1, keepdim=True) == 0
        return functional.normalize(torch.where(empty, self.filler, sums), dim=1)


def _graph(encoder: Encoder) -> tuple[nn.Module, int]:
    """What to export, and the token that fills short rows."""
    if isinstance(encoder, BagOfTokensEncoder):
        return BagGraph(encoder).eval(), 0
    if isinstance(encoder, TransformerEncoder):
        return TransformerGraph(encoder).eval(), encoder.pad_id
    raise ModelError(
        f"an encoder of kind {type(encoder).__name__} cannot be exported to ONNX; a bag or a transformer can"
    )


def _trace(graph: nn.Module, path: Path, name: str) -> None:
    ids = torch.ones((3, 7), dtype=torch.int64)
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    weights = sum(value.numel() * value.element_size() for value in graph.state_dict().values())
    try:
        with _quiet():
            torch.onnx.export(
                graph,
                (ids, mask),
                path,
                input_names=list(INPUTS),
                output_names=[OUTPUT],
                dynamic_shapes={one: {0: "batch", 1: "length"} for one in INPUTS},
                dynamo=True,
                external_data=weights > MOST_IN_ONE_FILE,
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        cause = error.__cause__ or error  # the exporter's own words are advice in colours
        reason = (str(cause).splitlines() or [type(cause).__name__])[0]
        raise ModelError(
            f"the encoder {name} cannot be exported to ONNX by torch {torch.__version__}: {reason}"
        ) from error


def _quantise(source: Path, target: Path) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    whole = onnx.load(source)
    # Shapes that the exporter noted before it folded a transposed weight contradict those of the graph.
    del whole.graph.value_info[:]
    large = source.with_name(f"{source.name}.data").exists()
    # With one scale for a whole matrix MiniLM's cosines were .94, with one a column .99. The 7 bits are onnxruntime's
    # advice against overflow on processors without VNNI; with a scale a column they changed nothing that we could see.
    # What a matrix that narrows (the second of a feed-forward pair) reads has a few numbers far above the others, which
    # leave the rest few of the 256 steps: kept whole, MiniLM's mean cosine was .996 instead of .993, for less speed.
    shapes = {each.name: each.dims for each in whole.graph.initializer}
    products = (node for node in whole.graph.node if node.op_type == "MatMul" and node.input[1] in shapes)
    narrowing = [node.name for node in products if shapes[node.input[1]][0] > shapes[node.input[1]][-1]]
    fine: dict[str, Any] = {"weight_type": QuantType.QInt8, "per_channel": True, "reduce_range": True}
    with _quiet():
        quantize_dynamic(whole, target, use_external_data_format=large, nodes_to_exclude=narrowing, **fine)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporters log packages that are not needed, names that they change back, and what they raise anyway."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _padding(tokenizer: Tokenizer, pad_id: int) -> Tokenizer:
    """A copy that fills short rows; where texts are cut is left to the caller, as it differs between the roles."""
    copy: Tokenizer = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.enable_padding(pad_id=pad_id, pad_token=copy.id_to_token(pad_id) or "")
    return copy


def _distinct(model: Model) -> tuple[dict[str, Encoder], dict[str, str]]:
    """The encoders that differ, by the name of their folder; and for every folder whose encoder it has."""
    parts = ("sparse", "dense", "query") if model.unified else ("sparse", "dense")
    named = {part: load_encoder(model.folder / part) for part in parts}
    first: dict[tuple[str, str], str] = {}
    names = {
        name: first.setdefault((hash_weights(encoder), tokenizer_fingerprint(encoder.tokenizer)), name)
        for name, encoder in named.items()
    }
    return {name: named[name] for name in dict.fromkeys(names.values())}, names


def _roles(model: Model, names: dict[str, str]) -> list[Role]:
    """What reads queries and documents, for the codes and for the vectors."""
    text, sides = model.text, {"codes": "sparse", "vectors": "dense"}
    roles = []
    for side, own in sides.items():
        asked = "query" if model.unified else own
        reader = getattr(model, asked)
        length = min(text.query_length, reader.max_length)
        roles.append(Role("queries", side, names[asked], reader.prompts.query, length))
        reader = getattr(model, own)
        length = min(text.document_length, reader.max_length)
        roles.append(Role("documents", side, names[own], reader.prompts.document, length))
    return roles


def _about(model: Model, encoders: dict[str, Encoder], roles: list[Role], checks: list[Checked]) -> dict[str, Any]:
    from bidr._version import __version__

    about: dict[str, Any] = {
        "format": FORMAT,
        "model": model.fingerprint,
        "versions": {"bidr": __version__, "torch": torch.__version__},
        "titles": model.text.titles,
        "inputs": list(INPUTS),
        "output": OUTPUT,
        "encoders": {
            name: {
                "dimensions": encoder.dim,
                "normalised": encoder.normalized,
                "files": {one.file: one.figures() for one in checks if one.encoder == name},
            }
            for name, encoder in encoders.items()
        },
        "queries": {},
        "documents": {},
    }
    for role in roles:
        about[role.reads][role.side] = {"encoder": role.encoder, "prompt": role.prompt, "max_length": role.max_length}
    return about


def _need_packages() -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingExtraError("the export to ONNX", package, "onnx") from error
