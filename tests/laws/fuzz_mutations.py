"""Changes that an attacker could make to index and model folders, with every checksum made right again.

`mutate` changes something in one of the ways below and signs the folder anew: what bidr then refuses, it refuses for
what the files say, not for a checksum.
"""

import json
import os
import random
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bidr.errors import BidrError
from bidr.export.onnx_files import MANIFEST as ONNX_MANIFEST
from bidr.export.onnx_files import describe_file
from bidr.index.live.wal import ACKNOWLEDGED, LOG, RECORD, format_header, pack_mark, pack_record
from bidr.index.storage.checksums import CHECKSUM_FILE_SUFFIX
from bidr.index.storage.manifest import CURRENT, MANIFEST, hash_bytes, hash_file, read_current, render_fields
from bidr.index.vectors.npy_header import BLOCK, format_npy_header
from bidr.index.vectors.page_cache_io import compute_checksums
from bidr.index.vectors.row_layout import CHECKSUM_DTYPE, CHECKSUM_SUFFIX, make_checksum_keys
from bidr.search.evaluation import EVALUATED
from bidr.utils.files import render_signed_json

DEEP, ENDLESS = "@@deep@@", "@@endless@@"
HUGE = 1 << 40
NASTY: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 3, 15, 16, 255, 256, 65_535, 1 << 20, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 40),
    *(
        1 << 53,
        (1 << 63) - 1,
        1 << 63,
        1 << 64,
        -1 << 31,
        -1 << 63,
        10**30,
        -(10**30),
        10**400,
        0.5,
        -0.0,
        1e-320,
        1e308,
    ),
    *(float("nan"), float("inf"), float("-inf"), "", "x", "0", "1", "../x", "/dev/zero", "a" * 5_000, "\ud800", "\x00"),
    *(
        [],
        {},
        [[]],
        [0],
        [None],
        ["a"],
        {"a": 1},
        {"": []},
        [0] * 50,
        DEEP,
        ENDLESS,
        "number",
        "word",
        "whole",
        "truth",
    ),
    *("scan", "lists", "hnsw", "prepend", "ignore", "cosine", "ip", "000001", "000002", "000009", [[0, 0]], [-1]),
]
NPY = re.compile(rb"\x93NUMPY\x01\x00(..)(\{[^\n]*?\}) *\n", re.DOTALL)
TYPES = ["|u1", "|i1", "<i2", "<u2", "<f2", "<i4", "<u4", "<f4", "<i8", "<u8", "<f8", ">f4", "|b1", "<c8", "|O", "<U4"]
FLOATS = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3e38, -3e38, 65_504.0, 1.0, -1.0]


def mutate(folder: Path, rng: random.Random, others: list[Path]) -> str:
    """Change one to three things of a folder with an index and perhaps a model, and sign it; what was done."""
    variant = _Variant(folder, rng, others)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        with suppress(Exception):
            variant.change()  # what was changed before may have left nothing that can be changed so
    variant.sign()
    return "; ".join(variant.told)


def to_json(value: Any) -> bytes:
    """JSON that may be nested deeper than Python could write it, and hold numbers longer than it reads."""
    return _filled(json.dumps(value).encode())


def _filled(content: bytes) -> bytes:
    depth = 100_000
    for name, filling in ((DEEP, b"[" * depth + b"]" * depth), (ENDLESS, b"9" * 6_000)):
        content = content.replace(json.dumps(name).encode(), filling)
    return content


class _Variant:
    def __init__(self, folder: Path, rng: random.Random, others: list[Path]) -> None:
        self.index, self.model, self.rng, self.others = folder / "index", folder / "model", rng, others
        self.onnx = folder / "onnx"
        self.told: list[str] = []
        self.edits: dict[str, list[Callable[[Any], Any]]] = {}
        """What is done to manifests when they are signed, by generation."""
        self.unsigned: set[Path] = set()
        """Files that are left as they are: checksums of blocks that were themselves changed."""
        self.sizes: dict[Path, int] = {}
        """Files too large to be summed up."""

    def tell(self, path: Path, what: str) -> None:
        self.told.append(f"{path.relative_to(self.index.parent)}: {what}")

    def change(self) -> None:
        if self.onnx.exists() and self.rng.random() < 0.6:
            self.change_file(self.rng.choice(self._list_files(self.onnx)))
        elif self.onnx.exists() and self.rng.random() < 0.3:
            self.change_file(self.index / EVALUATED)
        elif self.model.exists() and self.rng.random() < 0.6:
            self.change_file(self.rng.choice(self._list_files(self.model)))
        elif self.rng.random() < 0.3:
            self._change_manifest()
        else:
            files = [
                path
                for path in self.index.rglob("*")
                if path.is_file() and path.name[0] != "." and path not in self.sizes
            ]
            # Each kind of file as often as the others, whatever generation it is in.
            name = self.rng.choice(sorted({path.name for path in files}))
            self.change_file(self.rng.choice(sorted(path for path in files if path.name == name)))

    def change_file(self, path: Path) -> None:
        rng, odd = self.rng, self.rng.random()
        if path.name == MANIFEST:
            self._change_manifest(path.parent.name)
        elif odd < 0.04:
            self._other_kind(path)
        elif odd < 0.10:
            self._splice(path)
        elif odd < 0.14 or path.name == CURRENT:
            self._bytes(path)
        elif path.name in (LOG, ACKNOWLEDGED):
            self._log(path.parent)
        elif path.name.endswith(".npy"):
            self._npy(path)
        elif path.name.endswith(".safetensors"):
            self._safetensors(path)
        elif path.suffix == ".json":
            self._json(path)
        elif path.name.startswith("documents.blob") or path.name.startswith("attributes.blob"):
            self._blob(path)
        else:
            self._bytes(path)
        if path.name.endswith((CHECKSUM_FILE_SUFFIX, CHECKSUM_SUFFIX)) and rng.random() < 0.5:
            self.unsigned.add(path)

    # -- whole files

    def _other_kind(self, path: Path) -> None:
        kind = self.rng.choice(("gone", "sparse", "fifo", "device", "folder", "empty", "dangling"))
        self.tell(path, kind)
        if kind == "sparse":
            os.truncate(path, HUGE)
            self.sizes[path] = HUGE
            return
        path.unlink()
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        elif kind == "folder":
            path.mkdir()
        elif kind == "empty":
            path.write_bytes(b"")
        elif kind == "dangling":
            path.symlink_to("nowhere")
        elif self.rng.random() < 0.7:
            self._edit(path.parent.name, lambda fields: fields["files"].pop(path.name, None))

    def _splice(self, path: Path) -> None:
        """A file of the same or another name, of this or another folder, in its place."""
        root = self.rng.choice([self.index.parent, *self.others])
        files = sorted(
            each
            for each in root.rglob("*")
            if each.is_file() and each.stat().st_size < HUGE and each.suffix == path.suffix
        )
        same = [each for each in files if each.name == path.name]
        source = self.rng.choice(same if same and self.rng.random() < 0.7 else files or [path])
        self.tell(path, f"{source.parent.parent.parent.name}/{source.name} in its place")
        path.write_bytes(source.read_bytes())

    def _bytes(self, path: Path) -> None:
        rng, content = self.rng, bytearray(path.read_bytes())
        how = rng.choice(("flip", "flip", "cut", "longer", "fill", "double", "text"))
        self.tell(path, f"bytes: {how}")
        at = rng.randrange(len(content) + 1)
        if how == "flip":
            for _ in range(rng.choice((1, 1, 4, 40))):
                if content:
                    content[rng.randrange(len(content))] ^= rng.randrange(1, 256)
        elif how == "cut":
            del content[at:]
        elif how == "longer":
            content += rng.randbytes(rng.choice((1, 7, 64, 4096)))
        elif how == "fill":
            end = min(len(content), at + rng.choice((1, 8, 64)))
            content[at:end] = bytes([rng.choice((0, 255, 0x7F, 0x80))]) * (end - at)
        elif how == "double":
            content *= 2
        else:
            content[at : at + 4] = rng.choice((b"\xff\xfe", b"\xed\xa0\x80", b"{", b"\x00" * 4, b"[[[["))
        path.write_bytes(content)

    # -- JSON

    def _json(self, path: Path) -> None:
        try:
            value = json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            return
        value, what = self.change_json(value)
        self.tell(path, what)
        path.write_bytes(to_json(value))

    def change_json(self, value: Any) -> tuple[Any, str]:
        """Change something anywhere in a value."""
        rng, way, parent = self.rng, list[Any](), [value]
        key: Any = 0
        holder: Any = parent
        while isinstance(holder[key], dict | list) and holder[key] and (not way or rng.random() < 0.85):
            holder = holder[key]
            key = rng.choice(sorted(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
            way.append(key)
        old, how = holder[key], rng.random()
        if how < 0.12 and way:
            del holder[key]
            return parent[0], f"{way} left out"
        if how < 0.2 and isinstance(holder, dict):
            holder[rng.choice(("x", "", "name", "\ud800", key + "x"))] = rng.choice(NASTY)
            return parent[0], f"another beside {way}"
        if how < 0.25 and isinstance(holder, list) and way:
            holder.append(old)
            return parent[0], f"{way} twice"
        if how < 0.5 and isinstance(old, int | float) and not isinstance(old, bool):
            with suppress(OverflowError):
                holder[key] = rng.choice((old + 1, old - 1, 2 * old, -old, float(old), str(old), old + (1 << 32)))
        else:
            holder[key] = rng.choice(NASTY)
        return parent[0], f"{way} = {str(holder[key])[:40]!r}"

    def _blob(self, path: Path) -> None:
        """Strings that are JSON, changed, with offsets to fit."""
        offsets_path = path.with_name(path.name.replace(".blob", ".offsets.npy"))
        offsets, content = np.load(offsets_path), path.read_bytes()
        lines = [content[start:end] for start, end in pairwise(offsets)]
        for _ in range(self.rng.choice((1, 1, len(lines)))):
            row = self.rng.randrange(len(lines))
            with suppress(ValueError, RecursionError):
                value, what = self.change_json(json.loads(lines[row]))
                lines[row] = to_json(value)
        self.tell(path, f"a row: {what}")
        path.write_bytes(b"".join(lines))
        ends = np.cumsum([0, *map(len, lines)]).astype("<u8")
        offsets_path.write_bytes(format_npy_header(ends.dtype, ends.shape) + ends.tobytes())

    # -- arrays

    def _npy(self, path: Path) -> None:
        content, rng = path.read_bytes(), self.rng
        match = NPY.match(content)
        if match is None:
            self._bytes(path)
            return
        if rng.random() < 0.35:
            self._npy_header(path, content, match)
            return
        with suppress(ValueError, TypeError):
            array = np.load(path, allow_pickle=False)
            changed, what = self.change_array(array.copy())
            self.tell(path, what)
            path.write_bytes(
                format_npy_header(changed.dtype, changed.shape, BLOCK if path.name == "vectors.npy" else 64)
            )
            with path.open("ab") as out:
                out.write(np.ascontiguousarray(changed).tobytes())

    def _npy_header(self, path: Path, content: bytes, match: re.Match[bytes]) -> None:
        rng, text = self.rng, match[2].decode("latin-1")
        way = rng.choice(("shape", "shape", "descr", "order", "length", "spaces", "unaligned"))
        length = match[1]
        if way == "shape":
            number = str(rng.choice((0, 1, 2, -1, 1 << 31, 1 << 62, 1 << 63, 1 << 64, 10**300)))
            shape = rng.choice((f"({number},)", f"({number}, {number})", "()", "(1 2,)", "(1, 2, 3)", f"({number}"))
            text = re.sub(r"'shape': \([^)]*\)", f"'shape': {shape}", text)
        elif way == "descr":
            text = re.sub(r"'descr': ('[^']*'|\[[^\]]*\])", f"'descr': '{rng.choice(TYPES)}'", text)
        elif way == "order":
            text = text.replace("False", "True")
        elif way == "spaces":
            text = text.replace("'descr'", rng.choice(("'d\xe9scr'", " 'descr'", "'descr' "))).replace(
                "vector", "v\xff"
            )
        elif way == "length":
            length = rng.choice((b"\x00\x00", b"\xff\xff", b"\x10\x00"))
        padding = b" " * rng.choice((0, 1, 7, 17)) if way == "unaligned" else b" " * (match.end() - match.end(2) - 1)
        self.tell(path, f"header: {way}: {text[:90]}")
        path.write_bytes(
            b"\x93NUMPY\x01\x00" + length + text.encode("latin-1") + padding + b"\n" + content[match.end() :]
        )

    def change_array(self, array: Any) -> tuple[Any, str]:
        """Other values in it, in another order, of another shape or type."""
        rng = self.rng
        way = rng.choice(("values", "values", "values", "all", "order", "rows", "type", "shape"))
        flat = array.reshape(-1) if array.dtype.names is None else array["scale"].reshape(-1)
        if way in ("values", "all") and flat.size:
            value = self._extreme(flat.dtype, flat.size)
            where = slice(None)
            if way == "values":
                where = [rng.randrange(flat.size) for _ in range(rng.choice((1, 1, 3, 1 + flat.size // 4)))]
                if rng.random() < 0.3:
                    where = [rng.choice((0, -1))]
            if array.dtype.names is not None:
                array["scale"][where] = value
            else:
                flat[where] = value
            return array, f"{way} {value!r}"
        if way == "order":
            kind = rng.choice(("reversed", "shuffled", "sorted"))
            shuffled = np.random.default_rng(rng.randrange(1 << 30)).permutation(len(array))
            found = array[::-1].copy() if kind == "reversed" else array[shuffled]
            return np.sort(array, axis=0) if kind == "sorted" else found, kind
        if way == "rows":
            count = rng.choice((0, 1, max(len(array) - 1, 0), len(array) + 1, 2 * len(array)))
            return np.resize(array, (count, *array.shape[1:])), f"{count} rows"
        if way == "type":
            kind = rng.choice(("u1", "i1", "<f2", "<i4", "<u4", "<f4", "<i8", "<u8", "<f8"))
            return flat.astype(kind).reshape(array.shape) if array.dtype.names is None else array, f"as {kind}"
        shape = rng.choice(((-1,), (1, -1), (-1, 1), (1, 1, -1)))
        return array.reshape(shape), f"shape {shape}"

    def _extreme(self, dtype: Any, size: int) -> Any:
        if dtype.kind == "f":
            with np.errstate(over="ignore"):
                return np.array(self.rng.choice(FLOATS)).astype(dtype)[()]
        if dtype.kind not in "iu":
            return False
        about = np.iinfo(dtype)
        low, high = int(about.min), int(about.max)
        numbers = (0, 1, -1, low, high, high // 2, size - 2, size - 1, size, size + 1, 2 * size, 1 << 62, (1 << 62) + 5)
        return dtype.type(self.rng.choice([each for each in numbers if low <= each <= high]))

    def _safetensors(self, path: Path) -> None:
        rng, content = self.rng, path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        try:
            about = json.loads(content[8 : 8 + size])
            data = content[8 + size :]
        except (ValueError, RecursionError):
            self._bytes(path)
            return
        way = rng.choice(("length", "header", "header", "offsets", "array", "array", "array", "gone", "another"))
        names = [name for name in about if name != "__metadata__"]
        name = rng.choice(names or [""])
        what = f"{way} {name}"
        if way == "length":
            size = rng.choice((0, 1, size - 1, size + 1, len(content), 1 << 32, (1 << 63) - 1, (1 << 64) - 1))
            path.write_bytes(size.to_bytes(8, "little") + content[8:])
        elif way == "header":
            about, what = self.change_json(about)
            self._put(path, to_json(about), data)
        elif way == "offsets" and names:
            other = about[rng.choice(names)]["data_offsets"]
            end = len(data) + rng.choice((-1, 0, 4, 1 << 40))
            about[name]["data_offsets"] = rng.choice(
                ([0, end], other, other[::-1], [-4, 4], [1 << 62, 1 << 62], [3, 7])
            )
            self._put(path, to_json(about), data)
        else:
            arrays = {key: self._array_of(about[key], data) for key in names}
            if way == "gone" and names:
                arrays[rng.choice(("x", "centre", name))] = arrays.pop(name)
            elif way == "another":
                arrays[rng.choice(("centre", "document", "choosing", "x"))] = np.zeros(
                    rng.choice(((1,), (16,), (16, 16), (4, 16, 4), (0,), (2, 2, 2, 2))), np.float32
                )
            elif names:
                with suppress(ValueError, TypeError):
                    arrays[name], what = self.change_array(arrays[name].copy())
            self._put(path, *_stored(arrays))
        self.tell(path, what)

    @staticmethod
    def _array_of(about: dict[str, Any], data: bytes) -> Any:
        kinds = {"F32": "<f4", "F64": "<f8", "F16": "<f2", "I64": "<i8", "U8": "|u1", "I8": "|i1", "I32": "<i4"}
        try:
            start, end = about["data_offsets"]
            return np.frombuffer(data[start:end], kinds[about["dtype"]]).reshape(about["shape"])
        except (LookupError, ValueError, TypeError):
            return np.zeros((2, 2), np.float32)

    @staticmethod
    def _put(path: Path, about: bytes, data: bytes) -> None:
        path.write_bytes(len(about).to_bytes(8, "little") + about + data)

    # -- the log

    def _log(self, state: Path) -> None:
        rng, path = self.rng, state / LOG
        content = path.read_bytes()
        records, place = list[bytes](), len(format_header(state.name))
        while place + RECORD.size <= len(content):
            length = RECORD.unpack_from(content, place)[0]
            records.append(content[place + RECORD.size : place + RECORD.size + length])
            place += RECORD.size + length
        way = rng.choice(("about", "about", "about", "arrays", "length", "records", "mark", "end", "rest", "sparse"))
        what, number, rest = way, rng.randrange(max(len(records), 1)), b""
        if way in ("about", "arrays", "length") and records:
            record = records[number]
            end = 4 + int.from_bytes(record[:4], "little")
            if way == "about":
                with suppress(ValueError, RecursionError):
                    about, what = self.change_json(json.loads(record[4:end]))
                    said = to_json(about)
                    records[number] = len(said).to_bytes(4, "little") + said + record[end:]
            elif way == "arrays":
                arrays = bytearray(record[end:])
                for _ in range(rng.choice((1, 8, len(arrays)))):
                    if arrays:
                        arrays[rng.randrange(len(arrays))] = rng.choice((0, 255, 0x7C, 0x7F))
                records[number] = record[:end] + arrays
            else:
                records[number] = struct.pack("<I", rng.choice((0, 1, end, 1 << 31, (1 << 32) - 1))) + record[4:]
        elif way == "records":
            records = rng.choice((records[::-1], records * 2, records[1:], [b""], [b"\x00" * 4], [*records, b"{}"]))
        content = format_header(state.name)
        chain = _chain(content)
        for record in records:
            written, chain = pack_record(record, chain)
            content += written
        durable = len(content)
        if way == "rest":
            rest = rng.choice((b"\x00", b"\xff" * 40, RECORD.pack((1 << 32) - 1, 0), rng.randbytes(64)))
        if way == "mark":
            durable = rng.choice((0, 1, durable - 1, durable + 1, 1 << 40, (1 << 64) - 1))
        self.tell(path, what)
        path.write_bytes(content + rest)
        (state / ACKNOWLEDGED).write_bytes(pack_mark(durable) if way != "end" else rng.randbytes(32))
        if way == "sparse":
            length = RECORD.pack((1 << 32) - 1, 0) if rng.random() < 0.5 else b""
            path.write_bytes(content + length)
            os.truncate(path, HUGE)

    # -- manifests

    def _change_manifest(self, generation: str = "") -> None:
        names = sorted(path.parent.name for path in self.index.glob(f"*/{MANIFEST}"))
        name = generation or self.rng.choice(names)

        def edit(fields: Any) -> Any:
            files = fields.pop("files", None) if self.rng.random() < 0.8 else None
            changed, what = self.change_json(fields)
            if files is not None and isinstance(changed, dict):
                changed["files"] = files
            self.told.append(f"index/{name}/{MANIFEST}: {what}")
            return changed

        self._edit(name, edit)

    def _edit(self, generation: str, edit: Callable[[Any], Any]) -> None:
        self.edits.setdefault(generation, []).append(edit)

    def _list_files(self, folder: Path) -> list[Path]:
        return sorted(path for path in folder.rglob("*") if path.is_file() and path not in self.sizes)

    # -- signing

    def sign(self) -> None:
        """Make every checksum right: of blocks, files, manifests, states and the model."""
        fingerprint = sign_model(self.model) if self.model.exists() else None
        digests: dict[str, str] = {}
        manifests = sorted(self.index.glob(f"*/{MANIFEST}"), key=_is_state)
        for path in manifests:
            digests[path.parent.name] = self._sign_generation(path, digests, fingerprint)
        current = self.index / CURRENT
        with suppress(OSError, ValueError, LookupError):
            content = current.read_bytes() if current.is_file() and current.stat().st_size < HUGE else b""
            name = content.split(b" ")[0].decode()
            if name in digests and len(content) == len(name) + 34:
                current.write_text(f"{name} {digests[name]}\n")
        if (self.index / EVALUATED).is_file() and self.index / EVALUATED not in self.sizes:
            self._sign_recall_curve()
        if self.onnx.exists():
            self._sign_onnx()

    def _sign_recall_curve(self) -> None:
        """Make a recall curve one of the current generation."""
        with suppress(OSError, ValueError, LookupError, TypeError, RecursionError, BidrError):
            curve = json.loads((self.index / EVALUATED).read_bytes())
            curve["generation"] = list(read_current(self.index))
            (self.index / EVALUATED).write_bytes(to_json(curve))

    def _sign_onnx(self) -> None:
        """Make the checksums of an ONNX export right, and that of its manifest."""
        path = self.onnx / ONNX_MANIFEST
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            manifest = json.loads(path.read_bytes())
            for name, described in manifest["encoders"].items():
                for file in (self.onnx / name).iterdir():
                    if file in self.sizes:
                        described["checksums"][file.name]["size"] = self.sizes[file]
                    elif file.is_file() and not file.is_symlink():
                        described["checksums"][file.name] = describe_file(file)
            path.write_bytes(_filled(render_signed_json(manifest)))

    def _sign_generation(self, path: Path, digests: dict[str, str], fingerprint: str | None) -> str:
        generation = path.parent
        try:
            fields = json.loads(path.read_bytes())["manifest"]
        except (OSError, ValueError, LookupError):
            return "0" * 32
        for name, entry in list(fields["files"].items()):
            file = generation / name
            if file in self.sizes:
                entry.update(size=self.sizes[file])
            elif file.is_file():
                self._sign_blocks(file, fields["files"])
                entry.update(size=file.stat().st_size, xxh3=hash_file(file))
            elif file.exists():
                entry.update(size=0 if not file.is_dir() else file.stat().st_size)
        for name, entry in fields["files"].items():  # those of blocks were written meanwhile
            file = generation / name
            if file.is_file() and file not in self.sizes and name.endswith((CHECKSUM_FILE_SUFFIX, CHECKSUM_SUFFIX)):
                entry.update(size=file.stat().st_size, xxh3=hash_file(file))
        if fingerprint is not None and isinstance(fields.get("model"), dict):
            fields["model"].update(fingerprint=fingerprint, folder=str(self.model))
        for segment in fields.get("segments", []):
            segment["xxh3"] = digests.get(segment["name"], segment["xxh3"])
        for edit in self.edits.get(generation.name, []):
            with suppress(KeyError, TypeError):
                edited = edit(fields)
                fields = fields if edited is None else edited
        content = _filled(render_fields(fields))
        if path.is_file():
            path.write_bytes(content)
        return hash_bytes(content)

    def _sign_blocks(self, file: Path, files: dict[str, Any]) -> None:
        name = (
            file.name.removesuffix(".npy") + CHECKSUM_SUFFIX
            if file.name == "vectors.npy"
            else file.name + CHECKSUM_FILE_SUFFIX
        )
        sums = file.with_name(name)
        if name not in files or sums in self.unsigned or not sums.is_file() or sums in self.sizes:
            return
        content = file.read_bytes()
        found = compute_checksums(
            np.frombuffer(content + bytes(-len(content) % BLOCK), "<u8"), np.empty(0, np.uint8), make_checksum_keys()
        ).astype(CHECKSUM_DTYPE)
        format_header = format_npy_header(CHECKSUM_DTYPE, found.shape) if name.endswith(CHECKSUM_SUFFIX) else b""
        sums.write_bytes(format_header + found.tobytes())


def sign_model(folder: Path) -> str | None:
    """Make the fingerprint in model.json that of the files, and its checksum its own; which fingerprint it is."""
    from bidr.errors import BidrError
    from bidr.models.codes_only_model import _hash_files
    from bidr.models.saved_model import TextSettings, compute_fingerprint
    from bidr.utils.files import render_signed_json

    path = folder / "model.json"
    if any(not each.is_file() and not each.is_dir() for each in folder.rglob("*")):
        return None
    if any(each.stat().st_size >= HUGE for each in folder.rglob("*")):
        return None
    try:
        about = json.loads(path.read_bytes())
        frozen = about.get("kind") == "frozen"
        found = (
            _hash_files(folder, about["metric"])
            if frozen
            else compute_fingerprint(folder, TextSettings(**about["text"]))
        )
        about["fingerprint"] = found
        path.write_bytes(render_signed_json(about))
        return found
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, BidrError):
        return None


def _is_state(path: Path) -> tuple[bool, str]:
    """States after the segments that they name."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        return "segments" in json.loads(path.read_bytes())["manifest"], str(path)
    return False, str(path)


def _chain(content: bytes) -> int:
    from xxhash import xxh3_64_intdigest

    return xxh3_64_intdigest(content, seed=0)


def _stored(arrays: dict[str, Any]) -> tuple[bytes, bytes]:
    """As safetensors lays them out."""
    kinds = {
        "f2": "F16",
        "f4": "F32",
        "f8": "F64",
        "i1": "I8",
        "u1": "U8",
        "i4": "I32",
        "u4": "U32",
        "i8": "I64",
        "u8": "U64",
    }
    about: dict[str, Any] = {}
    parts, end = list[bytes](), 0
    for name, array in arrays.items():
        content = np.ascontiguousarray(array).tobytes()
        kind = kinds.get(array.dtype.str[1:], "F32")
        about[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [end, end + len(content)]}
        parts.append(content)
        end += len(content)
    return json.dumps(about).encode(), b"".join(parts)
