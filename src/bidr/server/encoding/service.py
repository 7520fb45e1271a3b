"""What encodes for the server: queries of many requests together, and the documents that are added."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bidr.errors import BidrError, MissingExtraError
from bidr.index.storage.manifest import current_generation
from bidr.models.saved_model import Model
from bidr.models.static_encoder import MODULES
from bidr.search.types import QueryVectors
from bidr.server.encoding.config import EncodingConfig
from bidr.server.encoding.encoders import EncoderInput, Encoders, load_onnx_encoders, open_encoders
from bidr.server.encoding.micro_batcher import MicroBatcher
from bidr.server.encoding.onnx_cache import export_cached
from bidr.server.encoding.quality_check import compare
from bidr.server.json_logs import log
from bidr.utils.array_types import Floats

QUEUE, DOCUMENTS_AT_ONCE = 128, 16


def open_query_service(model: Model, index: Path, encoding: EncodingConfig, queue: int) -> "QueryService":
    """The service that suits a model, and the machine."""
    encoders, program = choose(model, index, encoding)
    log("encoding", program=program, batch=encoding.batch, parallel=encoding.parallel, threads=encoding.threads)
    service = QueryService(encoders, encoding, queue, program)
    service.encode_now(["what is encoded first takes longest"])
    return service


def choose(model: Model, index: Path, encoding: EncodingConfig) -> tuple[Encoders, str]:
    """What encodes best of what this machine and the model allow, and its name."""
    if _built_in(model) and encoding.program in ("auto", "torch"):
        return open_encoders(model), "numpy"
    if encoding.program == "torch":
        return _torch(model, encoding), "torch"
    try:
        return _onnx(model, index, encoding)
    except (BidrError, ImportError) as error:
        if encoding.program != "auto":
            raise
        told = "info" if isinstance(error, MissingExtraError | ImportError) else "warning"
        log("no-onnx", told, why=str(error), instead="torch")
        return _torch(model, encoding), "torch"


class QueryService:
    """Encodes queries, micro-batched across requests, and documents. `batcher` has what /metrics tells."""

    def __init__(self, encoders: Encoders, encoding: EncodingConfig, queue: int = QUEUE, program: str = "") -> None:
        self.encoders, self.program = encoders, program
        # Two pools: documents that are added must not keep a query's second side waiting.
        self._sides = ThreadPoolExecutor(encoding.parallel, "encode-codes")
        self._adding = ThreadPoolExecutor(encoding.parallel, "encode-documents")
        self.batcher = MicroBatcher(
            self.encode_now,
            parallel=encoding.parallel,
            most=encoding.batch,
            wait=encoding.wait_ms / 1000,
            limit=queue,
            ended=lambda: self._sides.shutdown(wait=False),
        )

    @property
    def waiting(self) -> int:
        """Texts that wait to be encoded."""
        return self.batcher.waiting

    async def encode(self, texts: list[str], deadline: float) -> QueryVectors:
        """Queries as both sides see them. `deadline` is of time.monotonic(); raises `Overloaded`, `Late`."""
        return await self.batcher.encode(texts, deadline)

    def documents(self, texts: list[str]) -> tuple[Floats, Floats]:
        """Documents for the codes, and for the disk; both encoders at once, on as many threads as queries have."""
        sides = self.encoders.roles["documents"]
        if sides.codes == sides.vectors:
            both = self._begin(sides.codes, texts)()
            return both, both
        codes = self._begin(sides.codes, texts)
        vectors = self._begin(sides.vectors, texts)
        return codes(), vectors()

    def close(self) -> None:
        self.batcher.close()  # which needs the other side for what still waits
        self._adding.shutdown(wait=False)

    def encode_now(self, texts: list[str]) -> QueryVectors:
        """Queries, by this thread, whatever waits."""
        sides = self.encoders.roles["queries"]
        if sides.codes == sides.vectors:
            both = self.encoders.encode(sides.codes, texts)
            return QueryVectors(both, both)
        codes = self._sides.submit(self.encoders.encode, sides.codes, texts)
        vectors = self.encoders.encode(sides.vectors, texts)
        return QueryVectors(codes.result(), vectors)

    def _begin(self, reading: EncoderInput, texts: list[str]) -> Callable[[], Floats]:
        """Begin with documents of like length together, and return what waits for all of them."""
        order = np.argsort([len(text) for text in texts], kind="stable")
        parts = np.array_split(order, max(1, -(-len(texts) // DOCUMENTS_AT_ONCE)))
        coming = [
            self._adding.submit(self.encoders.encode, reading, [texts[place] for place in part]) for part in parts
        ]

        def wait() -> Floats:
            found = [one.result() for one in coming]
            out = np.empty((len(texts), found[0].shape[1]), dtype=np.float32)
            for part, vectors in zip(parts, found, strict=True):
                out[part] = vectors
            return out

        return wait


def _built_in(model: Model) -> bool:
    """A sum of rows of a table: there is nothing that another program would do quicker."""
    return all((model.folder / part / MODULES[0]["path"]).exists() for part in ("sparse", "dense"))


def _torch(model: Model, encoding: EncodingConfig) -> Encoders:
    import torch

    torch.set_num_threads(encoding.threads)
    return open_encoders(model)


def _onnx(model: Model, index: Path, encoding: EncodingConfig) -> tuple[Encoders, str]:
    threads, whole = encoding.threads, {"queries": False, "documents": False}
    small = dict.fromkeys(whole, True)
    root = encoding.cache or model.folder / "onnx"
    if encoding.cache is None and not root.exists() and not os.access(model.folder, os.W_OK):
        raise BidrError(f"{model.folder} cannot be written to; give a folder for the ONNX files (--encoding.cache)")

    def look(folder: Path) -> dict[str, Any]:
        found = compare(
            index,
            model.text.titles,
            load_onnx_encoders(folder, whole, threads),
            load_onnx_encoders(folder, small, threads),
        )
        return {role: one.figures() for role, one in found.items()}

    folder, parity = export_cached(
        model, root, " ".join(current_generation(index)), int8=encoding.program != "onnx", compare=look
    )
    if encoding.program == "onnx":
        chosen = whole
    elif encoding.program == "int8":
        chosen = small
    else:
        chosen = {role: bool(parity[role]["holds"]) for role in whole}
    names = {role: "int8" if chosen[role] else "onnx" for role in whole}
    if parity:
        log("parity", **parity)
    return load_onnx_encoders(folder, chosen, threads), "+".join(dict.fromkeys(names.values()))
