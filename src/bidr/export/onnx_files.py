"""The files of an ONNX export, each compared with the checksum in onnx.json before it is loaded.

onnx.json carries a checksum over itself. It names encoders and files by bare names alone, and no link is followed, so
nothing outside the export is read.
"""

import json
import os
import re
from pathlib import Path
from typing import IO, Any

from bidr.errors import ModelError
from bidr.utils.files import open_regular, parse_signed_json

FORMAT = 3
ABOUT, WHOLE, INT8, TOKENIZER = "onnx.json", "model.onnx", "model_int8.onnx", "tokenizer.json"
BARE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
READ_BYTES = 1 << 22
EXPORT_AGAIN = "export the model again (bidr export), or delete the folder if a server keeps its files there"


def describe_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and checksum of every file of one exported encoder, by name."""
    return {path.name: _describe(path) for path in sorted(folder.iterdir())}


def load_about(folder: Path) -> dict[str, Any]:
    """Read onnx.json; ModelError where it is damaged, of another format, or names what is not in its folder."""
    path = folder / ABOUT
    try:
        with _open_file(path) as opened:
            content = opened.read()
        version = json.loads(content)["format"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read ({error}); {EXPORT_AGAIN}") from error
    if version != FORMAT:
        raise ModelError(f"{path}: format {version!r}, expected {FORMAT}; {EXPORT_AGAIN}")
    try:
        about = parse_signed_json(content)
        _check_names(about)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} cannot be used ({error}); {EXPORT_AGAIN}") from error
    return about


def read_file(folder: Path, about: dict[str, Any], encoder: str, name: str) -> bytes:
    """Read one file of an export and compare it with its checksum."""
    path, entry = _find(folder, about, encoder, name)
    try:
        with _open_file(path) as opened:
            # Not more than was written: what grew is refused without being read whole.
            content = opened.read(entry["size"] + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    from xxhash import xxh3_128_hexdigest

    if len(content) != entry["size"] or xxh3_128_hexdigest(content) != entry["xxh3"]:
        raise _damaged(path)
    return content


def verify_file(folder: Path, about: dict[str, Any], encoder: str, name: str) -> Path:
    """Compare one file of an export with its checksum; return its path, for what takes no bytes."""
    path, entry = _find(folder, about, encoder, name)
    try:
        actual = _describe(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    if actual != entry:
        raise _damaged(path)
    return path


def verify_export(folder: Path) -> dict[str, Any]:
    """Compare every file of an export with its checksum; return what onnx.json says."""
    about = load_about(folder)
    for encoder, described in about["encoders"].items():
        for name in described["checksums"]:
            verify_file(folder, about, encoder, name)
    return about


def list_external_data(about: dict[str, Any], encoder: str, name: str) -> list[str]:
    """The files that hold the weights of an ONNX file too large for one."""
    return [file for file in about["encoders"][encoder]["checksums"] if file.startswith(f"{name}.")]


def _check_names(about: dict[str, Any]) -> None:
    for encoder, described in about["encoders"].items():
        for name in (encoder, *described["checksums"]):
            if not BARE_NAME.fullmatch(name):
                raise ValueError(f"the name {name!r}, expected a bare name without folders")
        if not {WHOLE, TOKENIZER} <= described["checksums"].keys():
            raise ValueError(f"{encoder} without {WHOLE} or {TOKENIZER}")
    for role in ("queries", "documents"):
        for side in ("codes", "vectors"):
            if about[role][side]["encoder"] not in about["encoders"]:
                raise ValueError(f"the encoder {about[role][side]['encoder']!r}, which is none of its own")


def _find(folder: Path, about: dict[str, Any], encoder: str, name: str) -> tuple[Path, dict[str, Any]]:
    path = folder / encoder / name
    if path.parent.is_symlink():
        raise ModelError(f"{path.parent}: a link, expected a folder of the export itself; {EXPORT_AGAIN}")
    try:
        entry: dict[str, Any] = about["encoders"][encoder]["checksums"][name]
    except LookupError as error:
        raise ModelError(f"{path}: not named in {folder / ABOUT}, expected it there; {EXPORT_AGAIN}") from error
    return path, entry


def _describe(path: Path) -> dict[str, Any]:
    from xxhash import xxh3_128

    digest, size = xxh3_128(), 0
    with _open_file(path) as opened:
        while piece := opened.read(READ_BYTES):
            digest.update(piece)
            size += len(piece)
    return {"size": size, "xxh3": digest.hexdigest()}


def _open_file(path: Path) -> IO[bytes]:
    """Open a regular file; neither a link is followed nor a FIFO waited for."""
    return os.fdopen(open_regular(path, os.O_RDONLY), "rb")


def _unreadable(path: Path, error: OSError) -> ModelError:
    return ModelError(f"{path} cannot be read ({error.strerror or error}); {EXPORT_AGAIN}")


def _damaged(path: Path) -> ModelError:
    return ModelError(f"{path}: damaged, it is not what {ABOUT} says was exported; {EXPORT_AGAIN}")
