"""The ONNX files of a model: exported once, by one of several workers, and kept; compared before they are loaded."""

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

PARITY = "parity.json"
Compare = Callable[[Path], dict[str, Any]]


def export_cached(model: Model, root: Path, index: str, *, int8: bool, compare: Compare) -> tuple[Path, dict[str, Any]]:
    """The folder of a model's files, and how near the 8-bit ones are (empty where they were not asked for).

    index:   what identifies the index that the 8-bit files are to answer from.
    compare: looks at a folder and says what to remember of its 8-bit files; not asked again for the same index.
    """
    folder = root / model.fingerprint[:16]
    with storage_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        with _alone(root / ".lock"):
            if not _whole(folder, model, int8):
                remove(folder)
                export_onnx(Model(model.folder), folder, int8=int8)  # one of its own, so that its weights go again
            return folder, _parity(folder, index, compare) if int8 else {}


def _parity(folder: Path, index: str, compare: Compare) -> dict[str, Any]:
    path = folder / PARITY
    try:
        found = parse_signed_json(path.read_bytes())
        if found["index"] == index:
            return dict(found["parity"])
    except (OSError, ValueError, LookupError, TypeError):
        pass
    measured = compare(folder)
    write_signed_json(path, {"index": index, "parity": measured})
    return measured


def _whole(folder: Path, model: Model, int8: bool) -> bool:
    """Whether the files are those of the model, every byte as it was exported. What is not is exported again."""
    if not folder.exists():
        return False
    try:
        about = verify_export(folder)
    except ModelError as error:
        log("onnx-damaged", "warning", why=str(error), instead="export again")
        return False
    small = all(INT8 in described["checksums"] for described in about["encoders"].values())
    return bool(about["model"] == model.fingerprint and (not int8 or small))


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with open_lock(path) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
