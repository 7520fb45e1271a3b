"""The ONNX files of a model: exported once, by one of several workers, and kept."""

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bidr.files import open_lock, storage_errors, write_json
from bidr.model.folder import Model
from bidr.model.onnx import ABOUT, FORMAT, INT8, export_onnx

PARITY = "parity.json"
Compare = Callable[[Path], dict[str, Any]]


def exported(model: Model, root: Path, index: str, *, int8: bool, compare: Compare) -> tuple[Path, dict[str, Any]]:
    """The folder of a model's files, and how near the 8-bit ones are (empty where they were not asked for).

    index:   what identifies the index that the 8-bit files are to answer from.
    compare: looks at a folder and says what to remember of its 8-bit files; not asked again for the same index.
    """
    folder = root / model.fingerprint[:16]
    with storage_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        with _alone(root / ".lock"):
            if not _whole(folder, model, int8):
                shutil.rmtree(folder, ignore_errors=True)
                export_onnx(Model(model.folder), folder, int8=int8)  # one of its own, so that its weights go again
            return folder, _parity(folder, index, compare) if int8 else {}


def _parity(folder: Path, index: str, compare: Compare) -> dict[str, Any]:
    path = folder / PARITY
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["index"] == index:
            return dict(found["parity"])
    except (OSError, ValueError, LookupError, TypeError):
        pass
    measured = compare(folder)
    write_json(path, {"index": index, "parity": measured})
    return measured


def _whole(folder: Path, model: Model, int8: bool) -> bool:
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        names = about["encoders"]
        same = about["format"] == FORMAT and about["model"] == model.fingerprint
        return same and (not int8 or all((folder / name / INT8).exists() for name in names))
    except (OSError, ValueError, LookupError, TypeError):
        return False


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with open_lock(path) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
