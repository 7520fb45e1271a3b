"""From an index to plain files, with what its model knows of questions."""

from pathlib import Path

from bidr.errors import ModelError
from bidr.export.plain_files import ExportedIndex, write_export
from bidr.export.readme import Asked
from bidr.index.live.live_index import LiveIndex
from bidr.index.reader import check_model
from bidr.index.storage.live_state import model_of
from bidr.models.codes_only_model import KIND, CodesOnlyModel
from bidr.models.saved_model import read_model_json
from bidr.quantization.codebooks import Codebooks


def export_index(
    index: Path | str, out: Path | str, *, engine: str = "scan", model: Path | str | None = None
) -> ExportedIndex:
    """Write an index as plain files, with a README of the lines that read them by numpy and by Faiss alone.

    engine: of the Faiss index: "scan" (all codes), "lists" (of an index with lists), or "hnsw" (linked now).
    model:  the index's model folder, if that is no longer where it was when the index was built.
    """
    adapted, asked, made_by = None, None, model_of(Path(index))
    if made_by is not None:
        adapted, asked = _questions_of(Path(index), Path(model or made_by.folder))
    with LiveIndex.open(index) as opened:
        return write_export(opened.latest(), Path(out), engine, adapted=adapted, asked=asked)


def _questions_of(index: Path, model: Path) -> tuple[Codebooks | None, Asked | None]:
    """Of a model: codebooks with its query adapter in them, where it has one; else what encodes questions."""
    try:
        about = read_model_json(model)
        frozen = CodesOnlyModel(model) if about.get("kind") == KIND else None
    except ModelError as error:
        raise ModelError(
            f"{index} was built with the model in {model}, which says how questions are asked and cannot be opened "
            f'there any more ({error}); say where it is now: bidr.export_index(..., model="FOLDER") in Python'
        ) from error
    check_model(index, model_of(index), about["fingerprint"])
    if frozen is not None:
        return frozen.additive.to_adapted_codebooks(), None
    sides = ("query", "query") if about["unified"] else ("sparse", "dense")
    return None, Asked(*(f"the model's `{side}/`" for side in sides))
