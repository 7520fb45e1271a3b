"""Encoding service: queries of many requests in micro-batches, and added documents."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bidr.data.types import Document
from bidr.errors import BidrError, MissingExtraError
from bidr.index.live.view import LiveView
from bidr.index.storage.manifest import read_current
from bidr.models.encoder_interface import ArrayEncoder
from bidr.models.saved_model import Model
from bidr.models.static_encoder import MODULES
from bidr.pipeline.index_encoder import IndexEncoder, attach_encoder
from bidr.search.types import QueryVectors
from bidr.server.encoding.config import EncodingConfig
from bidr.server.encoding.encoders import EncoderInput, Encoders, load_onnx_encoders, open_encoders, open_index_encoders
from bidr.server.encoding.micro_batcher import MicroBatcher
from bidr.server.encoding.onnx_cache import export_cached
from bidr.server.encoding.quality_check import compare_encoders
from bidr.server.json_logs import log
from bidr.utils.array_types import Floats

QUEUE, DOCUMENTS_PER_BATCH = 128, 16


def open_query_service(model: Model, index: Path, encoding: EncodingConfig, queue: int) -> "QueryService":
    """Open the service with the fastest suitable encoders."""
    encoders, program = choose_encoders(model, index, encoding)
    log("encoding", program=program, batch=encoding.batch, parallel=encoding.parallel, threads=encoding.threads)
    service = QueryService(encoders, encoding, queue, program)
    service.encode_now(["the first text takes longest"])
    return service


def open_index_query_service(
    view: LiveView, encoder: str | None, encoding: EncodingConfig, queue: int
) -> "IndexQueryService":
    """Open the service of an index of vectors, with the given encoder or that which it records."""
    opened = attach_encoder(view, encoder, threads=encoding.threads)
    if not isinstance(opened.encoder, ArrayEncoder):
        import torch

        torch.set_num_threads(encoding.threads)
    program = type(opened.encoder).__name__
    log("encoding", program=program, batch=encoding.batch, parallel=encoding.parallel, threads=encoding.threads)
    service = IndexQueryService(opened, encoding, queue, program)
    service.encode_now(["the first text takes longest"])
    return service


def choose_encoders(model: Model, index: Path, encoding: EncodingConfig) -> tuple[Encoders, str]:
    """Choose encoders for the model and machine; return them with the name of their program."""
    if _has_static_encoders(model) and encoding.program in ("auto", "torch"):
        return open_encoders(model), "numpy"
    if encoding.program == "torch":
        return _open_torch(model, encoding), "torch"
    try:
        return _open_onnx(model, index, encoding)
    except (BidrError, ImportError) as error:
        if encoding.program != "auto":
            raise
        level = "info" if isinstance(error, MissingExtraError | ImportError) else "warning"
        log("no-onnx", level, why=str(error), instead="torch")
        return _open_torch(model, encoding), "torch"


class QueryService:
    """Encodes queries, micro-batched across requests, and documents. `batcher` reports to /metrics."""

    def __init__(self, encoders: Encoders, encoding: EncodingConfig, queue: int = QUEUE, program: str = "") -> None:
        self.encoders, self.program = encoders, program
        # Two pools: added documents must not delay queries.
        self._query_pool = ThreadPoolExecutor(encoding.parallel, "encode-codes")
        self._document_pool = ThreadPoolExecutor(encoding.parallel, "encode-documents")
        self.batcher = MicroBatcher(
            self.encode_now,
            parallel=encoding.parallel,
            max_batch=encoding.batch,
            wait=encoding.wait_ms / 1000,
            limit=queue,
            on_close=lambda: self._query_pool.shutdown(wait=False),
        )

    @property
    def waiting(self) -> int:
        """Number of texts that wait to be encoded."""
        return self.batcher.waiting

    async def encode(self, texts: list[str], deadline: float) -> QueryVectors:
        """Encode queries. `deadline` is of time.monotonic(); raises `Overloaded`, `DeadlineExceeded`."""
        return await self.batcher.encode(texts, deadline)

    def encode_documents(self, texts: list[str]) -> tuple[Floats, Floats]:
        """Encode documents for codes and vectors, with both encoders in parallel."""
        inputs = self.encoders.roles["documents"]
        if inputs.codes == inputs.vectors:
            vectors = self._submit(inputs.codes, texts)()
            return vectors, vectors
        collect_codes = self._submit(inputs.codes, texts)
        collect_vectors = self._submit(inputs.vectors, texts)
        return collect_codes(), collect_vectors()

    def close(self) -> None:
        self.batcher.close()  # waiting texts still need the pool
        self._document_pool.shutdown(wait=False)

    def encode_now(self, texts: list[str]) -> QueryVectors:
        """Encode queries on this thread, before all that wait."""
        inputs = self.encoders.roles["queries"]
        if inputs.codes == inputs.vectors:
            vectors = self.encoders.encode(inputs.codes, texts)
            return QueryVectors(vectors, vectors)
        codes = self._query_pool.submit(self.encoders.encode, inputs.codes, texts)
        vectors = self.encoders.encode(inputs.vectors, texts)
        return QueryVectors(codes.result(), vectors)

    def _submit(self, encoder_input: EncoderInput, texts: list[str]) -> Callable[[], Floats]:
        """Submit batches of similar text lengths; return a function that collects their vectors."""
        order = np.argsort([len(text) for text in texts], kind="stable")
        batches = np.array_split(order, max(1, -(-len(texts) // DOCUMENTS_PER_BATCH)))
        futures = [
            self._document_pool.submit(self.encoders.encode, encoder_input, [texts[row] for row in batch])
            for batch in batches
        ]

        def collect() -> Floats:
            batch_vectors = [future.result() for future in futures]
            vectors = np.empty((len(texts), batch_vectors[0].shape[1]), dtype=np.float32)
            for batch, rows in zip(batches, batch_vectors, strict=True):
                vectors[batch] = rows
            return vectors

        return collect


class IndexQueryService(QueryService):
    """Encodes texts for an index of vectors: one vector for codes and vectors."""

    def __init__(self, opened: IndexEncoder, encoding: EncodingConfig, queue: int = QUEUE, program: str = "") -> None:
        self._opened, reference = opened, opened.reference
        super().__init__(
            open_index_encoders(
                opened.encoder, reference.query_prompt, reference.document_prompt, reference.max_length
            ),
            encoding,
            queue,
            program,
        )

    def encode_records(self, documents: Sequence[Document]) -> Floats:
        """Encode documents, with titles as the index has them."""
        return self.encode_documents(self._opened.compose_texts(documents))[1]


def _has_static_encoders(model: Model) -> bool:
    """Whether both encoders are static: a sum of table rows gains nothing from ONNX Runtime."""
    return all((model.folder / part / MODULES[0]["path"]).exists() for part in ("sparse", "dense"))


def _open_torch(model: Model, encoding: EncodingConfig) -> Encoders:
    import torch

    torch.set_num_threads(encoding.threads)
    return open_encoders(model)


def _open_onnx(model: Model, index: Path, encoding: EncodingConfig) -> tuple[Encoders, str]:
    threads, all_fp32 = encoding.threads, {"queries": False, "documents": False}
    all_int8 = dict.fromkeys(all_fp32, True)
    root = encoding.cache or model.folder / "onnx"
    if encoding.cache is None and not root.exists() and not os.access(model.folder, os.W_OK):
        raise BidrError(f"{model.folder} is not writable; give a folder for the ONNX files (--encoding.cache)")

    def compare_folder(folder: Path) -> dict[str, Any]:
        parities = compare_encoders(
            index,
            model.text.titles,
            load_onnx_encoders(folder, all_fp32, threads),
            load_onnx_encoders(folder, all_int8, threads),
        )
        return {role: parity.to_dict() for role, parity in parities.items()}

    folder, parity = export_cached(
        model, root, " ".join(read_current(index)), int8=encoding.program != "onnx", compare=compare_folder
    )
    if encoding.program == "onnx":
        use_int8 = all_fp32
    elif encoding.program == "int8":
        use_int8 = all_int8
    else:
        use_int8 = {role: bool(parity[role]["holds"]) for role in all_fp32}
    names = {role: "int8" if use_int8[role] else "onnx" for role in all_fp32}
    if parity:
        log("parity", **parity)
    return load_onnx_encoders(folder, use_int8, threads), "+".join(dict.fromkeys(names.values()))
