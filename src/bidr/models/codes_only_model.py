"""A model for vectors that already exist: codes and a query-side adapter, and no text encoder.

README.md                     the card
model.json                    what it is (kind "frozen"), its fingerprint, the metric, how it was trained
sparse/quantizer.safetensors  codewords
sparse/adapter.safetensors    what is done to documents before coding, and to queries before scoring codes
"""

import json
import shutil
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, get_args

import numpy.typing as npt
import xxhash

from bidr.data.vector_source import Metric, VectorSource, open_vectors
from bidr.errors import ConfigError, DataError, ModelError
from bidr.models.codes_only_card import write_codes_only_card
from bidr.models.saved_model import (
    FORMAT,
    QUANTIZER,
    Model,
    check_common_fields,
    hash_file,
    is_positive_int,
    read_model_json,
)
from bidr.quantization.additive_quantizer import AdditiveQuantizer, load_query_adapter
from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Floats
from bidr.utils.files import storage_errors, write_signed_json
from bidr.utils.matmul import matmul_transposed

KIND = "frozen"
ADAPTER = "adapter.safetensors"


class CodesOnlyModel:
    """A model folder of kind "frozen" that is open: it takes vectors where another takes words."""

    unified = False

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        path = self.folder / "model.json"
        about = read_model_json(self.folder)
        try:
            self.fingerprint: str = about["fingerprint"]
            self.candidates: int = about["candidates"]
            self.metric: Metric = about["metric"]
            self.dim: int = about["dimensions"]
            self.training: dict[str, Any] = about["training"]
            check_common_fields(self.fingerprint, self.candidates, self.training)
            if self.metric not in get_args(Metric) or not is_positive_int(self.dim):
                raise ValueError(f"metric {self.metric!r} or dimensions {self.dim!r}")
        except (LookupError, TypeError, ValueError) as error:
            raise ModelError(f"{path} cannot be read ({error}); train the model again or restore the file") from error
        found = _fingerprint(self.folder, self.metric)
        if found != self.fingerprint:
            raise ModelError(
                f"{self.folder}: files of fingerprint {found}, model.json says {self.fingerprint}; restore them"
            )

    @cached_property
    def codebooks(self) -> Codebooks:
        return Codebooks.load(self.folder / "sparse" / QUANTIZER)

    @cached_property
    def additive(self) -> AdditiveQuantizer:
        found = AdditiveQuantizer.load(self.folder / "sparse" / ADAPTER, self.codebooks)
        self._check_dim(found.document)
        return found

    def documents(self, vectors: Path | str | npt.NDArray[Any], name: str = "vectors") -> VectorSource:
        """Documents' vectors, as codes and index take them."""
        return self._checked(open_vectors(vectors, name, self.metric))

    def queries(self, vectors: Path | npt.ArrayLike, name: str = "query vectors") -> tuple[Floats, Floats]:
        """Queries as the codes see them (adapted), and as the vectors do (as given; of length 1 for cosines)."""
        own = self._checked(open_vectors(vectors, name, self.metric))[:]
        return self.adapt(own), own

    def adapt(self, queries: Floats) -> Floats:
        """As `Additive.adapt`; who only searches need not hold what codes documents."""
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
            f"{self.folder} was learned from vectors and has no text encoder: a question in words cannot be encoded; "
            "give its vector, from the model that made the documents' (--query-vectors, or search_vectors in Python)"
        )

    def _checked(self, rows: VectorSource) -> VectorSource:
        if rows.dim != self.dim:
            raise DataError(
                f"{rows.name} has {rows.dim} dimensions, the model in {self.folder} was learned from {self.dim}; "
                "give vectors of the same model"
            )
        return rows


def open_model(folder: Path | str, device: str = "cpu") -> Model | CodesOnlyModel:
    """A model folder of either kind."""
    frozen = read_model_json(Path(folder)).get("kind") == KIND
    return CodesOnlyModel(folder) if frozen else Model(folder, device)


def save_codes_only_model(
    folder: Path, additive: AdditiveQuantizer, *, metric: Metric, candidates: int, training: dict[str, Any]
) -> CodesOnlyModel:
    """Put a model into the folder. model.json goes first and comes back last: without it there is no model."""
    aside, books = folder / ".new", additive.to_codebooks()
    with storage_errors(folder):
        shutil.rmtree(aside, ignore_errors=True)
        (aside / "sparse").mkdir(parents=True)
        books.save(aside / "sparse" / QUANTIZER)
        additive.save(aside / "sparse" / ADAPTER)
        about = {
            "format": FORMAT,
            "kind": KIND,
            "fingerprint": _fingerprint(aside, metric),
            "candidates": candidates,
            "metric": metric,
            "dimensions": additive.dim,
            "codes": {"books": books.books, "words": books.words, "groups": additive.groups},
            "training": training,
        }
        (folder / "model.json").unlink(missing_ok=True)
        shutil.rmtree(folder / "sparse", ignore_errors=True)
        (aside / "sparse").rename(folder / "sparse")
        write_signed_json(folder / "model.json", about)
        aside.rmdir()
    model = CodesOnlyModel(folder)
    write_codes_only_card(model)
    return model


def _fingerprint(folder: Path, metric: str) -> str:
    digest = xxhash.xxh3_128(json.dumps({"kind": KIND, "metric": metric}).encode())
    for name in (QUANTIZER, ADAPTER):
        if not (folder / "sparse" / name).exists():
            raise ModelError(f"{folder} has no sparse/{name}; restore it or train the model again")
        hash_file(digest, folder / "sparse" / name)
    return digest.hexdigest()
