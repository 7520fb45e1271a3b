"""Third stage: a cross-encoder reads query and document together and orders the best hits (extra `onnx`).

A folder with `model.onnx` (or `onnx/model.onnx`) and `tokenizer.json`, as sentence-transformers exports cross-encoders:
inputs input_ids, attention_mask and perhaps token_type_ids, the first output one logit for each pair.
"""

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bidr.errors import ConfigError, MissingExtraError, ModelError
from bidr.search.types import SearchHit, SearchResult
from bidr.utils.array_types import Floats
from bidr.utils.cpu_and_heap import count_available_cpus

MODEL_FILES, TOKENIZER_FILE, CONFIG_FILE = ("model.onnx", "onnx/model.onnx"), "tokenizer.json", "config.json"
MAX_TOKENS, BATCH_PAIRS = 512, 16
INPUTS = {"input_ids", "attention_mask", "token_type_ids"}


class CrossEncoder:
    """Scores pairs of query and text. Thread-safe.

    Args:
        folder: ONNX model and tokenizer.
        threads: of one batch; None: all CPUs.
        max_tokens: of query and text together; longer texts are cut.
    """

    def __init__(self, folder: Path | str, *, threads: int | None = None, max_tokens: int = MAX_TOKENS) -> None:
        self.folder = Path(folder)
        self._session, self._tokenizer = _open_session(self.folder, threads or count_available_cpus()), None
        self._inputs = [tensor.name for tensor in self._session.get_inputs()]
        if not {"input_ids", "attention_mask"} <= set(self._inputs) <= INPUTS:
            raise ModelError(
                f"{self.folder}: the ONNX model takes {', '.join(self._inputs)}, expected input_ids, attention_mask "
                "and perhaps token_type_ids; export a cross-encoder"
            )
        self._tokenizer = _open_tokenizer(self.folder, max_tokens)
        self._lock = threading.Lock()

    def score(self, query: str, texts: Sequence[str], deadline: float = np.inf) -> Floats:
        """Return the score of each text, in batches until `deadline` (time.monotonic()); NaN for those left out."""
        scores = np.full(len(texts), np.nan, dtype=np.float32)
        for start in range(0, len(texts), BATCH_PAIRS):
            if time.monotonic() >= deadline:
                break
            part = texts[start : start + BATCH_PAIRS]
            scores[start : start + len(part)] = self._score_batch(query, part)
        return scores

    def _score_batch(self, query: str, texts: Sequence[str]) -> Floats:
        tokenizer: Any = self._tokenizer
        encoded = tokenizer.encode_batch([(query, text) for text in texts])
        width = max(len(pair.ids) for pair in encoded)
        columns = {
            "input_ids": [pair.ids for pair in encoded],
            "attention_mask": [pair.attention_mask for pair in encoded],
            "token_type_ids": [pair.type_ids for pair in encoded],
        }
        feeds = {name: np.zeros((len(encoded), width), dtype=np.int64) for name in self._inputs}
        for name, feed in feeds.items():
            for row, values in zip(feed, columns[name], strict=True):
                row[: len(values)] = values
        with self._lock:  # one batch at a time uses all threads
            logits = np.asarray(self._session.run(None, feeds)[0], dtype=np.float32)
        if logits.size != len(texts) or not np.isfinite(logits).all():
            raise ModelError(
                f"{self.folder}: the model gave an output of shape {logits.shape} for {len(texts)} pairs, expected one "
                "finite number for each"
            )
        return logits.reshape(-1)


def rerank_result(
    encoder: CrossEncoder, query: str, result: SearchResult, count: int, deadline: float = np.inf
) -> SearchResult:
    """Order the best `count` hits by a cross-encoder; those without a score in time, and the others, follow."""
    texts = [_compose_text(hit) for hit in result[:count]]
    order, scores = order_by_scores(encoder.score(query, texts, deadline))
    hits = [result[place]._replace(rerank_score=scores[place]) for place in order] + list(result[count:])
    return SearchResult([hit._replace(rank=rank) for rank, hit in enumerate(hits, 1)], result.timings)


def order_by_scores(scores: Floats) -> tuple[list[int], list[float | None]]:
    """Return places by falling score, those without one last, and the scores."""
    order = np.argsort(np.where(np.isnan(scores), np.inf, -scores), kind="stable")
    return order.tolist(), [None if np.isnan(score) else float(score) for score in scores]


def _compose_text(hit: SearchHit) -> str:
    if hit.document is None:
        raise ConfigError("rerank: the index has no texts, which a cross-encoder reads; build it with texts")
    return compose_passage(hit.document.title, hit.document.text)


def compose_passage(title: str | None, text: str | None) -> str:
    """Return title and text as one passage."""
    return " ".join(part for part in (title, text) if part)


def _open_session(folder: Path, threads: int) -> Any:
    path = next((folder / name for name in MODEL_FILES if (folder / name).is_file()), None)
    if path is None:
        raise ModelError(f"{folder}: no {' or '.join(MODEL_FILES)}; give the folder of an exported cross-encoder")
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("a cross-encoder", "onnxruntime", "onnx") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of a type of its own for each cause
        raise ModelError(f"{path}: cannot be opened ({error}); export the model again") from error


def _open_tokenizer(folder: Path, max_tokens: int) -> Any:
    from tokenizers import Tokenizer

    path = folder / TOKENIZER_FILE
    if not path.is_file():
        raise ModelError(f"{folder}: no {TOKENIZER_FILE}; give the folder of an exported cross-encoder")
    try:
        tokenizer = Tokenizer.from_file(str(path))
        limit = (
            json.loads((folder / CONFIG_FILE).read_text()).get("max_position_embeddings", max_tokens)
            if (folder / CONFIG_FILE).is_file()
            else max_tokens
        )
    except Exception as error:  # tokenizers raises plain Exception for a bad file
        raise ModelError(f"{path}: cannot be read ({error}); export the model again") from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(min(int(limit), max_tokens), strategy="only_second")
    return tokenizer
