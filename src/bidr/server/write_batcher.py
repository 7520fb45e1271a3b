"""Documents in and out: what the one writer does with requests, several of them in one commit."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bidr.data.types import Document
from bidr.errors import BidrError, DataError
from bidr.index.live.types import Coded, Coder
from bidr.index.live.writer import LiveWriter
from bidr.index.reader import check_model
from bidr.index.storage.live_state import model_of
from bidr.pipeline.document_encoders import make_codebook_encoder, make_codes_only_encoder, make_model_encoder
from bidr.server.errors import HTTPError, IndexConflict, NotFound
from bidr.server.index_holder import EncoderFactory
from bidr.server.json_logs import log
from bidr.utils.array_types import Floats

if TYPE_CHECKING:
    from bidr.models.codes_only_model import CodesOnlyModel
    from bidr.models.saved_model import Model

AT_ONCE = 512
PATIENCE = 1.0
"""Seconds that jobs taken together wait for another program that writes: enough to add or delete a few documents."""


class AddJob(NamedTuple):
    """Documents to add, each with its vector where the index has no text encoder."""

    documents: list[Document]
    vectors: Floats | None
    replace: bool


class DeleteJob(NamedTuple):
    """Documents to take out."""

    ids: list[str]
    missing_ok: bool


Job = AddJob | DeleteJob
Outcome = dict[str, Any] | BidrError


class WriteBatcher:
    """Opens the index for writing when there is something to write, and lets go of it when there is not.

    So another program (`bidr build`, `bidr compact`) has its turn: when it waits for it, at once. Used by one thread.
    """

    def __init__(self, folder: Path, model: Path | None, make: EncoderFactory) -> None:
        self.folder, self._model_folder, self._make = folder, model, make
        self._model: Model | CodesOnlyModel | None = None
        self._writer: LiveWriter | None = None
        self._coder: Coder | None = None
        self._until = 0.0

    def apply(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Do jobs in their order, those that can be together in one commit; what became of each."""
        outcomes: list[Outcome] = []
        self._until = time.monotonic() + PATIENCE
        for group in group_jobs(jobs):
            try:
                outcomes += self._together(group)
            except BidrError as error:
                # What is wrong with one job is no reason to refuse the others; a full disk is the same for all.
                apart = len(group) > 1 and isinstance(error, HTTPError | DataError)
                outcomes += [self._alone(job) for job in group] if apart else [error] * len(group)
            if self._writer is not None and self._writer.wanted:
                self.release()
        return outcomes

    def _alone(self, job: Job) -> Outcome:
        try:
            return self._together([job])[0]
        except BidrError as error:
            return error

    def _together(self, group: Sequence[Job]) -> list[Outcome]:
        writer = self._open()
        if isinstance(group[0], DeleteJob):
            return [self._delete(writer, group[0])]
        adds = [job for job in group if isinstance(job, AddJob)]
        known = [writer.known([document.id for document in job.documents]) for job in adds]
        for job, there in zip(adds, known, strict=True):
            if there and not job.replace:  # whoever else is in the group is done alone then
                raise IndexConflict(
                    "documents of these ids are there already",
                    given=", ".join(sorted(there)[:5]),
                    expected="new ids",
                    hint='send "replace": true to replace them',
                )
        given = [job.vectors for job in adds if job.vectors is not None]
        writer.add([each for job in adds for each in job.documents], _joined(given) if given else None)
        state = self._state(writer)
        counted = zip(adds, known, strict=True)
        return [state | {"added": len(job.documents) - len(there), "replaced": len(there)} for job, there in counted]

    def _delete(self, writer: LiveWriter, job: DeleteJob) -> dict[str, Any]:
        known = writer.known(job.ids)
        missing = [name for name in job.ids if name not in known]
        if missing and not job.missing_ok:
            raise NotFound(
                "no such documents",
                given=", ".join(missing[:5]),
                expected="ids of documents that are there",
                hint="missing_ok=true lets the others be",
            )
        deleted = writer.delete(job.ids, missing_ok=True)
        return self._state(writer) | {"deleted": deleted}

    def _state(self, writer: LiveWriter) -> dict[str, Any]:
        return {"documents": writer.view.count, "generation": int(writer.view.generation.name)}

    def _open(self) -> LiveWriter:
        if self._writer is None:
            writer = LiveWriter(
                self.folder,
                self._code,
                warn=lambda told: log("drift", "warning", told=told),
                wait=self._until - time.monotonic(),
            )
            try:
                self._take_model()  # whoever was waited for may have built it anew
            except BaseException:
                writer.close()
                raise
            self._writer = writer
        return self._writer

    def _take_model(self) -> None:
        """The model that made the index as it is now, which may be another than last time."""
        stamp = model_of(self.folder)
        if stamp is None and self._model_folder is None:
            self._model = self._coder = None
            return
        if self._model is not None and stamp is not None and self._model.fingerprint == stamp.fingerprint:
            return
        from bidr.models.codes_only_model import open_model

        model: Any = open_model(self._model_folder or (stamp.folder if stamp else ""))
        check_model(self.folder, stamp, model.fingerprint)
        service = self._make(model)
        self._coder = (
            make_model_encoder(model, service.documents) if service is not None else make_codes_only_encoder(model)
        )
        self._model = model

    def _code(self, documents: Sequence[Document], vectors: Floats | None) -> Coded:
        """Documents as codes and vectors, by what made the index."""
        if self._coder is not None:
            return self._coder(documents, vectors)
        assert self._writer is not None
        view = self._writer.view
        return make_codebook_encoder(view.codebooks, unit=view.manifest.unit)(documents, vectors)

    @property
    def open(self) -> bool:
        return self._writer is not None

    def release(self) -> None:
        """Let another program write."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def group_jobs(jobs: Sequence[Job]) -> list[list[Job]]:
    """Runs of additions that share no id and are of one kind; a deletion stands alone."""
    groups: list[list[Job]] = []
    ids: set[str] = set()
    kind: object = None
    for job in jobs:
        own = None if isinstance(job, DeleteJob) else job.vectors is None
        names = set() if isinstance(job, DeleteJob) else {document.id for document in job.documents}
        if own is None or own is not kind or ids & names or len(ids) + len(names) > AT_ONCE:
            groups.append([])
            ids = set()
        groups[-1].append(job)
        ids |= names
        kind = own if own is not None else object()
    return groups


def _joined(given: list[Floats]) -> Floats:
    import numpy as np

    return given[0] if len(given) == 1 else np.concatenate(given)
