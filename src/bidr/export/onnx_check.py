"""Compare the vectors of an ONNX file with those of its encoder, read as by a program without bidr."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from bidr.errors import ModelError
from bidr.models.corpus_encoding import encode_texts
from bidr.models.trainable_encoder import Encoder
from bidr.utils.array_types import Floats

TOLERANCE = 1e-4
LENGTHS = (0, 1, 2, 3, 5, 9, 17, 33, 65, 129, 257)
MAX_TOKENS = 512


class EncoderRole(NamedTuple):
    """An input of an encoder: queries or documents, for codes or vectors."""

    reads: str
    """'queries' or 'documents'."""
    side: str
    """'codes' or 'vectors'."""
    encoder: str
    prompt: str
    max_length: int


class OnnxCheck(NamedTuple):
    """Error of the vectors of a file against those of its encoder."""

    encoder: str
    file: str
    bytes: int
    texts: int
    difference: float
    """Largest difference in any dimension, relative to the length of the vector."""
    cosine: float
    """Smallest cosine."""

    def to_json(self) -> dict[str, float]:
        return {"bytes": self.bytes, "texts": self.texts, "difference": self.difference, "cosine": self.cosine}


class OnnxEncoder:
    """Encoder from an ONNX file and its tokenizer; needs numpy, tokenizers and onnxruntime only."""

    def __init__(self, path: Path, threads: int = 0) -> None:
        """threads: 0: one per core."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.tokenizer: Tokenizer = Tokenizer.from_file(str(path.parent / "tokenizer.json"))

    def encode(self, texts: list[str], prompt: str, max_length: int) -> Floats:
        self.tokenizer.enable_truncation(max_length)
        rows = self.tokenizer.encode_batch([prompt + text for text in texts])
        ids = np.array([row.ids for row in rows], dtype=np.int64)
        mask = np.array([row.attention_mask for row in rows], dtype=np.int64)
        vectors: Floats = self.session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
        return vectors


def check_vectors(encoder: Encoder, path: Path, roles: list[EncoderRole], *, exact: bool) -> OnnxCheck:
    """Compare vectors of random texts of many lengths, in a batch and singly; with `exact`, refuse differences."""
    name, exported = path.parent.name, OnnxEncoder(path)
    difference, cosine, count = 0.0, 1.0, 0
    for prompt, length in sorted({(role.prompt, role.max_length) for role in roles}):
        texts = generate_texts(encoder.tokenizer, length)
        expected = encode_texts(encoder, texts, prompt=prompt, max_length=length)
        batch = exported.encode(texts, prompt, length)
        singly = [exported.encode([text], prompt, length) for text in texts]
        for actual in (batch, np.concatenate(singly)):
            max_difference, min_cosine = compare(actual, expected)
            difference = float(np.maximum(difference, max_difference))
            cosine = float(np.minimum(cosine, min_cosine))
        count += len(texts)
    if exact and not (difference <= TOLERANCE and cosine >= 1 - TOLERANCE):
        raise ModelError(
            f"the encoder {name} gives other vectors as ONNX: largest difference {difference:.2g}, smallest cosine "
            f"{cosine:.6f}, expected {TOLERANCE:g} or less; nothing was written; try another version of torch or onnx"
        )
    return OnnxCheck(name, path.name, _measure_size(path), count, difference, cosine)


def compare(actual: Floats, expected: Floats) -> tuple[float, float]:
    """Return the largest difference relative to the vector length, and the smallest cosine; NaN propagates."""
    lengths = np.maximum(np.linalg.norm(expected, axis=1), 1e-12)
    others = np.maximum(np.linalg.norm(actual, axis=1), 1e-12)
    cosines = (actual * expected).sum(axis=1) / lengths / others
    return float((np.abs(actual - expected).max(axis=1) / lengths).max()), float(cosines.min())


def generate_texts(tokenizer: Tokenizer, max_length: int) -> list[str]:
    """Return texts of random tokens, from empty to longer than the limit."""
    random = np.random.default_rng(0)
    size = tokenizer.get_vocab_size()
    longest = min(max_length, MAX_TOKENS)
    lengths = [length for length in LENGTHS if length < longest] + [longest + 8]
    return [tokenizer.decode(random.integers(0, size, length).tolist()) for length in lengths]


def _measure_size(path: Path) -> int:
    """Return the bytes of the file and of its external weights."""
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))
