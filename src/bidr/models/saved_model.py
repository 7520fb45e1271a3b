"""The saved model: two encoders, the codebooks, perhaps one query encoder for both, and what text they expect.

model.json   what it is, its fingerprint, how it was trained, and a checksum over itself
sparse/      encoder of the codes, quantizer.safetensors (rotation, codebooks), and lists.safetensors where coarse lists
             were learned
dense/       encoder of the vectors
query/       the unified query encoder (absent where each side has its own)
"""

import json
import shutil
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import xxhash

from bidr.data.dataset import Titles
from bidr.errors import ModelError
from bidr.models.auto import limit_length, open_encoder
from bidr.models.corpus_encoding import encode_texts
from bidr.models.text_encoder import TextEncoder
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
# Those of a model.json without a checksum, of either kind, as it was written before there was one.
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
    """What of a text the model reads."""

    titles: Titles
    query_length: int
    document_length: int


@dataclass(frozen=True, kw_only=True)
class ModelParts:
    """Where the parts of a new model are: folders of saved encoders, the codebooks, and lists if any were learned."""

    sparse: Path
    dense: Path
    query: Path | None
    codebooks: Codebooks
    lists: LearnedIvf | None = None


class Model:
    """A model folder that is open. Encoders are loaded when they are first used."""

    def __init__(self, folder: Path | str, device: str = "cpu") -> None:
        self.folder, self.device = Path(folder), device
        about = read_model_json(self.folder)
        if "kind" in about:
            raise ModelError(
                f"{self.folder} holds a model of kind {about['kind']!r}, which has no text encoder; "
                "use it with vectors (--vectors, --query-vectors)"
            )
        try:
            self.text = TextSettings(**about["text"])
            self.fingerprint: str = about["fingerprint"]
            self.candidates: int = about["candidates"]
            self.unified: bool = about["unified"]
            self.training: dict[str, Any] = about["training"]
            self._check()
        except (LookupError, TypeError, ValueError) as error:
            path = self.folder / "model.json"
            raise ModelError(f"{path} cannot be read ({error}); train the model again or restore the file") from error
        found = compute_fingerprint(self.folder, self.text)
        if found != self.fingerprint:
            raise ModelError(
                f"{self.folder}: files of fingerprint {found}, model.json says {self.fingerprint}; restore them"
            )

    def _check(self) -> None:
        """Refuse, as ValueError, values that model.json never has."""
        lengths = (self.text.query_length, self.text.document_length)
        if not all(is_positive_int(length) for length in lengths) or self.text.titles not in get_args(Titles):
            raise ValueError(f"text {self.text}, expected lengths above 0 and {' or '.join(get_args(Titles))}")
        check_common_fields(self.fingerprint, self.candidates, self.training)
        if not isinstance(self.unified, bool):
            raise ValueError(f"unified {self.unified!r}, expected true or false")

    @cached_property
    def codebooks(self) -> Codebooks:
        return Codebooks.load(self.folder / "sparse" / QUANTIZER)

    @cached_property
    def lists(self) -> LearnedIvf | None:
        """Coarse lists that were learned with the query encoder; None: an index finds its own."""
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
        """Queries as the codes see them and as the vectors see them; one encoding serves both where unified."""
        if self.query is not None:
            vectors = self._encode(self.query, texts)
            return vectors, vectors
        return self._encode(self.sparse, texts), self._encode(self.dense, texts)

    def _encode(self, encoder: TextEncoder, texts: list[str]) -> Floats:
        return encode_texts(encoder, texts, prompt=encoder.prompts.query, max_length=self.text.query_length)

    def _open(self, part: str) -> TextEncoder:
        return open_encoder(self.folder / part, self.device)


def is_positive_int(value: Any) -> bool:
    """Whether something is a whole number that texts, candidates or vectors can be of."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31


def check_common_fields(fingerprint: Any, candidates: Any, training: Any) -> None:
    """Refuse, as ValueError, what is in the model.json of either kind where it is something else."""
    if not isinstance(fingerprint, str) or not is_positive_int(candidates) or not isinstance(training, dict):
        raise ValueError("fingerprint, candidates or training, expected a text, a number above 0, and a table")


def read_model_json(folder: Path) -> dict[str, Any]:
    """What model.json says, of a format that can be read."""
    path = folder / "model.json"
    try:
        content = read_up_to(path, MAX_JSON_BYTES)
        found = json.loads(content)["format"]
    except FileNotFoundError as error:
        raise ModelError(f"{folder} has no model.json; give a folder in which `bidr train` finished") from error
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read ({error}); train the model again or restore the file") from error
    # By type too: a changed byte makes 1e0 or true of what was 1.
    if found != FORMAT or type(found) is not int:
        raise ModelError(f"{path}: format {found}, expected {FORMAT}; use the version of bidr that wrote it")
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
    device: str = "cpu",
) -> Model:
    """Put the parts into the folder. model.json goes first and comes back last: without it there is no model."""
    aside = folder / ".new"
    sources = {"sparse": parts.sparse, "dense": parts.dense, "query": parts.query}
    both = text.document_length if parts.query else max(text.document_length, text.query_length)
    lengths = {"sparse": both, "dense": both, "query": text.query_length}
    with storage_errors(folder):
        shutil.rmtree(aside, ignore_errors=True)
        for name, source in sources.items():
            if source:
                shutil.copytree(source, aside / name)
                limit_length(aside / name, lengths[name])
        parts.codebooks.save(aside / "sparse" / QUANTIZER)
        if parts.lists is not None:
            parts.lists.save(aside / "sparse" / LISTS)
        about = {
            "format": FORMAT,
            "fingerprint": compute_fingerprint(aside, text),
            "unified": parts.query is not None,
            "candidates": candidates,
            "text": asdict(text),
            "codes": {"books": parts.codebooks.books, "words": parts.codebooks.words},
            "lists": len(parts.lists.means) if parts.lists else None,
            "training": training,
        }
        (folder / "model.json").unlink(missing_ok=True)
        for name in sources:
            shutil.rmtree(folder / name, ignore_errors=True)
            if (aside / name).exists():
                (aside / name).rename(folder / name)
        write_signed_json(folder / "model.json", about)
        aside.rmdir()
    return Model(folder, device)


def hash_file(digest: Any, path: Path) -> None:
    """Add the content of a file of a model to a digest, in pieces."""
    try:
        with open_to_read(path) as content:
            while piece := content.read(BUFFER_BYTES):
                digest.update(piece)
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}); restore it or train the model again") from error


def compute_fingerprint(folder: Path, text: TextSettings) -> str:
    """Tells models apart by everything that changes a vector or a code."""
    digest = xxhash.xxh3_128(json.dumps(asdict(text), sort_keys=True).encode())
    for part in ("sparse", "dense", "query"):
        for path in sorted((folder / part).rglob("*")):
            if path.suffix in {".safetensors", ".json", ".txt", ".model"}:
                digest.update(str(path.relative_to(folder)).encode())
                hash_file(digest, path)
    return digest.hexdigest()
