"""An export is loaded only as it was written: every byte counts, and nothing outside its folder is read."""

import json
import os
import shutil
from pathlib import Path

import pytest

from bidr.errors import ModelError
from bidr.export.onnx_files import FORMAT, MANIFEST, describe_files, load_manifest, read_file, verify_export
from bidr.server.encoding.encoders import load_onnx_encoders
from bidr.utils.files import write_signed_json


@pytest.fixture
def export(tmp_path) -> Path:
    """Files as an export has them, with other content."""
    folder = tmp_path / "onnx"
    (folder / "sparse").mkdir(parents=True)
    for name in ("model.onnx", "tokenizer.json", "model.onnx.data"):
        (folder / "sparse" / name).write_bytes(name.encode() * 50)
    side = {"encoder": "sparse", "prompt": "", "max_length": 8}
    sides = {"codes": side, "vectors": side}
    encoders = {"sparse": {"checksums": describe_files(folder / "sparse")}}
    about = {"format": FORMAT, "model": "fp", "encoders": encoders, "queries": sides, "documents": sides}
    write_signed_json(folder / MANIFEST, about)
    return folder


def test_an_unchanged_export_is_read(export):
    about = verify_export(export)
    assert read_file(export, about, "sparse", "model.onnx") == b"model.onnx" * 50


def test_any_changed_byte_is_refused(export):
    for path in sorted(export.rglob("*.*")):
        content = path.read_bytes()
        for offset in range(0, len(content), 1 if path.name == MANIFEST else 20):
            changed = bytearray(content)
            changed[offset] ^= 0x01
            path.write_bytes(changed)
            with pytest.raises(ModelError, match=path.name):
                verify_export(export)
        for cut in (content[:-1], b"", content + b"x"):
            path.write_bytes(cut)
            with pytest.raises(ModelError, match=path.name):
                verify_export(export)
        path.write_bytes(content)
    verify_export(export)


@pytest.mark.parametrize("name", ["../outside", "/etc", "a/b", "..", ".", "", "sparse/../../outside"])
def test_paths_outside_are_refused_despite_a_valid_checksum(export, name):
    shutil.copytree(export / "sparse", export.parent / "outside")
    about = json.loads((export / MANIFEST).read_text())
    changed = {**about, "encoders": {**about["encoders"], name: about["encoders"]["sparse"]}}
    changed["queries"] = {side: {"encoder": name, "prompt": "", "max_length": 8} for side in ("codes", "vectors")}
    write_signed_json(export / MANIFEST, changed)
    with pytest.raises(ModelError, match="bare name"):
        load_manifest(export)
    files = {**about["encoders"]["sparse"]["checksums"], f"{name}/model.onnx": {"size": 1, "xxh3": ""}}
    write_signed_json(export / MANIFEST, {**about, "encoders": {"sparse": {"checksums": files}}})
    with pytest.raises(ModelError, match="bare name"):
        load_manifest(export)
    about["queries"]["codes"] = {"encoder": name}
    write_signed_json(export / MANIFEST, about)
    with pytest.raises(ModelError, match="expected one of the export"):
        load_manifest(export)


@pytest.mark.parametrize("what", ["sparse", "sparse/model.onnx", MANIFEST])
def test_links_are_refused_despite_valid_targets(export, what):
    elsewhere = export.parent / "elsewhere"
    (export / what).rename(elsewhere)
    (export / what).symlink_to(elsewhere)
    with pytest.raises(ModelError, match=r"link|cannot be read"):
        verify_export(export)


@pytest.mark.parametrize("content", ["", "[]", "{}", "null", '{"format": 3}', '{"format": 2}', "[" * 100_000])
def test_an_invalid_onnx_json_is_refused(export, content):
    (export / MANIFEST).write_text(content)
    with pytest.raises(ModelError, match=r"onnx\.json"):
        load_manifest(export)


@pytest.mark.parametrize(
    ("field", "value"), [("prompt", None), ("prompt", 3), ("max_length", 0), ("max_length", "8"), ("max_length", True)]
)
def test_an_invalid_prompt_or_length_is_refused_despite_a_valid_checksum(export, field, value):
    about = json.loads((export / MANIFEST).read_text())
    about["queries"]["codes"][field] = value
    write_signed_json(export / MANIFEST, about)
    with pytest.raises(ModelError, match="expected"):
        load_manifest(export)


@pytest.mark.parametrize("file", ["model.onnx", "tokenizer.json"])
@pytest.mark.parametrize("content", [b"", b"not one", b"{}", b"\xff" * 100])
def test_a_file_of_other_content_is_a_model_error_despite_a_valid_checksum(export, file, content):
    pytest.importorskip("onnxruntime")
    (export / "sparse" / file).write_bytes(content)
    (export / "sparse" / "model.onnx.data").unlink()
    about = json.loads((export / MANIFEST).read_text())
    about["encoders"]["sparse"]["checksums"] = describe_files(export / "sparse")
    write_signed_json(export / MANIFEST, about)
    with pytest.raises(ModelError, match="sparse cannot be used"):
        load_onnx_encoders(export, {"queries": False, "documents": False}, threads=1)


def test_a_sparse_file_is_refused_instead_of_read_into_memory(export):
    path = export / "sparse" / "model.onnx"
    os.truncate(path, 1 << 40)
    about = json.loads((export / MANIFEST).read_text())
    about["encoders"]["sparse"]["checksums"]["model.onnx"]["size"] = 1 << 40
    write_signed_json(export / MANIFEST, about)
    with pytest.raises(ModelError, match=r"model\.onnx cannot be read"):
        read_file(export, load_manifest(export), "sparse", "model.onnx")
