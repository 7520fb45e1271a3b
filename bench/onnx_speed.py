"""How fast exported encoders are on this CPU beside the model itself, and how near, on the texts of a data set.

bidr export --model runs/a --out DIR --onnx-int8
python bench/onnx_speed.py --model runs/a --onnx DIR --data FOLDER
"""

import json
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median

import numpy as np
import torch
import tyro

from bidr.data.dataset import load
from bidr.export.onnx_check import OnnxEncoder
from bidr.export.onnx_files import FULL_PRECISION, INT8, MANIFEST
from bidr.models.corpus_encoding import encode_texts
from bidr.models.saved_model import Model
from bidr.models.trainable_encoder import Encoder

Encode = Callable[[list[str]], np.ndarray]
BATCH = 32


def main(model: Path, onnx: Path, data: str, questions: int = 200, documents: int = 320) -> None:
    """The encoders of the vectors: questions one at a time, documents in batches; medians, after one to warm up.

    Time is that of the processor, with one thread, so that what else runs shows little.
    """
    torch.set_num_threads(1)
    opened, dataset = Model(model), load(data)
    about = json.loads((onnx / MANIFEST).read_text())
    asked, read = about["queries"]["vectors"], about["documents"]["vectors"]
    queries = [[query.text] for query in dataset.split("dev").queries[:questions]]
    texts = list(islice(dataset.corpus.iter_texts(opened.text.titles), documents))
    batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    whole = _timed(_model(opened.query or opened.dense, asked), queries), _timed(_model(opened.dense, read), batches)
    rows = [("torch", *whole)]
    for name, file in (("ONNX fp32", FULL_PRECISION), ("ONNX int8", INT8)):
        if (onnx / asked["encoder"] / file).exists():
            rows.append((name, _timed(_file(onnx, asked, file), queries), _timed(_file(onnx, read, file), batches)))
    print("program    question, ms  documents/s  cosine with torch: questions  documents (means)")
    for name, (ms, vectors), (batch_ms, document_vectors) in rows:
        near = [float((a * b).sum(1).mean()) for a, b in ((vectors, whole[0][1]), (document_vectors, whole[1][1]))]
        print(f"{name:<9}  {ms:>12.2f}  {1000 * BATCH / batch_ms:>11.1f}  {near[0]:>28.4f}  {near[1]:>9.4f}")


def _model(encoder: Encoder, how: dict) -> Encode:
    return partial(encode_texts, encoder, prompt=how["prompt"], max_length=how["max_length"])


def _file(onnx: Path, how: dict, file: str) -> Encode:
    encode = OnnxEncoder(onnx / how["encoder"] / file, threads=1).encode
    return partial(encode, prompt=how["prompt"], max_length=how["max_length"])


def _timed(encode: Encode, batches: list[list[str]]) -> tuple[float, np.ndarray]:
    """Median milliseconds of a batch, and unit vectors of all texts."""
    encode(batches[0])
    taken, found = [], []
    for batch in batches:
        start = time.process_time()
        found.append(encode(batch))
        taken.append(1000 * (time.process_time() - start))
    vectors = np.concatenate(found)
    return median(taken), vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


if __name__ == "__main__":
    tyro.cli(main)
