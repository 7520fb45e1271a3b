"""Batches write jobs: several additions are one commit."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bidr.data.types import Document
from bidr.errors import BidrError, DataError
from bidr.index.live.document_encoder import DocumentEncoder, EncodedBatch
from bidr.index.live.view import LiveView
from bidr.index.live.writer import LiveWriter
from bidr.index.reader import check_model
from bidr.index.storage.live_state import read_model_reference
from bidr.index.storage.manifest import EncoderReference
from bidr.pipeline.document_encoders import make_codebook_encoder, make_codes_only_encoder, make_model_encoder
from bidr.pipeline.index_encoder import add_text_encoder
from bidr.server.errors import HTTPError, IndexConflict, NotFound
from bidr.server.index_holder import EncoderFactory, VectorEncoderFactory, open_no_encoder
from bidr.server.json_logs import log
from bidr.utils.array_types import Floats

if TYPE_CHECKING:
    from bidr.models.codes_only_model import CodesOnlyModel
    from bidr.models.saved_model import Model
    from bidr.server.encoding.service import IndexQueryService

MAX_COMMIT_DOCUMENTS = 512
LOCK_TIMEOUT = 1.0
"""Seconds that a batch waits for the writer lock: enough for another program to add or delete a few documents."""


class AddJob(NamedTuple):
    """Documents to add, with vectors if the index has no text encoder."""

    documents: list[Document]
    vectors: Floats | None
    replace: bool


class DeleteJob(NamedTuple):
    """Ids of documents to delete."""

    ids: list[str]
    missing_ok: bool


class DeleteWhereJob(NamedTuple):
    """Filter of documents to delete."""

    filter: dict[str, Any]


class AttributesJob(NamedTuple):
    """Changes of attributes by id."""

    changes: dict[str, dict[str, Any]]
    missing_ok: bool


class AttributesWhereJob(NamedTuple):
    """Changes of the attributes of documents that match a filter."""

    filter: dict[str, Any]
    values: dict[str, Any]


Job = AddJob | DeleteJob | DeleteWhereJob | AttributesJob | AttributesWhereJob
Outcome = dict[str, Any] | BidrError


class WriteBatcher:
    """Opens the index for writing on demand, and releases it as soon as another program waits for the writer lock.

    Not thread-safe.
    """

    def __init__(
        self,
        folder: Path,
        model: Path | None,
        make_encoder: EncoderFactory,
        make_vector_encoder: VectorEncoderFactory = open_no_encoder,
    ) -> None:
        self.folder, self._model_folder, self._make_encoder = folder, model, make_encoder
        self._make_vector_encoder = make_vector_encoder
        self._text_encoder: tuple[EncoderReference | None, IndexQueryService | None] | None = None
        self._model: Model | CodesOnlyModel | None = None
        self._writer: LiveWriter | None = None
        self._encoder: DocumentEncoder | None = None
        self._has_text_model, self._lock_deadline = False, 0.0

    def apply(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Execute jobs in order, in as few commits as possible; return the outcome of each."""
        outcomes: list[Outcome] = []
        self._lock_deadline = time.monotonic() + LOCK_TIMEOUT
        for group in group_jobs(jobs):
            try:
                outcomes += self._commit(group)
            except BidrError as error:
                # An invalid job must not fail the others; a full disk fails all.
                can_split = len(group) > 1 and isinstance(error, HTTPError | DataError)
                outcomes += [self._commit_single(job) for job in group] if can_split else [error] * len(group)
            if self._writer is not None and self._writer.wanted:
                self.release()
        return outcomes

    def _commit_single(self, job: Job) -> Outcome:
        try:
            return self._commit([job])[0]
        except BidrError as error:
            return error

    def _commit(self, group: Sequence[Job]) -> list[Outcome]:
        writer = self._open()
        if not isinstance(group[0], AddJob):
            return [self._change(writer, group[0])]
        adds = [job for job in group if isinstance(job, AddJob)]
        existing = [writer.find_existing([document.id for document in job.documents]) for job in adds]
        for job, existing_ids in zip(adds, existing, strict=True):
            if existing_ids and not job.replace:  # the other jobs of the group are then committed one by one
                raise IndexConflict(
                    "documents with these ids exist",
                    given=", ".join(sorted(existing_ids)[:5]),
                    expected="new ids",
                    hint='send "replace": true to replace them',
                )
        vectors = [job.vectors for job in adds if job.vectors is not None]
        documents = [document for job in adds for document in job.documents]
        writer.add(documents, _concatenate(vectors) if vectors else None)
        state = self._get_state(writer)
        return [
            state | {"added": len(job.documents) - len(existing_ids), "replaced": len(existing_ids)}
            for job, existing_ids in zip(adds, existing, strict=True)
        ]

    def _change(self, writer: LiveWriter, job: Job) -> dict[str, Any]:
        """Execute a job other than an addition."""
        if isinstance(job, DeleteWhereJob):
            deleted = writer.delete_where(job.filter)
            return self._get_state(writer) | {"deleted": deleted}
        if isinstance(job, AttributesWhereJob):
            changed = writer.set_attributes_where(job.filter, job.values)
        elif isinstance(job, AttributesJob):
            self._check_existing(writer, list(job.changes), missing_ok=job.missing_ok)
            changed = writer.set_attributes(job.changes, missing_ok=True)
        else:
            assert isinstance(job, DeleteJob)
            return self._delete(writer, job)
        return self._get_state(writer) | {"changed": changed}

    @staticmethod
    def _check_existing(writer: LiveWriter, ids: list[str], *, missing_ok: bool) -> None:
        """Raise NotFound for unknown ids, unless they are allowed."""
        existing = set() if missing_ok else writer.find_existing(ids)
        missing = [] if missing_ok else [doc_id for doc_id in ids if doc_id not in existing]
        if missing:
            raise NotFound(
                "no such documents",
                given=", ".join(missing[:5]),
                expected="ids of documents in the index",
                hint="use missing_ok=true to ignore unknown ids",
            )

    def _delete(self, writer: LiveWriter, job: DeleteJob) -> dict[str, Any]:
        self._check_existing(writer, job.ids, missing_ok=job.missing_ok)
        deleted = writer.delete(job.ids, missing_ok=True)
        return self._get_state(writer) | {"deleted": deleted}

    def _get_state(self, writer: LiveWriter) -> dict[str, Any]:
        return {"documents": writer.view.count, "generation": int(writer.view.generation.name)}

    def _open(self) -> LiveWriter:
        if self._writer is None:
            writer = LiveWriter(
                self.folder,
                self._encode,
                warn=lambda message: log("drift", "warning", told=message),
                wait=self._lock_deadline - time.monotonic(),
                fits_codes=False,  # when the addition has been answered
            )
            try:
                self._load_model()  # another program may have rebuilt the index before it released the lock
            except BaseException:
                writer.close()
                raise
            self._writer = writer
        return self._writer

    def _load_model(self) -> None:
        """Load the model of the current index, which may have been rebuilt with another one."""
        stamp = read_model_reference(self.folder)
        if stamp is None and self._model_folder is None:
            self._model = self._encoder = None
            self._has_text_model = False
            return
        if self._model is not None and stamp is not None and self._model.fingerprint == stamp.fingerprint:
            return
        from bidr.models.codes_only_model import open_model

        model: Any = open_model(self._model_folder or (stamp.folder if stamp else ""))
        check_model(self.folder, stamp, model.fingerprint)
        encoder = self._make_encoder(model)
        self._encoder = (
            make_model_encoder(model, encoder.encode_documents)
            if encoder is not None
            else make_codes_only_encoder(model)
        )
        self._model, self._has_text_model = model, encoder is not None

    def _encode(self, documents: Sequence[Document], vectors: Floats | None) -> EncodedBatch:
        """Encode documents to codes and vectors with the model or the encoder of the index."""
        assert self._writer is not None
        view = self._writer.view
        encode = self._encoder or make_codebook_encoder(view.codebooks, unit=view.manifest.unit)
        if vectors is None and not self._has_text_model:
            service = self._open_text_encoder(view)
            encode = encode if service is None else add_text_encoder(encode, service.encode_records)
        return encode(documents, vectors)

    def _open_text_encoder(self, view: LiveView) -> "IndexQueryService | None":
        """Open the text encoder of an index of vectors, once for each that is recorded."""
        if self._text_encoder is None or self._text_encoder[0] != view.manifest.encoder:
            self._text_encoder = view.manifest.encoder, self._make_vector_encoder(view)
        return self._text_encoder[1]

    def fit_codes_if_due(self) -> bool:
        """Fit codes in an index that was created empty, if it has enough documents; return whether it did."""
        if self._writer is None or not self._writer.is_fit_due:
            return False
        self._writer.fit_codes()
        return True

    @property
    def is_open(self) -> bool:
        return self._writer is not None

    def release(self) -> None:
        """Close the index, so that another program can write."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def group_jobs(jobs: Sequence[Job]) -> list[list[Job]]:
    """Group consecutive additions without common ids, all with or all without vectors; other jobs are groups of one."""
    groups: list[list[Job]] = []
    ids: set[str] = set()
    previous_kind: object = None
    for job in jobs:
        kind = job.vectors is None if isinstance(job, AddJob) else None
        job_ids = {document.id for document in job.documents} if isinstance(job, AddJob) else set()
        if kind is None or kind is not previous_kind or ids & job_ids or len(ids) + len(job_ids) > MAX_COMMIT_DOCUMENTS:
            groups.append([])
            ids = set()
        groups[-1].append(job)
        ids |= job_ids
        previous_kind = kind if kind is not None else object()
    return groups


def _concatenate(parts: list[Floats]) -> Floats:
    import numpy as np

    return parts[0] if len(parts) == 1 else np.concatenate(parts)
