"""Saved text model: two encoders, codebooks, optionally one query encoder for both, and text settings.

model.json   format, fingerprint, training record, recommended search settings, and a checksum over itself
sparse/      encoder of the codes, quantizer.safetensors (rotation, codebooks), and optionally lists.safetensors
             (learned IVF lists)
dense/       encoder of the vectors
query/       unified query encoder (optional)
"""

import json
import math
import shutil
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import xxhash

from bidr.data.dataset import Titles
from bidr.errors import ModelError
from bidr.models.auto import limit_length, open_encoder
from bidr.models.corpus_encoding import encode_texts
from bidr.models.encoder_interface import TextEncoder
from bidr.models.static_encoder import StaticEncoder
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.learned_ivf import LearnedIvf
from bidr.utils.array_types import Floats
from bidr.utils.files import (
    BUFFER_BYTES,
    open_to_read,
    parse_signed_json,
    read_up_to,
    storage_errors,
    write_signed_json,
)

FORMAT, MAX_JSON_BYTES = 1, 64 << 20
# Keys of a model.json without a checksum, of either kind: versions before the checksum wrote such files.
UNSIGNED_KEYS = frozenset(
    [
        "format",
        "fingerprint",
        "unified",
        "candidates",
        "text",
        "codes",
        "lists",
        "training",
        "kind",
        "metric",
        "dimensions",
    ]
)
QUANTIZER, LISTS = "quantizer.safetensors", "lists.safetensors"


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """Title policy and maximum lengths of texts."""

    titles: Titles
    query_length: int
    document_length: int


@dataclass(frozen=True)
class SearchSettings:
    """Recommended fusion with BM25: candidates per query, and the weight of their score."""

    lexical: int = 0
    lexical_weight: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ModelParts:
    """Parts of a new model: folders of saved encoders, codebooks, and learned IVF lists."""

    sparse: Path
    dense: Path
    query: Path | None
    codebooks: Codebooks
    lists: LearnedIvf | None = None


class SavedModel(ABC):
    """An open model folder of either kind. Reads model.json, and checks that its fingerprint matches the files."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        fields = read_model_json(self.folder)
        try:
            self._read_fields(fields)
            self.fingerprint: str = fields["fingerprint"]
            self.candidates: int = fields["candidates"]
            self.training: dict[str, Any] = fields["training"]
            if not isinstance(self.fingerprint, str) or not isinstance(self.training, dict):
                raise ValueError("fingerprint or training, expected a text and a table")
            if not is_positive_int(self.candidates):
                raise ValueError(f"candidates {self.candidates!r}, expected a number above 0")
            self.search = parse_search_settings(fields.get("search", {}))
        except (LookupError, TypeError, ValueError) as error:
            path = self.folder / "model.json"
            raise ModelError(f"{path} cannot be read ({error}); train the model again or restore the file") from error
        fingerprint = self._compute_fingerprint()
        if fingerprint != self.fingerprint:
            raise ModelError(
                f"{self.folder}: files of fingerprint {fingerprint}, model.json says {self.fingerprint}; restore them"
            )

    @abstractmethod
    def _read_fields(self, fields: dict[str, Any]) -> None:
        """Read the fields of the kind; ValueError for invalid ones."""

    @abstractmethod
    def _compute_fingerprint(self) -> str:
        """Hash the files of the model."""

    @cached_property
    def codebooks(self) -> Codebooks:
        return Codebooks.load(self.folder / "sparse" / QUANTIZER)


class Model(SavedModel):
    """An open model folder with text encoders, which are loaded on first use."""

    def __init__(self, folder: Path | str, device: str = "cpu") -> None:
        self.device = device
        super().__init__(folder)

    def _read_fields(self, fields: dict[str, Any]) -> None:
        if "kind" in fields:
            raise ModelError(
                f"{self.folder} holds a model of kind {fields['kind']!r}, which has no text encoder; "
                "use it with vectors (--vectors, --query-vectors)"
            )
        self.text = TextSettings(**fields["text"])
        self.unified: bool = fields["unified"]
        lengths = (self.text.query_length, self.text.document_length)
        if not all(is_positive_int(length) for length in lengths) or self.text.titles not in get_args(Titles):
            raise ValueError(f"text {self.text}, expected lengths above 0 and {' or '.join(get_args(Titles))}")
        if not isinstance(self.unified, bool):
            raise ValueError(f"unified {self.unified!r}, expected true or false")

    def _compute_fingerprint(self) -> str:
        return compute_fingerprint(self.folder, self.text)

    @cached_property
    def lists(self) -> LearnedIvf | None:
        """Learned IVF lists; None: an index clusters its own."""
        path = self.folder / "sparse" / LISTS
        return LearnedIvf.load(path) if path.exists() else None

    @cached_property
    def sparse(self) -> TextEncoder:
        return self._open("sparse")

    @cached_property
    def dense(self) -> TextEncoder:
        return self._open("dense")

    @cached_property
    def query(self) -> TextEncoder | None:
        return self._open("query") if self.unified else None

    def encode_queries(self, texts: list[str]) -> tuple[Floats, Floats]:
        """Encode queries for the codes and for the vectors; a unified encoder encodes once for both.

        Two transformers on a CPU run in parallel; the sum of a static encoder takes less than starting a thread.
        """
        if self.query is not None:
            vectors = self._encode(self.query, texts)
            return vectors, vectors
        sparse, dense = self.sparse, self.dense  # opened before another thread uses them
        if self.device != "cpu" or isinstance(dense, StaticEncoder):
            return self._encode(sparse, texts), self._encode(dense, texts)
        with ThreadPoolExecutor(1) as pool:  # one for each call: a forked child has no threads of its parent
            dense_vectors = pool.submit(self._encode, dense, texts)
            return self._encode(sparse, texts), dense_vectors.result()

    def _encode(self, encoder: TextEncoder, texts: list[str]) -> Floats:
        return encode_texts(encoder, texts, prompt=encoder.prompts.query, max_length=self.text.query_length)

    def _open(self, part: str) -> TextEncoder:
        return open_encoder(self.folder / part, self.device)


def parse_search_settings(fields: Any) -> SearchSettings:
    """Parse the recommended search settings of model.json; TypeError or ValueError for invalid ones."""
    settings = SearchSettings(**fields)
    weight = settings.lexical_weight
    has_count = settings.lexical == 0 or is_positive_int(settings.lexical)
    if not has_count or type(settings.lexical) is not int or type(weight) not in (int, float):
        raise ValueError(f"search {fields!r}, expected a number and a weight")
    if not math.isfinite(weight):
        raise ValueError(f"search {fields!r}, expected a finite weight")
    return settings


def is_positive_int(value: Any) -> bool:
    """Return whether a value is an integer from 1 to 2**31 - 1."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31


def read_model_json(folder: Path) -> dict[str, Any]:
    """Read model.json and check its format and checksum."""
    path = folder / "model.json"
    try:
        content = read_up_to(path, MAX_JSON_BYTES)
        format = json.loads(content)["format"]
    except FileNotFoundError as error:
        raise ModelError(f"{folder} has no model.json; give a folder in which `bidr train` finished") from error
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read ({error}); train the model again or restore the file") from error
    # Also by type: a damaged byte can turn 1 into 1e0 or true.
    if format != FORMAT or type(format) is not int:
        raise ModelError(f"{path}: format {format}, expected {FORMAT}; use the version of bidr that wrote it")
    try:
        return parse_signed_json(content, UNSIGNED_KEYS)
    except (ValueError, TypeError) as error:
        raise ModelError(f"{path} cannot be read ({error}); restore the file or train the model again") from error


def save_model(
    folder: Path,
    parts: ModelParts,
    text: TextSettings,
    *,
    candidates: int,
    training: dict[str, Any],
    search: SearchSettings | None = None,
    device: str = "cpu",
) -> Model:
    """Save a model. model.json is deleted first and written last: without it there is no model."""
    temporary = folder / ".new"
    sources = {"sparse": parts.sparse, "dense": parts.dense, "query": parts.query}
    shared = text.document_length if parts.query else max(text.document_length, text.query_length)
    lengths = {"sparse": shared, "dense": shared, "query": text.query_length}
    with storage_errors(folder):
        shutil.rmtree(temporary, ignore_errors=True)
        for name, source in sources.items():
            if source:
                shutil.copytree(source, temporary / name)
                limit_length(temporary / name, lengths[name])
        parts.codebooks.save(temporary / "sparse" / QUANTIZER)
        if parts.lists is not None:
            parts.lists.save(temporary / "sparse" / LISTS)
        fields = {
            "format": FORMAT,
            "fingerprint": compute_fingerprint(temporary, text),
            "unified": parts.query is not None,
            "candidates": candidates,
            "text": asdict(text),
            "codes": {"books": parts.codebooks.books, "words": parts.codebooks.words},
            "lists": len(parts.lists.means) if parts.lists else None,
            **({"search": asdict(search)} if search else {}),
            "training": training,
        }
        (folder / "model.json").unlink(missing_ok=True)
        for name in sources:
            shutil.rmtree(folder / name, ignore_errors=True)
            if (temporary / name).exists():
                (temporary / name).rename(folder / name)
        write_signed_json(folder / "model.json", fields)
        temporary.rmdir()
    return Model(folder, device)


def hash_file(digest: Any, path: Path) -> None:
    """Update a digest with the content of a file."""
    try:
        with open_to_read(path) as content:
            while piece := content.read(BUFFER_BYTES):
                digest.update(piece)
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}); restore it or train the model again") from error


def compute_fingerprint(folder: Path, text: TextSettings) -> str:
    """Hash everything that affects vectors and codes."""
    digest = xxhash.xxh3_128(json.dumps(asdict(text), sort_keys=True).encode())
    for part in ("sparse", "dense", "query"):
        for path in sorted((folder / part).rglob("*")):
            if path.suffix in {".safetensors", ".json", ".txt", ".model"}:
                digest.update(str(path.relative_to(folder)).encode())
                hash_file(digest, path)
    return digest.hexdigest()
