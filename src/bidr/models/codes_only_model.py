"""Codes-only model: codebooks and a query adapter for existing vectors, without a text encoder.

README.md                     model card
model.json                    kind "frozen", fingerprint, metric, training record
sparse/quantizer.safetensors  codewords
sparse/adapter.safetensors    projections of documents and queries
"""

import json
import shutil
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, get_args

import numpy.typing as npt
import xxhash

from bidr.data.vector_source import CodesMetric, VectorSource, open_query_vectors, open_vectors
from bidr.errors import ConfigError, DataError, ModelError
from bidr.models.model_card import write_codes_only_card
from bidr.models.saved_model import (
    FORMAT,
    QUANTIZER,
    Model,
    SavedModel,
    hash_file,
    is_positive_int,
    read_model_json,
)
from bidr.quantization.additive_quantizer import AdditiveQuantizer, load_query_adapter
from bidr.utils.array_types import Floats
from bidr.utils.files import storage_errors, write_signed_json
from bidr.utils.reproducible_matmul import matmul_transposed

KIND = "frozen"
ADAPTER = "adapter.safetensors"


class CodesOnlyModel(SavedModel):
    """An open model folder of kind "frozen", which takes vectors instead of texts."""

    unified = False

    def _read_fields(self, fields: dict[str, Any]) -> None:
        self.metric: CodesMetric = fields["metric"]
        self.dim: int = fields["dimensions"]
        if self.metric not in get_args(CodesMetric) or not is_positive_int(self.dim):
            raise ValueError(f"metric {self.metric!r} or dimensions {self.dim!r}")

    def _compute_fingerprint(self) -> str:
        return _hash_files(self.folder, self.metric)

    @cached_property
    def additive(self) -> AdditiveQuantizer:
        additive = AdditiveQuantizer.load(self.folder / "sparse" / ADAPTER, self.codebooks)
        self._check_dim(additive.document)
        return additive

    def documents(self, vectors: Path | str | npt.NDArray[Any] | VectorSource, name: str = "vectors") -> VectorSource:
        """Open and check document vectors."""
        return self.check_source(open_vectors(vectors, name, self.metric))

    def queries(self, vectors: Path | npt.ArrayLike, name: str = "query vectors") -> tuple[Floats, Floats]:
        """Return query vectors for the codes (adapted) and for the vectors (L2-normalized if the metric is cosine)."""
        rows = self.check_source(open_query_vectors(vectors, name, self.metric))[:]
        return self.adapt(rows), rows

    def adapt(self, queries: Floats) -> Floats:
        """Like `AdditiveQuantizer.adapt`, without loading the document side."""
        return matmul_transposed(queries, self._query)

    @cached_property
    def _query(self) -> Floats:
        query = load_query_adapter(self.folder / "sparse" / ADAPTER)
        self._check_dim(query)
        return query

    def _check_dim(self, adapter: Floats) -> None:
        if adapter.shape[1] != self.dim:
            raise ModelError(
                f"{self.folder}: an adapter of vectors of {adapter.shape[1]} dimensions, model.json says {self.dim}; "
                "restore them or train the model again"
            )

    def encode_queries(self, texts: list[str]) -> NoReturn:
        raise ConfigError(
            f"{self.folder} was learned from vectors and has no text encoder: a text query cannot be encoded; "
            "give its vector, from the model that made the documents' (--query-vectors, or search_vectors in Python)"
        )

    def check_source(self, rows: VectorSource) -> VectorSource:
        """Refuse vectors of other dimensions; return those of the same."""
        if rows.dim != self.dim:
            raise DataError(
                f"{rows.name} has {rows.dim} dimensions, the model in {self.folder} was learned from {self.dim}; "
                "give vectors of the same model"
            )
        return rows


def open_model(folder: Path | str, device: str = "cpu") -> Model | CodesOnlyModel:
    """Open a model folder of either kind."""
    is_codes_only = read_model_json(Path(folder)).get("kind") == KIND
    return CodesOnlyModel(folder) if is_codes_only else Model(folder, device)


def save_codes_only_model(
    folder: Path, additive: AdditiveQuantizer, *, metric: CodesMetric, candidates: int, training: dict[str, Any]
) -> CodesOnlyModel:
    """Save a model. model.json is deleted first and written last: without it there is no model."""
    temporary, books = folder / ".new", additive.to_codebooks()
    with storage_errors(folder):
        shutil.rmtree(temporary, ignore_errors=True)
        (temporary / "sparse").mkdir(parents=True)
        books.save(temporary / "sparse" / QUANTIZER)
        additive.save(temporary / "sparse" / ADAPTER)
        fields = {
            "format": FORMAT,
            "kind": KIND,
            "fingerprint": _hash_files(temporary, metric),
            "candidates": candidates,
            "metric": metric,
            "dimensions": additive.dim,
            "codes": {"books": books.books, "words": books.words, "groups": additive.groups},
            "training": training,
        }
        (folder / "model.json").unlink(missing_ok=True)
        shutil.rmtree(folder / "sparse", ignore_errors=True)
        (temporary / "sparse").rename(folder / "sparse")
        write_signed_json(folder / "model.json", fields)
        temporary.rmdir()
    model = CodesOnlyModel(folder)
    write_codes_only_card(model)
    return model


def _hash_files(folder: Path, metric: str) -> str:
    digest = xxhash.xxh3_128(json.dumps({"kind": KIND, "metric": metric}).encode())
    for name in (QUANTIZER, ADAPTER):
        if not (folder / "sparse" / name).exists():
            raise ModelError(f"{folder} has no sparse/{name}; restore it or train the model again")
        hash_file(digest, folder / "sparse" / name)
    return digest.hexdigest()
