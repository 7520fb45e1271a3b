"""The index that is served: followed in the background, so that no request waits for a new generation to be opened."""

import gc
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bidr.data.vector_source import normalize_l2
from bidr.errors import BidrError, IndexFolderError
from bidr.index.filters.bitmask import warm_up
from bidr.index.live.live_index import LiveIndex
from bidr.index.live.view import LiveView
from bidr.index.reader import check_model
from bidr.index.storage import checksum_kernels as looking
from bidr.index.storage.manifest import current_generation
from bidr.search.evaluation import load_recall_curve
from bidr.search.searcher import CANDIDATES, Searcher
from bidr.search.types import QueryVectors
from bidr.server.document_lookup import DocumentLookup
from bidr.utils.array_types import Floats

if TYPE_CHECKING:
    from bidr.models.codes_only_model import CodesOnlyModel
    from bidr.models.saved_model import Model

LOOK_EVERY, LONGEST_PAUSE = 0.2, 10.0
KEPT_FOR = 60.0


class TextEncoder(Protocol):
    """Encodes texts: queries, many requests at once, and the documents that are added."""

    async def encode(self, texts: list[str], deadline: float) -> QueryVectors:
        """Queries as both sides see them. `deadline` is of time.monotonic(); raises `Overloaded`."""

    def documents(self, texts: list[str]) -> tuple[Floats, Floats]:
        """Documents for the codes, and for the disk."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class IndexSnapshot:
    """What answers requests at one moment: a state of the index, and the model that made it. It never changes."""

    view: LiveView
    model: "Model | CodesOnlyModel | None"
    service: "TextEncoder | None"
    finder: DocumentLookup
    candidates: int

    @cached_property
    def generation(self) -> int:
        return int(self.view.generation.name)

    @cached_property
    def fingerprint(self) -> str | None:
        return self.view.state.model.fingerprint if self.view.state.model else None

    @cached_property
    def dim(self) -> int:
        return self.view.manifest.dim

    @cached_property
    def words(self) -> bool:
        """Whether documents can be found by their words."""
        return has_lexical_index(self.view)

    @cached_property
    def searcher(self) -> Searcher:
        """Answers by vectors alone."""
        return Searcher(self.view)

    def query_vectors(self, given: Floats) -> QueryVectors:
        """Vectors of queries, which are known to be finite, as each side of the index takes them."""
        queries = getattr(self.model, "queries", None)
        if queries is not None:
            return QueryVectors(*queries(given))
        own = normalize_l2(given) if self.view.manifest.unit else given
        return QueryVectors(own, own)


EncoderFactory = Callable[["Model | CodesOnlyModel"], "TextEncoder | None"]


class IndexHolder:
    """Follows an index folder. `now` is what answers; a newer state takes its place when it is open, model and all.

    model: folder of the model, if it is not where the index says.
    make:  makes what encodes queries; called again when the index comes from another model.
    linger: seconds that requests which began with the model of before still have it.
    """

    def __init__(self, folder: Path, model: Path | None, make: EncoderFactory, linger: float = KEPT_FOR) -> None:
        self.folder, self._model_folder, self._make, self._linger = folder, model, make, linger
        self._lock = threading.Lock()
        self.trouble: str | None = None
        self._failed: tuple[str, str] | None = None
        self._pause = self._not_before = 0.0
        self._live = LiveIndex.open(folder)
        self._now = self._taken_up(self._live.latest(), None)
        # Compiling leaves cycles that hold what was searched; later there is no such moment when nobody waits.
        gc.collect()

    @property
    def now(self) -> IndexSnapshot:
        return self._now

    def look(self) -> bool:
        """Take up what was committed since; whether anything was. What cannot be opened is told by `trouble`."""
        with self._lock:
            current = self._current()
            if self.trouble is not None and current == self._failed and time.monotonic() < self._not_before:
                return False
            try:
                view = self._live.now()
                changed = view is not self._now.view
                if changed:
                    self._now = self._taken_up(view, self._now)
                self.trouble, self._pause = None, 0.0
            except Exception as error:
                self.trouble, self._failed = str(error) or repr(error), current
                self._pause = min(LONGEST_PAUSE, max(LOOK_EVERY, 2 * self._pause))
                self._not_before = time.monotonic() + self._pause
                if not isinstance(error, BidrError | OSError):
                    raise
                return False
            return changed

    def _current(self) -> tuple[str, str] | None:
        """Which state is in force: another than the one that could not be taken up is tried at once."""
        try:
            return current_generation(self.folder)
        except IndexFolderError:
            return None

    def _taken_up(self, view: LiveView, before: IndexSnapshot | None) -> IndexSnapshot:
        if before is None or before.generation != int(view.generation.name):
            warm_up_kernels(view)
        stamp = view.state.model
        finder = before.finder.following(view) if before else DocumentLookup(view)
        if before and (before.fingerprint == (stamp.fingerprint if stamp else None)):
            return IndexSnapshot(view, before.model, before.service, finder, before.candidates)
        if stamp is None and self._model_folder is None:
            return IndexSnapshot(view, None, None, finder, CANDIDATES)
        from bidr.models.codes_only_model import open_model

        where = self._model_folder or Path(stamp.folder if stamp else "")
        model = open_model(where)
        check_model(self.folder, stamp, model.fingerprint)
        service = self._make(model)
        if before and before.service is not None:
            # Requests that have begun with the old model are answered by it.
            closing = threading.Timer(self._linger, before.service.close)
            closing.daemon = True
            closing.start()
        return IndexSnapshot(view, model, service, finder, model.candidates)

    def close(self) -> None:
        if self._now.service is not None:
            self._now.service.close()
        self._live.close()


def warm_up_kernels(view: LiveView) -> None:
    """One search before any request: functions are compiled on first use, which takes seconds."""
    manifest = view.manifest
    if any(part.open.reader.documents.columns.exists for part in view.parts):
        warm_up()
    looking.warm_up()
    sides = (
        np.ones((1, dim), dtype=np.float32) / np.sqrt(np.float32(dim)) for dim in (manifest.code_dim, manifest.dim)
    )
    if view.count:
        lexical = int(has_lexical_index(view))
        searcher = Searcher(view, lexical=lexical, lexical_weight=lexical)
        searcher.search_vectors(QueryVectors(*sides), 1, CANDIDATES, words=["first"])


def has_lexical_index(view: LiveView) -> bool:
    return all(part.open.reader.words is not None for part in view.parts)


def format_name(folder: Path) -> str:
    """What people would call an index: its folder, or the run that it is the index of."""
    return folder.parent.name if folder.name == "index" and folder.parent.name else folder.name


def describe_index(served: IndexHolder, limits: dict[str, Any]) -> dict[str, Any]:
    """What GET /v1/index says."""
    serving = served.now
    view, ram = serving.view, serving.view.ram_bytes
    manifest, stamp = view.manifest, view.state.model
    disk = sum(entry.size for part in view.parts for entry in part.open.reader.manifest.files.values())
    total = int(sum(ram.values()))
    return {
        "name": format_name(served.folder.resolve()),
        "documents": view.count,
        "dim": manifest.dim,
        "stored_dim": manifest.stored_dim,
        "code_bytes": -(-manifest.books * int(np.log2(manifest.words)) // 8),
        "engine": view.candidates.name,
        "ram_bytes": total,
        "ram_bytes_per_document": round(total / max(view.count, 1), 2),
        "disk_bytes": disk,
        "model": stamp.fingerprint if stamp else None,
        "generation": serving.generation,
        "segments": len(view.parts),
        "candidates": serving.candidates,
        "recall_curve": load_recall_curve(served.folder, serving.fingerprint),
        "limits": limits,
        "texts": serving.service is not None,
        "words": serving.words,
        "behind": served.trouble is not None,
    }
