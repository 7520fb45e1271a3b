"""Bi-granular document representation: codes in RAM find candidates, vectors on disk decide among them.

data = bidr.load("path/to/beir-folder")
model = bidr.train(data, "runs/a", bytes_per_doc=16)
bidr.build(data, model, "runs/a/index")
with bidr.open_index("runs/a/index") as searcher:
    print(searcher.search("who painted the night watch", k=10))
    print(bidr.evaluate(searcher, data.split("test")).table())
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bidr.client import AsyncClient, Client
    from bidr.pipeline.api import (
        Dataset,
        Document,
        OpenIndex,
        PlainCodes,
        Query,
        TrainConfig,
        build,
        build_vectors,
        compact,
        evaluate,
        export_index,
        export_onnx,
        load,
        open_index,
        open_writer,
        repair_index,
        snapshot,
        train,
        train_vectors,
    )

__version__ = "0.1.0"
__all__ = [
    "AsyncClient",
    "Client",
    "Dataset",
    "Document",
    "OpenIndex",
    "PlainCodes",
    "Query",
    "TrainConfig",
    "build",
    "build_vectors",
    "compact",
    "evaluate",
    "export_index",
    "export_onnx",
    "load",
    "open_index",
    "open_writer",
    "repair_index",
    "snapshot",
    "train",
    "train_vectors",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'bidr' has no attribute {name!r}")
    from bidr import client
    from bidr.pipeline import api

    return getattr(client if name in ("AsyncClient", "Client") else api, name)
