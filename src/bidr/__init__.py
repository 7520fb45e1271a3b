"""Bi-granular document representation: codes in RAM find candidates, vectors on disk rank them.

data = bidr.load("path/to/beir-folder")
model = bidr.train(data, "runs/a", bytes_per_doc=16)
bidr.build(data, model, "runs/a/index")
with bidr.open_index("runs/a/index") as searcher:
    print(searcher.search("who painted the night watch", k=10))
    print(bidr.evaluate(searcher, data.split("test")).table())
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bidr._old_names import install_finder
from bidr._version import __version__

if TYPE_CHECKING:
    from bidr.client.client import AsyncClient, Client
    from bidr.data.dataset import Dataset, load
    from bidr.data.types import Document, Query
    from bidr.export.index_export import export_index
    from bidr.export.onnx import export_onnx
    from bidr.pipeline.build import build, build_vectors
    from bidr.pipeline.create import create_index
    from bidr.pipeline.maintenance import compact, snapshot
    from bidr.pipeline.open import OpenIndex, open_index, open_writer
    from bidr.pipeline.repair import repair_index
    from bidr.pipeline.train import train, train_vectors
    from bidr.quantization.opq_config import PlainCodes
    from bidr.search.evaluation import evaluate
    from bidr.training.config import TrainConfig

# The module of each public name. Modules are imported on first use: the client alone needs neither numba nor torch.
_MODULES = {
    "AsyncClient": "client.client",
    "Client": "client.client",
    "Dataset": "data.dataset",
    "Document": "data.types",
    "OpenIndex": "pipeline.open",
    "PlainCodes": "quantization.opq_config",
    "Query": "data.types",
    "TrainConfig": "training.config",
    "build": "pipeline.build",
    "build_vectors": "pipeline.build",
    "compact": "pipeline.maintenance",
    "create_index": "pipeline.create",
    "evaluate": "search.evaluation",
    "export_index": "export.index_export",
    "export_onnx": "export.onnx",
    "load": "data.dataset",
    "open_index": "pipeline.open",
    "open_writer": "pipeline.open",
    "repair_index": "pipeline.repair",
    "snapshot": "pipeline.maintenance",
    "train": "pipeline.train",
    "train_vectors": "pipeline.train",
}
__all__ = [
    "AsyncClient",
    "Client",
    "Dataset",
    "Document",
    "OpenIndex",
    "PlainCodes",
    "Query",
    "TrainConfig",
    "__version__",
    "build",
    "build_vectors",
    "compact",
    "create_index",
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


install_finder()


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'bidr' has no attribute {name!r}")
    try:
        module = import_module(f"bidr.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        from bidr.errors import name_missing_extra

        raise name_missing_extra(f"bidr.{name}", error) or error from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
