"""Read and validate CURRENT and manifests.

INDEX/CURRENT                "000007 <xxh3 of the manifest>": the current generation
INDEX/000007/manifest.json   index settings, size and checksum of every file, checksum of the manifest itself
INDEX/000007/...             immutable files

A generation is either a segment (written by `build_index`, usable as an index alone) or the state of an updated index
(`live_state.py`), which names its segments.
"""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from bidr.data.vector_source import Metric, truncate
from bidr.errors import REBUILD, IndexFolderError
from bidr.utils.array_types import Floats
from bidr.utils.files import check_regular, open_to_read, read_up_to

FORMAT = 2
LIVE_FORMAT = 3
METRIC = "inner product"
L2_METRIC = "L2"
"""Scores are negative squared Euclidean distances."""
CURRENT = "CURRENT"
MANIFEST = "manifest.json"
GENERATION = re.compile(r"\d{6}")
BARE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
CHECKSUM = re.compile(r"[0-9a-f]{32}")
BLOCK_CHECKSUMS = re.compile(r"([0-9a-f]{8})*")
HASH_READ_BYTES = 1 << 22
MAX_CURRENT_BYTES, MAX_MANIFEST_BYTES = 1 << 10, 64 << 20
MAX_COUNT = 1 << 40
"""Largest valid document count or dimension."""
CODEBOOK_SIZES = (16, 256)
PARSE_ERRORS = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""Errors raised when parsed JSON has unexpected types or values."""
T = TypeVar("T")


class FileEntry(NamedTuple):
    """Expected size in bytes and xxh3 (128 bit, hex) of an index file.

    blocks: block checksums, 8 hex digits each, of files without a checksum file; `bidr repair` finds damaged blocks
            by them.
    """

    size: int
    xxh3: str
    blocks: str = ""

    def as_fields(self) -> dict[str, Any]:
        """Return the entry as JSON fields of a manifest."""
        fields = self._asdict()
        if not self.blocks:
            del fields["blocks"]
        return fields

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        return cls(fields["size"], fields["xxh3"], fields.get("blocks", ""))


class ModelReference(NamedTuple):
    """Fingerprint of the model that encoded an index, and its folder at build time."""

    fingerprint: str
    folder: str


class EncoderReference(NamedTuple):
    """The text encoder of an index of vectors, as opened at build time.

    name:        Folder, .onnx file or Hugging Face id.
    fingerprint: Hash of its weights, tokenizer and settings.
    """

    name: str
    fingerprint: str
    query_prompt: str
    document_prompt: str
    max_length: int
    """Maximum number of tokens of a text."""
    titles: str
    """Whether documents are encoded with their titles: "prepend" or "ignore"."""


class ErrorStats(NamedTuple):
    """Mean, variance and number of quantization errors."""

    mean: float
    variance: float
    sampled: int

    @classmethod
    def from_errors(cls, errors: Floats) -> Self:
        return cls(float(errors.mean()), float(errors.var()), len(errors))


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Index settings and files. `dim` is that of the vectors, `code_dim` that of the codebooks."""

    count: int
    dim: int
    code_dim: int
    books: int
    words: int
    engine: str
    ef_construction: int
    model: ModelReference | None
    files: dict[str, FileEntry]
    unit: bool = False
    """Whether vectors are L2-normalized; queries and added vectors are then normalized as well."""
    dims: int | None = None
    """Leading dimensions that are stored and used for ranking; None: all."""
    code_error: ErrorStats | None = None
    """Quantization error of the full vectors, which truncated vectors cannot provide."""
    encoder: EncoderReference | None = None
    """The text encoder, if the index was built with one and without a model of texts."""
    auto: bool = False
    """Whether the engine is chosen by the document count, at build time and at each compaction."""
    metric: str = METRIC
    format: int = FORMAT

    @property
    def similarity(self) -> Metric:
        """The similarity by which documents are ranked."""
        return "cosine" if self.unit else "l2" if self.metric == L2_METRIC else "ip"

    @property
    def stored_dim(self) -> int:
        """Dimensions of the stored vectors."""
        return self.dim if self.dims is None else self.dims

    def truncate(self, vectors: Floats) -> Floats:
        """Truncate document or query vectors to the stored dimensions."""
        return vectors if self.dims is None else truncate(vectors, self.dims, unit=self.unit)


class HasFiles(Protocol):
    """A manifest or state with a table of file entries."""

    @property
    def files(self) -> dict[str, FileEntry]: ...


def hash_bytes(content: bytes) -> str:
    from xxhash import xxh3_128_hexdigest

    return xxh3_128_hexdigest(content)


def hash_file(path: Path) -> str:
    """Compute the xxh3 of a file."""
    return str(start_file_hash(path).hexdigest())


def start_file_hash(path: Path, size: int | None = None) -> Any:
    """Hash a file or its first `size` bytes; return the hash object, which can be updated further."""
    from xxhash import xxh3_128

    digest, remaining = xxh3_128(), path.stat().st_size if size is None else size
    if remaining:
        with open_to_read(path) as content:
            while piece := content.read(min(HASH_READ_BYTES, remaining)):
                digest.update(piece)
                remaining -= len(piece)
    return digest


def render_manifest(manifest: Manifest) -> bytes:
    """Serialize a manifest canonically, so that any changed byte is detected."""
    fields = asdict(manifest)
    fields["model"] = manifest.model._asdict() if manifest.model else None
    fields["files"] = {name: entry.as_fields() for name, entry in sorted(manifest.files.items())}
    # Omit defaults, as indexes written before these fields existed do.
    fields["encoder"] = manifest.encoder._asdict() if manifest.encoder else None
    for name, default in (("dims", None), ("code_error", None), ("encoder", None), ("auto", False)):
        if fields[name] is default:
            del fields[name]
    return render_fields(fields)


def render_fields(fields: dict[str, Any]) -> bytes:
    body = json.dumps(fields, sort_keys=True).encode()
    document = {"manifest": fields, "xxh3": hash_bytes(body)}
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()


def parse_manifest(content: bytes, path: Path) -> Manifest:
    """Parse a segment's manifest; damage and unsupported formats raise IndexFolderError."""
    fields = parse_fields(content, path)
    if fields["format"] != FORMAT:
        raise IndexFolderError(f"{path}: manifest of an updated index, expected that of a segment; {REBUILD}")
    try:
        return _build_manifest(fields)
    except PARSE_ERRORS as error:
        raise IndexFolderError(f"{path}: not a manifest that bidr wrote ({error}); {REBUILD}") from error


def parse_fields(content: bytes, path: Path) -> dict[str, Any]:
    """Parse a manifest of either format and verify its checksum."""
    try:
        fields: dict[str, Any] = json.loads(content)["manifest"]
        version, rendered = fields["format"], render_fields(fields)
    except PARSE_ERRORS as error:
        raise IndexFolderError(f"{path}: damaged, not an index manifest; {REBUILD}") from error
    if not is_count(version) or version not in (FORMAT, LIVE_FORMAT):
        raise IndexFolderError(
            f"{path}: index format {version!r}, this version of bidr reads format {FORMAT} and {LIVE_FORMAT}; "
            "build the index again, or install the version of bidr that made it"
        )
    if rendered != content:
        raise IndexFolderError(f"{path}: damaged, its checksum does not match its content; {REBUILD}")
    return fields


def parse_file_entries(fields: Any) -> dict[str, FileEntry]:
    """Parse and validate the file entries of a manifest."""
    if not isinstance(fields, dict):
        raise ValueError(f"files {fields!r}, expected names with size and checksum")
    files = {name: FileEntry.from_fields(entry) for name, entry in fields.items()}
    for name, entry in files.items():
        if not BARE_NAME.fullmatch(name):
            raise ValueError(f"file name {name!r}, expected a bare name without folders")
        if (
            not is_count(entry.size)
            or not CHECKSUM.fullmatch(entry.xxh3)
            or not BLOCK_CHECKSUMS.fullmatch(entry.blocks)
        ):
            raise ValueError(f"file {name}: {entry}, expected a size and a checksum")
    return files


def is_count(value: Any, minimum: int = 0) -> bool:
    """Whether a value is an int between `minimum` and MAX_COUNT."""
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= MAX_COUNT


def parse_model_reference(fields: Any) -> ModelReference | None:
    """Parse the model of a manifest; None where it has none."""
    if fields is None:
        return None
    model = ModelReference(**fields)
    if not all(isinstance(value, str) and "\0" not in value for value in model):
        raise ValueError(f"model {fields}, expected its fingerprint and folder")
    return model


def _build_manifest(fields: dict[str, Any]) -> Manifest:
    files = parse_file_entries(fields["files"])
    parsed: dict[str, Any] = {"files": files, "model": parse_model_reference(fields["model"])}
    parsed["code_error"] = _parse_error_stats(fields["code_error"]) if "code_error" in fields else None
    parsed["encoder"] = _parse_encoder_reference(fields["encoder"]) if "encoder" in fields else None
    manifest = Manifest(**{**fields, **parsed})
    numbers = (manifest.count, manifest.dim, manifest.code_dim, manifest.books)
    if not all(is_count(number, 1) for number in numbers):
        raise ValueError(f"counts and dimensions {numbers}, expected numbers above 0")
    if not is_count(manifest.words) or manifest.words not in CODEBOOK_SIZES:
        raise ValueError(f"words {manifest.words!r}, expected {' or '.join(map(str, CODEBOOK_SIZES))}")
    if not isinstance(manifest.engine, str) or not isinstance(manifest.unit, bool):
        raise ValueError(f"engine {manifest.engine!r}, unit {manifest.unit!r}, expected a name, and true or false")
    if not is_count(manifest.ef_construction):
        raise ValueError(f"ef_construction {manifest.ef_construction!r}, expected a number")
    if manifest.dims is not None and not (is_count(manifest.dims, 1) and manifest.dims < manifest.dim):
        raise ValueError(f"dims {manifest.dims!r}, expected a number above 0 and below {manifest.dim}")
    if not isinstance(manifest.auto, bool):
        raise ValueError(f"auto {manifest.auto!r}, expected true or false")
    if manifest.metric not in (METRIC, L2_METRIC) or (manifest.metric == L2_METRIC and manifest.unit):
        raise ValueError(f"metric {manifest.metric!r}, expected {METRIC!r}, or {L2_METRIC!r} of vectors as they are")
    return manifest


def _parse_encoder_reference(fields: Any) -> EncoderReference:
    encoder = EncoderReference(**fields)
    texts = (encoder.name, encoder.fingerprint, encoder.query_prompt, encoder.document_prompt)
    if not all(isinstance(text, str) and "\0" not in text for text in texts) or not is_count(encoder.max_length, 1):
        raise ValueError(f"encoder {fields!r}, expected its name, fingerprint, prompts and maximum length")
    if encoder.titles not in ("prepend", "ignore"):
        raise ValueError(f"titles {encoder.titles!r}, expected 'prepend' or 'ignore'")
    return encoder


def _parse_error_stats(fields: Any) -> ErrorStats:
    error = ErrorStats(*fields)
    if not is_count(error.sampled, 1) or not all(0 <= float(value) < float("inf") for value in error[:2]):
        raise ValueError(f"code_error {fields!r}, expected a mean, a variance, and of how many")
    return error


def read_current(folder: Path) -> tuple[str, str]:
    """Read CURRENT: the name of the current generation and the checksum of its manifest."""
    path = folder / CURRENT
    try:
        content = read_up_to(path, MAX_CURRENT_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise IndexFolderError(f"{folder}: no index here (no file {CURRENT}); build one, or check the path") from error
    except OSError as error:
        raise IndexFolderError(f"{path}: cannot be read ({error.strerror}); check the path and its rights") from error
    name, _, digest = content.decode("ascii", "replace").partition(" ")
    if not (GENERATION.fullmatch(name) and digest.endswith("\n") and CHECKSUM.fullmatch(digest[:-1])):
        raise IndexFolderError(f"{path}: damaged, it holds {content[:60]!r}; {REBUILD}")
    return name, digest[:-1]


def read_manifest(folder: Path, name: str, digest: str) -> bytes:
    """Read a generation's manifest and verify that its checksum is `digest`."""
    path = folder / name / MANIFEST
    try:
        content = read_up_to(path, MAX_MANIFEST_BYTES)
    except OSError as error:
        raise IndexFolderError(
            f"{path}: cannot be read ({error.strerror}), but the index refers to generation {name}; {REBUILD}"
        ) from error
    parse_fields(content, path)
    if hash_bytes(content) != digest:
        raise IndexFolderError(f"{path}: checksum differs from the one that {folder} refers to; {REBUILD}")
    return content


def open_segment(folder: Path, name: str, digest: str) -> Manifest:
    """Read the manifest of a segment and check the size of every file."""
    manifest = parse_manifest(read_manifest(folder, name, digest), folder / name / MANIFEST)
    check_sizes(folder / name, manifest.files)
    return manifest


def open_generation(folder: Path) -> tuple[Path, Manifest]:
    """Open the current generation of an index without updates."""

    def read(name: str, digest: str) -> tuple[Path, Manifest]:
        return folder / name, open_segment(folder, name, digest)

    return resolve_generation(folder, read)


def resolve_generation(folder: Path, read: Callable[[str, str], T]) -> T:
    """Call `read(name, digest)` with the current generation; retry if a writer replaced it meanwhile."""
    while True:
        current = read_current(folder)
        try:
            return read(*current)
        except IndexFolderError:
            if read_current(folder) == current:
                raise


def check_sizes(generation: Path, files: dict[str, FileEntry]) -> None:
    """Raise IndexFolderError for missing, truncated, grown and irregular files."""
    for name, entry in files.items():
        path = generation / name
        try:
            status = path.stat()
        except OSError as error:
            raise IndexFolderError(
                f"{path}: missing ({error.strerror}), expected {entry.size:,} bytes; {REBUILD}"
            ) from error
        if status.st_size != entry.size:
            raise IndexFolderError(
                f"{path}: {status.st_size:,} bytes, expected {entry.size:,}: truncated or changed; {REBUILD}"
            )
        try:
            check_regular(status)
        except OSError as error:
            raise IndexFolderError(f"{path}: {error.strerror}; {REBUILD}") from error


def check_content(generation: Path, manifest: "HasFiles", name: str) -> None:
    """Raise IndexFolderError unless a file matches its checksum."""
    path = generation / name
    if name not in manifest.files:
        raise IndexFolderError(f"{path}: not listed in {MANIFEST}; {REBUILD}")
    try:
        actual = hash_file(path)
    except OSError as error:
        raise IndexFolderError(f"{path}: cannot be read ({error.strerror}); {REBUILD}") from error
    expected = manifest.files[name].xxh3
    if actual != expected:
        raise IndexFolderError(f"{path}: damaged, checksum {actual}, expected {expected}; {REBUILD}")
