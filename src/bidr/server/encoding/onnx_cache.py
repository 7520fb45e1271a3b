"""Cache of the ONNX files of a model: exported once, by one of several workers, and verified when loaded."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bidr.errors import ModelError
from bidr.export.onnx import export_onnx
from bidr.export.onnx_files import INT8, verify_export
from bidr.models.saved_model import Model
from bidr.server.json_logs import log
from bidr.utils.files import open_lock, parse_signed_json, remove, storage_errors, write_signed_json

PARITY_FILE = "parity.json"
Compare = Callable[[Path], dict[str, Any]]


def export_cached(model: Model, root: Path, index: str, *, int8: bool, compare: Compare) -> tuple[Path, dict[str, Any]]:
    """Export a model if needed; return its folder and the parity of its int8 files (empty without `int8`).

    Args:
        index: identifies the index that the int8 files will search.
        compare: measures the parity of a folder; the result is cached for the index.
    """
    folder = root / model.fingerprint[:16]
    with storage_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        with _hold_lock(root / ".lock"):
            if not _is_complete(folder, model, int8):
                remove(folder)
                export_onnx(Model(model.folder), folder, int8=int8)  # a second instance, so that its weights are freed
            return folder, _load_or_measure_parity(folder, index, compare) if int8 else {}


def _load_or_measure_parity(folder: Path, index: str, compare: Compare) -> dict[str, Any]:
    path = folder / PARITY_FILE
    try:
        cached = parse_signed_json(path.read_bytes())
        if cached["index"] == index:
            return dict(cached["parity"])
    except (OSError, ValueError, LookupError, TypeError):
        pass
    parity = compare(folder)
    write_signed_json(path, {"index": index, "parity": parity})
    return parity


def _is_complete(folder: Path, model: Model, int8: bool) -> bool:
    """Whether a folder has all files of the model, unchanged; otherwise they are exported again."""
    if not folder.exists():
        return False
    try:
        manifest = verify_export(folder)
    except ModelError as error:
        log("onnx-damaged", "warning", why=str(error), instead="export again")
        return False
    has_int8 = all(INT8 in encoder["checksums"] for encoder in manifest["encoders"].values())
    return bool(manifest["model"] == model.fingerprint and (not int8 or has_int8))


@contextmanager
def _hold_lock(path: Path) -> Iterator[None]:
    with open_lock(path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
