"""Repairing an index: what is whole of a damaged one, with its model where that is needed, in a new one."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from bidr.data.dataset import compose_text
from bidr.data.types import Document
from bidr.errors import ModelError
from bidr.index.reader import check_model
from bidr.index.repair.salvage import ModelOfIndex, OpenModel, RepairReport, salvage_index
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
    """Save every document of a damaged index that is whole into a new one; the damaged one is only read.

    Args:
        path: The damaged index.
        out: A folder that does not exist yet. It appears whole or not at all.
        model: The folder of its model, if that is no longer where it was; it is opened where codes or codebooks are
            damaged.
        lost: Where documents that are not saved, or not whole, are listed; by default `out` with ".lost.jsonl" after
            it. Those of which id and text are whole are beside it (".again.jsonl"), as `bidr add` takes them.
        keep_incomplete: Save documents of which the text or the attributes are lost too, without these.
        refit: Where codebooks are lost and the model is too, fit plain ones: the index is then searched by vectors.
        device: Where the model encodes texts.

    Returns:
        What was saved and what was lost.
    """
    new = Path(out)
    lost_file = Path(lost) if lost is not None else new.with_name(new.name + LOST_SUFFIX)
    model_folder = None if model is None else Path(model)
    opener = _model_opener(Path(path), model_folder, device)
    return salvage_index(Path(path), new, lost_file, opener, keep_incomplete=keep_incomplete, refit=refit)


def _model_opener(index: Path, model_folder: Path | None, device: str) -> OpenModel:
    @cache
    def open_once(stamp: ModelReference | None) -> ModelOfIndex | None:
        if model_folder is None and stamp is None:
            return None
        where = model_folder or Path(stamp.folder if stamp else "")
        try:
            loaded = open_model(where, pick_device(device))
            if stamp is not None:
                check_model(index, stamp, loaded.fingerprint)
            return _describe(loaded)
        except ModelError:
            if model_folder is not None:
                raise
            return None

    return open_once


def _describe(model: Model | CodesOnlyModel) -> ModelOfIndex:
    stamp = ModelReference(model.fingerprint, str(model.folder.resolve()))
    if isinstance(model, CodesOnlyModel):

        def encode_vectors(documents: Sequence[Document], vectors: Floats) -> Codes:
            return model.additive.encode(model.documents(vectors))

        return ModelOfIndex(stamp, model.codebooks, None, encode_vectors, from_texts=False)

    def encode_texts(documents: Sequence[Document], vectors: Floats) -> Codes:
        from bidr.models.corpus_encoding import encode_codes
        from bidr.models.corpus_encoding import encode_texts as encode

        encoder = model.sparse
        longest = min(model.text.document_length, encoder.max_length)
        texts = [compose_text(document, model.text.titles) for document in documents]
        vectors_of_codes = encode(encoder, texts, prompt=encoder.prompts.document, max_length=longest)
        return encode_codes(model.codebooks, vectors_of_codes, encoder)

    return ModelOfIndex(stamp, model.codebooks, model.lists, encode_texts, from_texts=True)
