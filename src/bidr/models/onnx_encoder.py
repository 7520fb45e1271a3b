"""Run encoders as ONNX graphs: exports of bidr, sentence-transformers, optimum and others."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash
from tokenizers import Tokenizer

from bidr.errors import MissingExtraError, ModelError
from bidr.models.encoder_interface import ArrayEncoder
from bidr.models.encoder_source import POOLING, EncoderFiles, read_json_object, read_modules, read_prompts
from bidr.tokenization.token_store import TokenArray, Tokens
from bidr.utils.array_types import Floats

TOKENS_PER_BATCH = 1_024  # the activations of larger batches do not fit into the CPU cache
MIN_LENGTH_RATIO = 0.8
"""Shortest row of a batch relative to its longest: padding of shorter rows costs more than another call."""
DEFAULT_MAX_LENGTH, UNLIMITED = 512, 1_000_000
_INPUTS = frozenset(["input_ids", "attention_mask", "token_type_ids", "position_ids"])
_POOLED, _TOKEN_VECTORS = ("sentence_embedding", "vectors"), ("last_hidden_state", "token_embeddings")
_MODES = ("mean", "cls", "max", "lasttoken")
Pool = Callable[[Floats, npt.NDArray[np.int64]], Floats]


class OnnxEncoder(ArrayEncoder):
    """An ONNX graph with its tokenizer; pooled as the folder says unless the graph does it (by default the mean)."""

    def __init__(self, files: EncoderFiles, threads: int = 0) -> None:
        """Open a graph. `threads`: of one call; 0: as many as there are CPUs."""
        assert files.graph is not None
        self.graph, folder = files.graph, files.folder
        try:
            self.tokenizer = Tokenizer.from_file(str(_find_tokenizer(files)))
            self._session = _open_session(self.graph, threads)
            self._check_inputs()
            self._output, self._pool = self._choose_output(folder)
            padding, pieces = self.tokenizer.padding or {}, self.tokenizer.get_vocab()
            self._pad_id = int(padding.get("pad_id", next((pieces[p] for p in ("[PAD]", "<pad>") if p in pieces), 0)))
            self.max_length, self.prompts = _read_max_length(folder, self.tokenizer), read_prompts(folder)
            self.normalized = any(kind == "Normalize" for kind, _ in read_modules(folder))
            probe = self.get_tokenizer(min(self.max_length, 16))(["a"])
            self.dim = int(self.encode(probe).shape[1])
        except (ModelError, MissingExtraError, KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # onnxruntime and tokenizers raise many kinds, and panic beside Exception
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ModelError(f"{self.graph}: cannot be used as an encoder ({reason}); export it again") from error

    def encode(self, tokens: Tokens) -> Floats:
        rows, out = TokenArray(tokens), np.empty((len(tokens.offsets) - 1, 0), dtype=np.float32)
        for batch_rows in group_by_length(rows.get_lengths()):
            ids, mask = pad_tokens(rows.get_batch(batch_rows), self._pad_id)
            vectors = self._pool(self._run(ids, mask), mask)
            if not out.shape[1]:
                out = np.empty((len(rows), vectors.shape[1]), dtype=np.float32)
            out[batch_rows] = vectors
        return out

    def hash_weights(self) -> str:
        return xxhash.xxh3_128_hexdigest(self.graph.read_bytes())

    def _run(self, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64]) -> Floats:
        arrays = {
            "input_ids": ids,
            "attention_mask": mask,
            "token_type_ids": np.zeros_like(ids),
            "position_ids": np.broadcast_to(np.arange(ids.shape[1]), ids.shape),
        }
        feed = {entry.name: arrays[entry.name] for entry in self._session.get_inputs()}
        vectors: Floats = np.asarray(self._session.run([self._output], feed)[0], dtype=np.float32)
        return vectors

    def _check_inputs(self) -> None:
        unknown = [entry.name for entry in self._session.get_inputs() if entry.name not in _INPUTS]
        if unknown:
            raise ModelError(
                f"{self.graph}: takes {', '.join(unknown)}, expected the inputs of a text encoder "
                f"({', '.join(sorted(_INPUTS))})"
            )

    def _choose_output(self, folder: Path) -> tuple[str, Pool]:
        """Choose the output to read, and how to pool it."""
        outputs = {entry.name: len(entry.shape) for entry in self._session.get_outputs()}
        pooled = [name for name in _POOLED if outputs.get(name) == 2]
        if len(outputs) == 1:
            pooled += [name for name, rank in outputs.items() if rank == 2]
        if pooled:
            return pooled[0], lambda vectors, mask: vectors
        token_vectors = [name for name in (*_TOKEN_VECTORS, *outputs) if outputs.get(name) == 3]
        if not token_vectors:
            raise ModelError(
                f"{self.graph}: outputs {', '.join(outputs)}, expected vectors of tokens ({_TOKEN_VECTORS[0]}) or of "
                f"texts ({_POOLED[0]})"
            )
        unknown = [kind for kind, _ in read_modules(folder) if kind not in ("Transformer", "Pooling", "Normalize")]
        if unknown:
            raise ModelError(
                f"{folder}: module {unknown[0]} after the graph, expected pooling and Normalize only; export the "
                "encoder with all its modules (bidr export --model, or optimum), or give its torch weights"
            )
        return token_vectors[0], _make_pooling(folder)


def _find_tokenizer(files: EncoderFiles) -> Path:
    assert files.graph is not None
    for folder in (files.folder, files.graph.parent):
        if (folder / "tokenizer.json").exists():
            return folder / "tokenizer.json"
    raise ModelError(f"{files.folder}: no tokenizer.json beside the ONNX graph; add the tokenizer of the encoder")


def _open_session(graph: Path, threads: int) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("an ONNX encoder", "onnxruntime", "onnx") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


def _read_max_length(folder: Path, tokenizer: Tokenizer) -> int:
    """Read the maximum length in tokens: of sentence-transformers, the tokenizer's settings, or its truncation."""
    limits = (
        read_json_object(folder / "sentence_bert_config.json").get("max_seq_length"),
        read_json_object(folder / "tokenizer_config.json").get("model_max_length"),
        (tokenizer.truncation or {}).get("max_length"),
    )
    valid = (int(limit) for limit in limits if isinstance(limit, int | float) and 0 < limit < UNLIMITED)
    return next(valid, DEFAULT_MAX_LENGTH)


def _make_pooling(folder: Path) -> Pool:
    """Make the pooling that the folder says; without settings the mean."""
    places = [path for kind, path in read_modules(folder) if kind == "Pooling"] or [folder / POOLING]
    config = read_json_object(places[0] / "config.json")
    named = config.get("pooling_mode")
    flagged = [
        mode for mode in _MODES if any(config.get(f"pooling_mode_{mode}{end}") for end in ("", "_token", "_tokens"))
    ]
    mode = named if isinstance(named, str) else next(iter(flagged), None)
    if mode is None and config:
        raise ModelError(f"{places[0]}: pooling {config!r}, expected one of {', '.join(_MODES)}")
    mode = mode or "mean"
    if mode not in _MODES:
        raise ModelError(f"{places[0]}: pooling {mode!r}, expected one of {', '.join(_MODES)}")

    def pool(vectors: Floats, mask: npt.NDArray[np.int64]) -> Floats:
        pooled: Floats
        if mode == "cls":
            pooled = vectors[:, 0]
        elif mode == "lasttoken":
            pooled = vectors[np.arange(len(vectors)), mask.sum(axis=1) - 1]
        elif mode == "max":
            pooled = np.where(mask[:, :, None] > 0, vectors, -np.inf).max(axis=1)
        else:
            weights = mask.astype(np.float32)[:, :, None]
            pooled = (vectors * weights).sum(axis=1) / weights.sum(axis=1)
        return pooled

    return pool


def group_by_length(lengths: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Yield rows of similar length, so that batches need little padding."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    for end in range(1, len(order) + 1):
        longest = int(lengths[order[start]])
        is_full = (end - start + 1) * longest > TOKENS_PER_BATCH
        if end == len(order) or is_full or lengths[order[end]] < MIN_LENGTH_RATIO * longest:
            yield order[start:end]
            start = end


def pad_tokens(tokens: Tokens, pad_id: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Pad rows to the longest one; return ids and attention mask."""
    lengths = np.diff(tokens.offsets)
    mask = np.arange(int(lengths.max())) < lengths[:, None]
    ids = np.full(mask.shape, pad_id, dtype=np.int64)
    ids[mask] = tokens.ids
    return ids, mask.astype(np.int64)
