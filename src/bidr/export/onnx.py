"""Export encoders to ONNX, and verify their vectors."""

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
from bidr.export.onnx_check import EncoderRole, OnnxCheck, check_vectors
from bidr.export.onnx_files import FORMAT, FULL_PRECISION, INT8, MANIFEST, TOKENIZER, describe_files
from bidr.models.auto import load_encoder
from bidr.models.bag_of_tokens import BagOfTokensEncoder
from bidr.models.corpus_encoding import hash_weights
from bidr.models.huggingface_encoder import TransformerEncoder
from bidr.models.saved_model import Model
from bidr.models.trainable_encoder import Encoder
from bidr.tokenization.tokenizer import TextTokenizer
from bidr.tokenization.tokenizer import fingerprint as tokenizer_fingerprint
from bidr.utils.files import storage_errors, write_signed_json
from bidr.utils.progress import say

INPUTS, OUTPUT = ("input_ids", "attention_mask"), "vectors"
MAX_FILE_BYTES = 1_900_000_000  # protobuf limit of 2 GiB: larger weights go to external data


class OnnxExport(NamedTuple):
    """An exported model."""

    folder: Path
    about: dict[str, Any]
    """The content of onnx.json: the encoders of queries and of documents, with prompt and length."""
    checks: list[OnnxCheck]


def export_onnx(model: Model | Path | str, out: Path | str, *, int8: bool = False) -> OnnxExport:
    """Write each distinct encoder of a model as ONNX, with pooling, projection and normalization in the graph.

    The folder is created once every file has reproduced the vectors of its encoder.

    Args:
        int8: also write files with 8-bit weights, whose error is reported and not bounded.
    """
    _import_packages()
    out = Path(out).absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} holds something already; choose another folder or empty it")
    model = model if isinstance(model, Model) else Model(model)
    encoders, names = _deduplicate_encoders(model)
    roles = _list_roles(model, names)
    staging = out.with_name(f".{out.name}.new")
    with storage_errors(out):
        try:
            shutil.rmtree(staging, ignore_errors=True)
            checks = []
            for name, encoder in encoders.items():
                encoder_roles = [role for role in roles if role.encoder == name]
                checks += _export(encoder.eval(), staging / name, encoder_roles, int8)
            manifest = _build_manifest(model, encoders, roles, checks)
            for name in encoders:
                manifest["encoders"][name]["checksums"] = describe_files(staging / name)
            write_signed_json(staging / MANIFEST, manifest)
            if out.exists():
                out.rmdir()
            staging.rename(out)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return OnnxExport(out, manifest, checks)


def _export(encoder: Encoder, folder: Path, roles: list[EncoderRole], int8: bool) -> list[OnnxCheck]:
    folder.mkdir(parents=True)
    name = folder.name
    say(f"{name}: export to ONNX, then compare")
    graph, pad_id = _wrap_encoder(encoder)
    _enable_padding(encoder.tokenizer, pad_id).save(str(folder / TOKENIZER))
    _export_graph(graph, folder / FULL_PRECISION, name)
    checks = [check_vectors(encoder, folder / FULL_PRECISION, roles, exact=True)]
    if int8:
        _quantize(folder / FULL_PRECISION, folder / INT8)
        checks.append(check_vectors(encoder, folder / INT8, roles, exact=False))
    return checks


class TransformerGraph(nn.Module):
    """A transformer with pooling, projection and normalization."""

    def __init__(self, encoder: TransformerEncoder) -> None:
        super().__init__()
        self.model = encoder.model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        vectors: Tensor = self.model({"input_ids": input_ids, "attention_mask": attention_mask})["sentence_embedding"]
        return vectors


class BagGraph(nn.Module):
    """The bag-of-tokens encoder over padded rows. An empty row is the unknown word piece, as in `TextTokenizer`."""

    table: Tensor
    filler: Tensor

    def __init__(self, encoder: BagOfTokensEncoder) -> None:
        super().__init__()
        table = (encoder.directions * encoder.weights.unsqueeze(1)).detach()
        self.register_buffer("table", table)
        # A copy: a table that is used twice would stay in the int8 file in full precision too.
        self.register_buffer("filler", table[TextTokenizer(encoder.tokenizer, encoder.max_length).filler].clone())

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        pieces = functional.embedding(input_ids, self.table)
        sums = (pieces * attention_mask.unsqueeze(2).to(pieces.dtype)).sum(1)
        empty = attention_mask.sum(1, keepdim=True) == 0
        return functional.normalize(torch.where(empty, self.filler, sums), dim=1)


def _wrap_encoder(encoder: Encoder) -> tuple[nn.Module, int]:
    """Return the module to export, and the padding token."""
    if isinstance(encoder, BagOfTokensEncoder):
        return BagGraph(encoder).eval(), 0
    if isinstance(encoder, TransformerEncoder):
        return TransformerGraph(encoder).eval(), encoder.pad_id
    raise ModelError(
        f"an encoder of kind {type(encoder).__name__} cannot be exported to ONNX; a bag or a transformer can"
    )


def _export_graph(graph: nn.Module, path: Path, name: str) -> None:
    ids = torch.ones((3, 7), dtype=torch.int64)
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    weights = sum(value.numel() * value.element_size() for value in graph.state_dict().values())
    try:
        with _suppress_logs():
            torch.onnx.export(
                graph,
                (ids, mask),
                path,
                input_names=list(INPUTS),
                output_names=[OUTPUT],
                dynamic_shapes={name: {0: "batch", 1: "length"} for name in INPUTS},
                dynamo=True,
                external_data=weights > MAX_FILE_BYTES,
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        cause = error.__cause__ or error  # the message of the exporter itself is colored advice
        reason = (str(cause).splitlines() or [type(cause).__name__])[0]
        raise ModelError(
            f"the encoder {name} cannot be exported to ONNX by torch {torch.__version__}: {reason}"
        ) from error


def _quantize(source: Path, target: Path) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    network = onnx.load(source)
    # Shapes that the exporter noted before it folded a transposed weight contradict those of the graph.
    del network.graph.value_info[:]
    large = source.with_name(f"{source.name}.data").exists()
    # With one scale for a whole matrix MiniLM's cosines were .94, with one a column .99. The 7 bits are onnxruntime's
    # advice against overflow on processors without VNNI; with a scale a column they changed nothing that we could see.
    # The inputs of a narrowing matrix (the second of a feed-forward pair) have a few outliers, which leave the other
    # numbers few of the 256 steps. In full precision MiniLM's mean cosine was .996 instead of .993, but slower.
    shapes = {tensor.name: tensor.dims for tensor in network.graph.initializer}
    products = (node for node in network.graph.node if node.op_type == "MatMul" and node.input[1] in shapes)
    narrowing = [node.name for node in products if shapes[node.input[1]][0] > shapes[node.input[1]][-1]]
    fine: dict[str, Any] = {"weight_type": QuantType.QInt8, "per_channel": True, "reduce_range": True}
    with _suppress_logs():
        quantize_dynamic(network, target, use_external_data_format=large, nodes_to_exclude=narrowing, **fine)


@contextlib.contextmanager
def _suppress_logs() -> Iterator[None]:
    """Suppress logs of the exporters about optional packages and about errors that they raise anyway."""
    previous_level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous_level)


def _enable_padding(tokenizer: Tokenizer, pad_id: int) -> Tokenizer:
    """Return a copy of a tokenizer that pads; truncation is left to the caller, since it differs between roles."""
    copy: Tokenizer = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.enable_padding(pad_id=pad_id, pad_token=copy.id_to_token(pad_id) or "")
    return copy


def _deduplicate_encoders(model: Model) -> tuple[dict[str, Encoder], dict[str, str]]:
    """Return the distinct encoders by folder name, and for each encoder the folder that has it."""
    parts = ("sparse", "dense", "query") if model.unified else ("sparse", "dense")
    named = {part: load_encoder(model.folder / part) for part in parts}
    first: dict[tuple[str, str], str] = {}
    names = {
        name: first.setdefault((hash_weights(encoder), tokenizer_fingerprint(encoder.tokenizer)), name)
        for name, encoder in named.items()
    }
    return {name: named[name] for name in dict.fromkeys(names.values())}, names


def _list_roles(model: Model, names: dict[str, str]) -> list[EncoderRole]:
    """List the encoders of queries and documents, for the codes and for the vectors."""
    text, sides = model.text, {"codes": "sparse", "vectors": "dense"}
    roles = []
    for side, document_encoder in sides.items():
        query_encoder = "query" if model.unified else document_encoder
        reader = getattr(model, query_encoder)
        length = min(text.query_length, reader.max_length)
        roles.append(EncoderRole("queries", side, names[query_encoder], reader.prompts.query, length))
        reader = getattr(model, document_encoder)
        length = min(text.document_length, reader.max_length)
        roles.append(EncoderRole("documents", side, names[document_encoder], reader.prompts.document, length))
    return roles


def _build_manifest(
    model: Model, encoders: dict[str, Encoder], roles: list[EncoderRole], checks: list[OnnxCheck]
) -> dict[str, Any]:
    from bidr._version import __version__

    manifest: dict[str, Any] = {
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
                "files": {check.file: check.to_json() for check in checks if check.encoder == name},
            }
            for name, encoder in encoders.items()
        },
        "queries": {},
        "documents": {},
    }
    for role in roles:
        manifest[role.reads][role.side] = {
            "encoder": role.encoder,
            "prompt": role.prompt,
            "max_length": role.max_length,
        }
    return manifest


def _import_packages() -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingExtraError("the export to ONNX", package, "onnx") from error
