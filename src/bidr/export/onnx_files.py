"""Files of an ONNX export, verified against the checksums in onnx.json before they are loaded.

onnx.json has a checksum of itself. Names of encoders and files have no folders, and links are not followed, so that
nothing outside the export is read.
"""

import json
import re
from pathlib import Path
from typing import IO, Any

from bidr.errors import ModelError
from bidr.utils.files import open_to_read, parse_signed_json

FORMAT = 3
MANIFEST, FULL_PRECISION, INT8, TOKENIZER = "onnx.json", "model.onnx", "model_int8.onnx", "tokenizer.json"
BARE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
READ_BYTES = 1 << 22
EXPORT_AGAIN = "export the model again (bidr export), or delete the folder if a server keeps its files there"


def describe_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Return size and checksum of every file of an exported encoder, by name."""
    return {path.name: describe_file(path) for path in sorted(folder.iterdir())}


def describe_file(path: Path) -> dict[str, Any]:
    """Return size and checksum of a file."""
    from xxhash import xxh3_128

    digest, size = xxh3_128(), 0
    with _open_file(path) as opened:
        while piece := opened.read(READ_BYTES):
            digest.update(piece)
            size += len(piece)
    return {"size": size, "xxh3": digest.hexdigest()}


def load_manifest(folder: Path) -> dict[str, Any]:
    """Load onnx.json; raise ModelError if it is damaged, of another format, or has invalid names or limits."""
    path = folder / MANIFEST
    try:
        with _open_file(path) as opened:
            content = opened.read()
        version = json.loads(content)["format"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read ({error}); {EXPORT_AGAIN}") from error
    if version != FORMAT:
        raise ModelError(f"{path}: format {version!r}, expected {FORMAT}; {EXPORT_AGAIN}")
    try:
        manifest = parse_signed_json(content)
        _check_manifest(manifest)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} cannot be used ({error}); {EXPORT_AGAIN}") from error
    return manifest


def read_file(folder: Path, manifest: dict[str, Any], encoder: str, name: str) -> bytes:
    """Read a file of an export and verify its checksum."""
    path, entry = _find(folder, manifest, encoder, name)
    try:
        with _open_file(path) as opened:
            # One byte more than expected: a file that grew is refused without reading all of it.
            content = opened.read(entry["size"] + 1)
    except OSError as error:
        raise _make_read_error(path, error) from error
    from xxhash import xxh3_128_hexdigest

    if len(content) != entry["size"] or xxh3_128_hexdigest(content) != entry["xxh3"]:
        raise _make_damage_error(path)
    return content


def verify_file(folder: Path, manifest: dict[str, Any], encoder: str, name: str) -> Path:
    """Verify the checksum of a file of an export and return its path."""
    path, entry = _find(folder, manifest, encoder, name)
    try:
        actual = describe_file(path)
    except OSError as error:
        raise _make_read_error(path, error) from error
    if actual != entry:
        raise _make_damage_error(path)
    return path


def verify_export(folder: Path) -> dict[str, Any]:
    """Verify the checksum of every file of an export and return onnx.json."""
    manifest = load_manifest(folder)
    for encoder, described in manifest["encoders"].items():
        for name in described["checksums"]:
            verify_file(folder, manifest, encoder, name)
    return manifest


def list_external_data(manifest: dict[str, Any], encoder: str, name: str) -> list[str]:
    """List the files with external weights of an ONNX file."""
    return [file for file in manifest["encoders"][encoder]["checksums"] if file.startswith(f"{name}.")]


def _check_manifest(manifest: dict[str, Any]) -> None:
    for encoder, described in manifest["encoders"].items():
        for name in (encoder, *described["checksums"]):
            if not BARE_NAME.fullmatch(name):
                raise ValueError(f"the name {name!r}, expected a bare name without folders")
        if not {FULL_PRECISION, TOKENIZER} <= described["checksums"].keys():
            raise ValueError(f"{encoder} without {FULL_PRECISION} or {TOKENIZER}")
    for role in ("queries", "documents"):
        for side in ("codes", "vectors"):
            entry = manifest[role][side]
            if entry["encoder"] not in manifest["encoders"]:
                raise ValueError(f"the encoder {entry['encoder']!r}, expected one of the export")
            if not isinstance(entry["prompt"], str):
                raise ValueError(f"the prompt {entry['prompt']!r}, expected a text")
            if type(entry["max_length"]) is not int or entry["max_length"] < 1:
                raise ValueError(f"the maximum length {entry['max_length']!r}, expected an integer of 1 or more")


def _find(folder: Path, manifest: dict[str, Any], encoder: str, name: str) -> tuple[Path, dict[str, Any]]:
    path = folder / encoder / name
    if path.parent.is_symlink():
        raise ModelError(f"{path.parent}: a link, expected a folder of the export itself; {EXPORT_AGAIN}")
    try:
        entry: dict[str, Any] = manifest["encoders"][encoder]["checksums"][name]
    except LookupError as error:
        raise ModelError(f"{path}: not named in {folder / MANIFEST}, expected it there; {EXPORT_AGAIN}") from error
    return path, entry


def _open_file(path: Path) -> IO[bytes]:
    """Open a regular file that is not sparse, without following links or blocking on a FIFO."""
    return open_to_read(path, follow=False)


def _make_read_error(path: Path, error: OSError) -> ModelError:
    return ModelError(f"{path} cannot be read ({error.strerror or error}); {EXPORT_AGAIN}")


def _make_damage_error(path: Path) -> ModelError:
    return ModelError(f"{path}: damaged: the checksum differs from {MANIFEST}; {EXPORT_AGAIN}")
