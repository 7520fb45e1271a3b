"""Whether an ONNX file gives the vectors of the encoder that it came from, read as a program without bidr reads it."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from bidr.errors import ModelError
from bidr.models.corpus_encoding import encode_texts
from bidr.models.encoder import Encoder
from bidr.utils.array_types import Floats

TOLERANCE = 1e-4
LENGTHS = (0, 1, 2, 3, 5, 9, 17, 33, 65, 129, 257)
MOST_TOKENS = 512


class Role(NamedTuple):
    """One thing that an encoder reads."""

    reads: str
    """'queries' or 'documents'."""
    side: str
    """'codes' or 'vectors': what its vectors are compared with."""
    encoder: str
    prompt: str
    max_length: int


class Checked(NamedTuple):
    """How far a file's vectors are from the encoder's own."""

    encoder: str
    file: str
    bytes: int
    texts: int
    difference: float
    """The largest in any dimension, as a share of the vector's length."""
    cosine: float
    """The smallest."""

    def figures(self) -> dict[str, float]:
        return {"bytes": self.bytes, "texts": self.texts, "difference": self.difference, "cosine": self.cosine}


class OnnxEncoder:
    """A file with the tokenizer beside it; numpy, tokenizers and onnxruntime are all it needs."""

    def __init__(self, path: Path, threads: int = 0) -> None:
        """threads: 0 takes one for each core."""
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


def check(encoder: Encoder, path: Path, roles: list[Role], *, exact: bool) -> Checked:
    """Compare on made texts of many lengths, together and one at a time; ModelError where they should be equal."""
    name, exported = path.parent.name, OnnxEncoder(path)
    difference, cosine, count = 0.0, 1.0, 0
    for prompt, length in sorted({(role.prompt, role.max_length) for role in roles}):
        texts = made_texts(encoder.tokenizer, length)
        wanted = encode_texts(encoder, texts, prompt=prompt, max_length=length)
        together = exported.encode(texts, prompt, length)
        singly = [exported.encode([text], prompt, length) for text in texts]
        for found in (together, np.concatenate(singly)):
            far, near = compare(found, wanted)
            difference, cosine = float(np.maximum(difference, far)), float(np.minimum(cosine, near))
        count += len(texts)
    if exact and not (difference <= TOLERANCE and cosine >= 1 - TOLERANCE):
        raise ModelError(
            f"the encoder {name} gives other vectors as ONNX: largest difference {difference:.2g}, smallest cosine "
            f"{cosine:.6f}, expected {TOLERANCE:g} or less; nothing was written; try another version of torch or onnx"
        )
    return Checked(name, path.name, _size(path), count, difference, cosine)


def compare(found: Floats, wanted: Floats) -> tuple[float, float]:
    """The largest difference as a share of the vector's length, and the smallest cosine; nan stays nan."""
    lengths = np.maximum(np.linalg.norm(wanted, axis=1), 1e-12)
    others = np.maximum(np.linalg.norm(found, axis=1), 1e-12)
    cosines = (found * wanted).sum(axis=1) / lengths / others
    return float((np.abs(found - wanted).max(axis=1) / lengths).max()), float(cosines.min())


def made_texts(tokenizer: Tokenizer, max_length: int) -> list[str]:
    """Texts of the tokenizer's own pieces: nothing, one piece, and more up to what will be cut."""
    random = np.random.default_rng(0)
    size = tokenizer.get_vocab_size()
    most = min(max_length, MOST_TOKENS)
    lengths = [length for length in LENGTHS if length < most] + [most + 8]
    return [tokenizer.decode(random.integers(0, size, length).tolist()) for length in lengths]


def _size(path: Path) -> int:
    """Of the file, and of its weights where they are beside it."""
    return sum(one.stat().st_size for one in path.parent.glob(f"{path.name}*"))
