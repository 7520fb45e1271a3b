"""Export an index with the query side of its model."""

from pathlib import Path

from bidr.errors import ModelError
from bidr.export.plain_files import ExportedIndex, QueryEncoders, write_export
from bidr.index.live.live_reader import LiveIndex
from bidr.index.reader import check_model
from bidr.index.storage.live_state import read_model_reference
from bidr.models.codes_only_model import KIND, CodesOnlyModel
from bidr.models.saved_model import read_model_json
from bidr.quantization.codebooks import Codebooks


def export_index(
    index: Path | str, out: Path | str, *, engine: str = "scan", model: Path | str | None = None
) -> ExportedIndex:
    """Write an index as plain files, and a README with code that reads them with numpy and Faiss.

    Args:
        engine: type of the Faiss index: "scan" (all codes), "lists" (if the index has lists), or "hnsw" (built now).
        model: folder of the model, if it has moved since the index was built.
    """
    adapted, encoders, made_by = None, None, read_model_reference(Path(index))
    if made_by is not None:
        adapted, encoders = _load_query_side(Path(index), Path(model or made_by.folder))
    with LiveIndex.open(index) as opened:
        return write_export(opened.latest(), Path(out), engine, adapted=adapted, encoders=encoders)


def _load_query_side(index: Path, model: Path) -> tuple[Codebooks | None, QueryEncoders | None]:
    """Load codebooks with the query adapter of a model if it has one; else the names of its query encoders."""
    try:
        model_json = read_model_json(model)
        frozen = CodesOnlyModel(model) if model_json.get("kind") == KIND else None
    except ModelError as error:
        raise ModelError(
            f"{index} was built with the model in {model}, whose query encoder is needed and which cannot be opened "
            f'there any more ({error}); say where it is now: bidr.export_index(..., model="FOLDER") in Python'
        ) from error
    check_model(index, read_model_reference(index), model_json["fingerprint"])
    if frozen is not None:
        return frozen.additive.to_adapted_codebooks(), None
    sides = ("query", "query") if model_json["unified"] else ("sparse", "dense")
    return None, QueryEncoders(*(f"the model's `{side}/`" for side in sides))
