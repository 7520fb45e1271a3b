"""Repair an index, with its model where codes or codebooks are damaged."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from bidr.data.dataset import compose_text
from bidr.data.types import Document
from bidr.errors import ModelError
from bidr.index.reader import check_model
from bidr.index.repair.salvage import ModelOpener, RepairModel, RepairReport, salvage_index
from bidr.index.storage.manifest import ModelReference
from bidr.models.codes_only_model import CodesOnlyModel, open_model
from bidr.models.saved_model import Model
from bidr.utils.array_types import Codes, Floats
from bidr.utils.device import pick_device

LOST_SUFFIX = ".lost.jsonl"


def repair_index(
    path: Path | str,
    out: Path | str,
    *,
    model: Path | str | None = None,
    lost: Path | str | None = None,
    keep_incomplete: bool = False,
    refit: bool = False,
    device: str = "cpu",
) -> RepairReport:
    """Save the undamaged documents of an index to a new one; the damaged one is only read.

    Args:
        path: The damaged index.
        out: A folder that does not exist yet. It appears complete or not at all.
        model: Folder of the model, if it was moved; it is opened if codes or codebooks are damaged.
        lost: List of documents that are lost or incomplete; by default `out` with suffix ".lost.jsonl". Those with
            intact id and text are written beside it (".again.jsonl"), as input of `bidr add`.
        keep_incomplete: Also save documents whose text or attributes are lost, without them.
        refit: If codebooks and model are lost, train plain codebooks; the index is then searched by vectors only.
        device: Device on which the model encodes texts.

    Returns:
        Numbers of saved and lost documents, and damaged files.
    """
    new = Path(out)
    lost_file = Path(lost) if lost is not None else new.with_name(new.name + LOST_SUFFIX)
    open_model = _make_model_opener(Path(path), None if model is None else Path(model), device)
    return salvage_index(Path(path), new, lost_file, open_model, keep_incomplete=keep_incomplete, refit=refit)


def _make_model_opener(index: Path, model_folder: Path | None, device: str) -> ModelOpener:
    @cache
    def open_once(reference: ModelReference | None) -> RepairModel | None:
        if model_folder is None and reference is None:
            return None
        folder = model_folder or Path(reference.folder if reference else "")
        try:
            model = open_model(folder, pick_device(device))
            if reference is not None:
                check_model(index, reference, model.fingerprint)
            return _to_repair_model(model)
        except ModelError:
            if model_folder is not None:
                raise
            return None

    return open_once


def _to_repair_model(model: Model | CodesOnlyModel) -> RepairModel:
    reference = ModelReference(model.fingerprint, str(model.folder.resolve()))
    if isinstance(model, CodesOnlyModel):

        def encode_vectors(documents: Sequence[Document], vectors: Floats) -> Codes:
            return model.additive.encode(model.documents(vectors))

        return RepairModel(reference, model.codebooks, None, encode_vectors, from_texts=False)

    def encode_texts(documents: Sequence[Document], vectors: Floats) -> Codes:
        from bidr.models.corpus_encoding import encode_codes
        from bidr.models.corpus_encoding import encode_texts as encode

        encoder = model.sparse
        max_tokens = min(model.text.document_length, encoder.max_length)
        texts = [compose_text(document, model.text.titles) for document in documents]
        code_vectors = encode(encoder, texts, prompt=encoder.prompts.document, max_length=max_tokens)
        return encode_codes(model.codebooks, code_vectors, encoder)

    return RepairModel(reference, model.codebooks, model.lists, encode_texts, from_texts=True)
