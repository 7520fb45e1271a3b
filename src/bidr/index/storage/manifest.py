"""The index folder as a reader sees it: CURRENT names a generation, its manifest names and checks every file.

INDEX/CURRENT                "000007 <xxh3 of the manifest>": the generation in force
INDEX/000007/manifest.json   what the index is, and the size and checksum of every file; it checks itself
INDEX/000007/...             files that never change

A generation is a segment, which is an index alone (as `build_index` writes it), or the state of an index that was added
to (`state.py`), which names its segments.
"""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from bidr.data.vector_source import truncate
from bidr.errors import REBUILD, IndexFolderError
from bidr.utils.array_types import Floats
from bidr.utils.files import check_regular, open_to_read, read_up_to

FORMAT = 2
LIVE_FORMAT = 3
METRIC = "inner product"
CURRENT = "CURRENT"
MANIFEST = "manifest.json"
GENERATION = re.compile(r"\d{6}")
BARE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
CHECKSUM = re.compile(r"[0-9a-f]{32}")
BLOCKS = re.compile(r"([0-9a-f]{8})*")
HASH_BYTES = 1 << 22
MOST_CURRENT, MOST_MANIFEST = 1 << 10, 64 << 20
MOST_COUNT = 1 << 40
"""Bytes of CURRENT and of a manifest, and what a count or a number of dimensions may be."""
WORDS = (16, 256)
UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""What code that takes values for what they should be may raise of JSON that holds others."""
T = TypeVar("T")


class FileEntry(NamedTuple):
    """What a file of the index must be: its size in bytes and its xxh3 (128 bit) as hex.

    blocks: of a file without checksums of its blocks beside it these checksums, 8 hexadecimal digits each, where a
            repair needs them: what is whole of a damaged file is told by them.
    """

    size: int
    xxh3: str
    blocks: str = ""

    def as_fields(self) -> dict[str, Any]:
        """As a manifest has it."""
        fields = self._asdict()
        if not self.blocks:
            del fields["blocks"]
        return fields

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        return cls(fields["size"], fields["xxh3"], fields.get("blocks", ""))


class ModelStamp(NamedTuple):
    """The model that made the vectors and codes, and where its folder was at the time."""

    fingerprint: str
    folder: str


class Spread(NamedTuple):
    """What is kept of some errors: their mean and variance, and how many there were."""

    mean: float
    variance: float
    sampled: int

    @classmethod
    def of(cls, errors: Floats) -> Self:
        return cls(float(errors.mean()), float(errors.var()), len(errors))


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What an index is. `dim` is that of the vectors, `code_dim` that of what the codes were made from."""

    count: int
    dim: int
    code_dim: int
    books: int
    words: int
    engine: str
    ef_construction: int
    model: ModelStamp | None
    files: dict[str, FileEntry]
    unit: bool = False
    """Whether vectors were brought to length 1 (cosines), as what is added and asked then must be too."""
    dims: int | None = None
    """How many first numbers of each vector are on disk, and rank; None: all."""
    code_error: Spread | None = None
    """Of the whole vectors that were given, as what is on disk does not tell it any more."""
    auto: bool = False
    """Whether the engine was chosen by the number of documents, and is again when they are compacted."""
    metric: str = METRIC
    format: int = FORMAT

    @property
    def stored_dim(self) -> int:
        """The dimensions of the vectors on disk."""
        return self.dim if self.dims is None else self.dims

    def cut(self, vectors: Floats) -> Floats:
        """Whole vectors, of documents or queries, as they are on disk and rank."""
        return vectors if self.dims is None else truncate(vectors, self.dims, unit=self.unit)


class HasFiles(Protocol):
    """Whatever names files with their sizes and checksums."""

    @property
    def files(self) -> dict[str, FileEntry]: ...


def checksum(content: bytes) -> str:
    from xxhash import xxh3_128_hexdigest

    return xxh3_128_hexdigest(content)


def file_checksum(path: Path) -> str:
    """xxh3 of a whole file, read in pieces."""
    return str(digest_of(path).hexdigest())


def digest_of(path: Path, size: int | None = None) -> Any:
    """xxh3 of a file or of its first bytes, to be gone on with."""
    from xxhash import xxh3_128

    digest, left = xxh3_128(), path.stat().st_size if size is None else size
    if left:
        with open_to_read(path) as content:
            while piece := content.read(min(HASH_BYTES, left)):
                digest.update(piece)
                left -= len(piece)
    return digest


def render(manifest: Manifest) -> bytes:
    """The one way a manifest is written, so that any other byte shows."""
    fields = asdict(manifest)
    fields["model"] = manifest.model._asdict() if manifest.model else None
    fields["files"] = {name: entry.as_fields() for name, entry in sorted(manifest.files.items())}
    # Left out where they say what held before there was a choice: vectors are whole, the engine stays.
    for name, usual in (("dims", None), ("code_error", None), ("auto", False)):
        if fields[name] is usual:
            del fields[name]
    return render_fields(fields)


def render_fields(fields: dict[str, Any]) -> bytes:
    body = json.dumps(fields, sort_keys=True).encode()
    whole = {"manifest": fields, "xxh3": checksum(body)}
    return (json.dumps(whole, indent=2, sort_keys=True) + "\n").encode()


def parse(content: bytes, path: Path) -> Manifest:
    """A manifest from its bytes; any damage, and any format but ours, is an error that says so."""
    fields = checked_fields(content, path)
    if fields["format"] != FORMAT:
        raise IndexFolderError(f"{path}: the state of an index that was added to, expected one segment; {REBUILD}")
    try:
        return _from_fields(fields)
    except UNREADABLE as error:
        raise IndexFolderError(f"{path}: not a manifest that bidr wrote ({error}); {REBUILD}") from error


def checked_fields(content: bytes, path: Path) -> dict[str, Any]:
    """What a manifest says, of either format, with its checksum found right."""
    try:
        fields: dict[str, Any] = json.loads(content)["manifest"]
        version, rendered = fields["format"], render_fields(fields)
    except UNREADABLE as error:
        raise IndexFolderError(f"{path}: damaged, it is no manifest of an index; {REBUILD}") from error
    if not is_count(version) or version not in (FORMAT, LIVE_FORMAT):
        raise IndexFolderError(
            f"{path}: index format {version!r}, this version of bidr reads format {FORMAT} and {LIVE_FORMAT}; "
            "build the index again, or install the version of bidr that made it"
        )
    if rendered != content:
        raise IndexFolderError(f"{path}: damaged, its checksum does not match its content; {REBUILD}")
    return fields


def entries_of(fields: Any) -> dict[str, FileEntry]:
    """Sizes and checksums by bare names."""
    if not isinstance(fields, dict):
        raise ValueError(f"files {fields!r}, expected names with size and checksum")
    files = {name: FileEntry.from_fields(entry) for name, entry in fields.items()}
    for name, entry in files.items():
        if not BARE_NAME.fullmatch(name):
            raise ValueError(f"file name {name!r}, expected a bare name without folders")
        if not is_count(entry.size) or not CHECKSUM.fullmatch(entry.xxh3) or not BLOCKS.fullmatch(entry.blocks):
            raise ValueError(f"file {name}: {entry}, expected a size and a checksum")
    return files


def is_count(value: Any, least: int = 0) -> bool:
    """Whether something is a whole number, not below `least`, that can count something there is."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST_COUNT


def stamp_of(fields: Any) -> ModelStamp | None:
    """The model that a manifest names."""
    if fields is None:
        return None
    model = ModelStamp(**fields)
    if not all(isinstance(value, str) and "\0" not in value for value in model):
        raise ValueError(f"model {fields}, expected its fingerprint and folder")
    return model


def _from_fields(fields: dict[str, Any]) -> Manifest:
    files = entries_of(fields["files"])
    error = _spread(fields["code_error"]) if "code_error" in fields else None
    manifest = Manifest(**{**fields, "files": files, "model": stamp_of(fields["model"]), "code_error": error})
    numbers = (manifest.count, manifest.dim, manifest.code_dim, manifest.books)
    if not all(is_count(number, 1) for number in numbers):
        raise ValueError(f"counts and dimensions {numbers}, expected numbers above 0")
    if not is_count(manifest.words) or manifest.words not in WORDS:
        raise ValueError(f"words {manifest.words!r}, expected {' or '.join(map(str, WORDS))}")
    if not isinstance(manifest.engine, str) or not isinstance(manifest.unit, bool):
        raise ValueError(f"engine {manifest.engine!r}, unit {manifest.unit!r}, expected a name, and true or false")
    if not is_count(manifest.ef_construction):
        raise ValueError(f"ef_construction {manifest.ef_construction!r}, expected a number")
    if manifest.dims is not None and not (is_count(manifest.dims, 1) and manifest.dims < manifest.dim):
        raise ValueError(f"dims {manifest.dims!r}, expected a number above 0 and below {manifest.dim}")
    if not isinstance(manifest.auto, bool):
        raise ValueError(f"auto {manifest.auto!r}, expected true or false")
    if manifest.metric != METRIC:
        raise ValueError(f"metric {manifest.metric!r}, expected {METRIC!r}")
    return manifest


def _spread(fields: Any) -> Spread:
    error = Spread(*fields)
    if not is_count(error.sampled, 1) or not all(0 <= float(value) < float("inf") for value in error[:2]):
        raise ValueError(f"code_error {fields!r}, expected a mean, a variance, and of how many")
    return error


def current_generation(folder: Path) -> tuple[str, str]:
    """Name of the generation in force and the checksum of its manifest."""
    path = folder / CURRENT
    try:
        content = read_up_to(path, MOST_CURRENT)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise IndexFolderError(f"{folder}: no index here (no file {CURRENT}); build one, or check the path") from error
    except OSError as error:
        raise IndexFolderError(f"{path}: cannot be read ({error.strerror}); check the path and its rights") from error
    name, _, digest = content.decode("ascii", "replace").partition(" ")
    if not (GENERATION.fullmatch(name) and digest.endswith("\n") and CHECKSUM.fullmatch(digest[:-1])):
        raise IndexFolderError(f"{path}: damaged, it holds {content[:60]!r}; {REBUILD}")
    return name, digest[:-1]


def read_manifest(folder: Path, name: str, digest: str) -> bytes:
    """The bytes of a generation's manifest, if they are those that whoever names it means."""
    path = folder / name / MANIFEST
    try:
        content = read_up_to(path, MOST_MANIFEST)
    except OSError as error:
        raise IndexFolderError(
            f"{path}: cannot be read ({error.strerror}), though the index names generation {name}; {REBUILD}"
        ) from error
    checked_fields(content, path)
    if checksum(content) != digest:
        raise IndexFolderError(f"{path}: not the manifest that {folder} names; one of them is damaged; {REBUILD}")
    return content


def open_segment(folder: Path, name: str, digest: str) -> Manifest:
    """The manifest of one segment, and the size of every file compared."""
    manifest = parse(read_manifest(folder, name, digest), folder / name / MANIFEST)
    check_sizes(folder / name, manifest.files)
    return manifest


def open_generation(folder: Path) -> tuple[Path, Manifest]:
    """The generation in force of an index that was built and not added to since."""

    def read(name: str, digest: str) -> tuple[Path, Manifest]:
        return folder / name, open_segment(folder, name, digest)

    return settled(folder, read)


def settled(folder: Path, read: Callable[[str, str], T]) -> T:
    """What `read` makes of the generation in force, once more if a writer replaced and removed it meanwhile."""
    while True:
        current = current_generation(folder)
        try:
            return read(*current)
        except IndexFolderError:
            if current_generation(folder) == current:
                raise


def check_sizes(generation: Path, files: dict[str, FileEntry]) -> None:
    """Refuse missing, truncated and grown files before any of them is used."""
    for name, entry in files.items():
        path = generation / name
        try:
            about = path.stat()
        except OSError as error:
            raise IndexFolderError(
                f"{path}: missing ({error.strerror}), expected {entry.size:,} bytes; {REBUILD}"
            ) from error
        if about.st_size != entry.size:
            raise IndexFolderError(
                f"{path}: {about.st_size:,} bytes, expected {entry.size:,}: truncated or changed; {REBUILD}"
            )
        try:
            check_regular(about)
        except OSError as error:
            raise IndexFolderError(f"{path}: {error.strerror}; {REBUILD}") from error


def check_content(generation: Path, manifest: "HasFiles", name: str) -> None:
    """Refuse a file of which any byte differs from what was written."""
    path = generation / name
    if name not in manifest.files:
        raise IndexFolderError(f"{path}: not named in {MANIFEST}, expected it there; {REBUILD}")
    try:
        found = file_checksum(path)
    except OSError as error:
        raise IndexFolderError(f"{path}: cannot be read ({error.strerror}); {REBUILD}") from error
    if found != manifest.files[name].xxh3:
        raise IndexFolderError(
            f"{path}: damaged, checksum {found} found, {manifest.files[name].xxh3} expected; {REBUILD}"
        )
