"""Holds the served index and reloads it in the background, so that no request waits while a generation is opened."""

import gc
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bidr.data.types import Document
from bidr.data.vector_source import normalize_l2
from bidr.errors import BidrError, IndexFolderError
from bidr.index.filters import bitmask, iso_time
from bidr.index.live.lexical_search import has_lexical_index
from bidr.index.live.live_reader import LiveIndex
from bidr.index.live.view import LiveView
from bidr.index.reader import check_model
from bidr.index.storage import checksum_kernels
from bidr.index.storage.manifest import read_current
from bidr.index.vectors import VectorMemory
from bidr.search.evaluation import load_recall_curve
from bidr.search.searcher import CANDIDATES, Searcher, make_query_vectors
from bidr.search.types import QueryVectors
from bidr.server.document_lookup import DocumentLookup
from bidr.server.page_hints import choose_examples, list_attributes, sample_documents
from bidr.utils.array_types import Floats
from bidr.utils.deadline import deadline_scope

if TYPE_CHECKING:
    from bidr.models.codes_only_model import CodesOnlyModel
    from bidr.models.saved_model import Model, SearchSettings
    from bidr.server.encoding.service import IndexQueryService

REFRESH_SECONDS, MAX_BACKOFF_SECONDS = 0.2, 10.0
MODEL_LINGER_SECONDS = 60.0


class EncodingService(Protocol):
    """Encodes queries of many requests together, and added documents."""

    async def encode(self, texts: list[str], deadline: float) -> QueryVectors:
        """Encode queries for codes and vectors. `deadline` is of time.monotonic(); raises `Overloaded`."""

    def encode_documents(self, texts: list[str]) -> tuple[Floats, Floats]:
        """Encode documents for the codes, and for the vectors on disk."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class IndexSnapshot:
    """An immutable state of the index, with its model."""

    view: LiveView
    model: "Model | CodesOnlyModel | None"
    encoder: "EncodingService | None"
    lookup: DocumentLookup
    candidates: int

    @cached_property
    def generation(self) -> int:
        return int(self.view.generation.name)

    @cached_property
    def fingerprint(self) -> str | None:
        """Fingerprint of the model."""
        return self.view.state.model.fingerprint if self.view.state.model else None

    @cached_property
    def has_text_model(self) -> bool:
        """Whether a model encodes texts for codes and vectors, rather than an encoder of the vectors."""
        return self.model is not None and not hasattr(self.model, "queries")

    @cached_property
    def dim(self) -> int:
        return self.view.manifest.dim

    @cached_property
    def has_lexical(self) -> bool:
        return has_lexical_index(self.view)

    @cached_property
    def recommended(self) -> "SearchSettings":
        """The model's fusion with BM25; none without postings."""
        from bidr.models.saved_model import SearchSettings

        return self.model.search if self.model is not None and self.has_lexical else SearchSettings()

    @cached_property
    def page_hints(self) -> dict[str, Any]:
        """Attributes with sample values, and example queries; fewer if documents cannot be read."""
        sample: list[Document] = []
        with suppress(IndexFolderError, OSError):
            sample = sample_documents(self.view)
        return {"attributes": list_attributes(self.view, sample), "examples": choose_examples(sample)}

    @cached_property
    def searcher(self) -> Searcher:
        return Searcher(self.view)

    def to_query_vectors(self, vectors: Floats) -> QueryVectors:
        """Convert finite query vectors to those that codes and vectors are searched with."""
        convert = getattr(self.model, "queries", None)
        if convert is not None:
            return QueryVectors(*convert(vectors))
        return make_query_vectors(self.view, normalize_l2(vectors) if self.view.manifest.unit else vectors)


EncoderFactory = Callable[["Model | CodesOnlyModel"], "EncodingService | None"]
VectorEncoderFactory = Callable[[LiveView], "IndexQueryService | None"]
"""Opens the text encoder of an index of vectors; None if it has none."""


def open_no_encoder(view: LiveView) -> None:
    """Open no encoder: texts of an index of vectors are then refused."""


class IndexHolder:
    """Holds the current snapshot of an index folder; `refresh` replaces it after commits.

    Args:
        model: folder of the model, if it is not where the index says.
        make_encoder: called again when the index has been rebuilt with another model.
        make_vector_encoder: opens the text encoder of an index of vectors; called again when it is another one.
        memory: memory for vectors; by default what `LiveIndex` chooses.
        linger: seconds before the encoder of a replaced model is closed, for requests in progress.
    """

    def __init__(
        self,
        folder: Path,
        model: Path | None,
        make_encoder: EncoderFactory,
        linger: float = MODEL_LINGER_SECONDS,
        make_vector_encoder: VectorEncoderFactory = open_no_encoder,
        memory: VectorMemory | None = None,
    ) -> None:
        self.folder, self._model_folder, self._make_encoder, self._linger = folder, model, make_encoder, linger
        self._make_vector_encoder = make_vector_encoder
        self._lock = threading.Lock()
        self.error: str | None = None
        """Why the newest state could not be opened."""
        self._failed: tuple[str, str] | None = None
        self._backoff = self._retry_at = 0.0
        self._live = LiveIndex.open(folder, memory=memory)
        self.memory = self._live.memory
        self._current = self._make_snapshot(self._live.latest(), None)
        # Compilation leaves reference cycles; collecting them later would delay a request.
        gc.collect()

    @property
    def current(self) -> IndexSnapshot:
        return self._current

    def refresh(self) -> bool:
        """Open what was committed since; return whether there was a change. Failures are stored in `error`."""
        with self._lock:
            generation = self._read_generation()
            if self.error is not None and generation == self._failed and time.monotonic() < self._retry_at:
                return False
            try:
                view = self._live.refresh_now()
                is_changed = view is not self._current.view
                if is_changed:
                    self._current = self._make_snapshot(view, self._current)
                self.error, self._backoff = None, 0.0
            except Exception as error:
                self.error, self._failed = str(error) or repr(error), generation
                self._backoff = min(MAX_BACKOFF_SECONDS, max(REFRESH_SECONDS, 2 * self._backoff))
                self._retry_at = time.monotonic() + self._backoff
                if not isinstance(error, BidrError | OSError):
                    raise
                return False
            return is_changed

    def _read_generation(self) -> tuple[str, str] | None:
        """Read the current generation: one other than that which failed is tried without delay."""
        try:
            return read_current(self.folder)
        except IndexFolderError:
            return None

    def _make_snapshot(self, view: LiveView, previous: IndexSnapshot | None) -> IndexSnapshot:
        if previous is None or previous.generation != int(view.generation.name):
            warm_up_kernels(view)
        stamp = view.state.model
        lookup = DocumentLookup(view)
        if previous and self._has_same_encoders(previous, view):
            return IndexSnapshot(view, previous.model, previous.encoder, lookup, previous.candidates)
        model: Model | CodesOnlyModel | None = None
        if stamp is not None or self._model_folder is not None:
            from bidr.models.codes_only_model import open_model

            model = open_model(self._model_folder or Path(stamp.folder if stamp else ""))
            check_model(self.folder, stamp, model.fingerprint)
        encoder: EncodingService | None = None if model is None else self._make_encoder(model)
        if encoder is None:
            encoder = self._make_vector_encoder(view)
        if previous and previous.encoder is not None:
            timer = threading.Timer(self._linger, previous.encoder.close)
            timer.daemon = True
            timer.start()
        return IndexSnapshot(view, model, encoder, lookup, CANDIDATES if model is None else model.candidates)

    @staticmethod
    def _has_same_encoders(previous: IndexSnapshot, view: LiveView) -> bool:
        fingerprint = view.state.model.fingerprint if view.state.model else None
        manifests = previous.view.manifest, view.manifest
        encoders = {(manifest.encoder, manifest.dim) for manifest in manifests}
        return previous.fingerprint == fingerprint and len(encoders) == 1

    def close(self) -> None:
        if self._current.encoder is not None:
            self._current.encoder.close()
        self._live.close()


def warm_up_kernels(view: LiveView) -> None:
    """Search once before the first request: compiling kernels takes seconds."""
    manifest = view.manifest
    if any(segment.reader.documents.columns.exists for segment in view.segments):
        bitmask.warm_up()
        iso_time.warm_up()
    checksum_kernels.compile_read_kernels()
    for segment in view.segments:
        segment.reader.vectors.compile_kernels()
    query_sides = (
        np.ones((1, dim), dtype=np.float32) / np.sqrt(np.float32(dim)) for dim in (manifest.code_dim, manifest.dim)
    )
    if view.count:
        lexical = int(has_lexical_index(view))
        searcher = Searcher(view, lexical=lexical, lexical_weight=lexical)
        searcher.search_vectors(QueryVectors(*query_sides), 1, CANDIDATES, words=["first"])


def describe_attributes(snapshot: IndexSnapshot, deadline: float) -> list[dict[str, Any]]:
    """Describe the attributes of a snapshot; computed once."""
    description: list[dict[str, Any]] | None = snapshot.__dict__.get("_attributes")
    if description is None:
        with deadline_scope(deadline):
            description = snapshot.__dict__["_attributes"] = snapshot.view.describe_attributes()
    return description


def format_name(folder: Path) -> str:
    """Return the display name of an index: its folder, or that of the run which it is part of."""
    return folder.parent.name if folder.name == "index" and folder.parent.name else folder.name


def get_encoder_name(snapshot: IndexSnapshot) -> str | None:
    """Return the encoder of an index of vectors without the folders that it is in."""
    recorded = snapshot.view.manifest.encoder
    if snapshot.encoder is None or snapshot.has_text_model or recorded is None:
        return None
    return Path(recorded.name).name


def describe_index(holder: IndexHolder, limits: dict[str, Any]) -> dict[str, Any]:
    """Return the body of GET /v1/index."""
    snapshot = holder.current
    view, ram = snapshot.view, snapshot.view.ram_usage
    manifest, stamp = view.manifest, view.state.model
    disk_bytes = sum(file.size for segment in view.segments for file in segment.reader.manifest.files.values())
    curve = load_recall_curve(holder.folder, snapshot.fingerprint)
    return {
        "name": format_name(holder.folder.resolve()),
        "documents": view.count,
        "dim": manifest.dim,
        "stored_dim": manifest.stored_dim,
        "code_bytes": -(-manifest.books * int(np.log2(manifest.words)) // 8),
        "engine": view.candidates.name,
        "ram_bytes": ram.total,
        "ram_bytes_per_document": round(ram.per_document, 2),
        "disk_bytes": disk_bytes,
        "model": stamp.fingerprint if stamp else None,
        "encoder": get_encoder_name(snapshot),
        "generation": snapshot.generation,
        "segments": len(view.segments),
        "candidates": snapshot.candidates,
        "recall_curve": None if curve is None or curve.is_outdated else curve.points,
        "outdated_recall_curve": curve.points if curve is not None and curve.is_outdated else None,
        "limits": limits,
        "texts": snapshot.encoder is not None,
        "words": snapshot.has_lexical,
        "lexical": snapshot.recommended.lexical,
        "lexical_weight": snapshot.recommended.lexical_weight,
        "behind": holder.error is not None,
        **snapshot.page_hints,
    }
