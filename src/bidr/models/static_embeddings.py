"""Pretrained static embeddings: one vector a token, from model2vec, sentence-transformers or the wordllama wheel."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bidr.errors import MissingExtraError, ModelError
from bidr.utils.array_types import Floats
from bidr.utils.files import open_to_read

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer.json"
WORDLLAMA = "wordllama"
WORDLLAMA_REPOSITORY = "dleemiller/word-llama-l2-supercat"
_WORDLLAMA_WEIGHTS = "weights/l2_supercat_256.safetensors"
_WORDLLAMA_TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
_MODULES = "modules.json"
_KEYS = ("embedding.weight", "embeddings")
_CASES = (str, str.capitalize, str.upper)


class StaticEmbeddings(NamedTuple):
    """Tokenizer and token vectors of a pretrained static model."""

    tokenizer: "Tokenizer"
    """Without special tokens, padding and truncation."""
    table: Floats
    is_model2vec: bool = False
    """Whether the files are those of model2vec."""


class StaticFiles(NamedTuple):
    weights: Path
    tokenizer: Path


def is_static_model(name: str) -> bool:
    """Return whether a name is 'wordllama', or a folder or cached hub id of static embeddings. Downloads nothing."""
    if name == WORDLLAMA:
        return True
    folder = find_cached_folder(name)
    return folder is not None and (_is_sentence_transformers(folder) or _is_model2vec(folder))


def load_static_embeddings(name: str) -> StaticEmbeddings:
    """Load static embeddings; `name` as in `is_static_model`."""
    folder = None if name == WORDLLAMA else Path(find_cached_folder(name) or name)
    files = find_wordllama() if folder is None else _find_files(folder)
    try:
        tokenizer = _read_tokenizer(files.tokenizer)
        table = _read_table(files.weights)
        largest = max(tokenizer.get_vocab().values(), default=0)
        if largest >= len(table):
            raise ValueError(f"{len(table):,} vectors for {largest + 1:,} tokens")
    except (KeyboardInterrupt, SystemExit, MemoryError, ModelError):
        raise
    except BaseException as error:  # tokenizers raises plain Exception for a bad file, and panics beside Exception
        raise ModelError(
            f"{name}: static embeddings cannot be read ({error}); expected model2vec's or sentence-transformers' files"
        ) from error
    return StaticEmbeddings(tokenizer, table, folder is not None and _is_model2vec(folder))


def embed_pieces(static: StaticEmbeddings, pieces: list[str]) -> Floats:
    """Return the sum of the token vectors of each piece, zeros for a piece of unknown tokens alone.

    A piece is lower-case, many pretrained vocabularies are not: of the piece as it is, capitalized and in capitals, the
    form with the fewest tokens is taken.
    """
    sums = np.zeros((len(pieces), static.table.shape[1]), dtype=np.float32)
    fewest = np.full(len(pieces), np.iinfo(np.int64).max)
    unknown = _get_unknown_id(static.tokenizer)
    for change_case in _CASES:
        encodings = static.tokenizer.encode_batch([change_case(piece) for piece in pieces], add_special_tokens=False)
        for row, encoding in enumerate(encodings):
            ids = encoding.ids
            if ids and unknown not in ids and len(ids) < fewest[row]:
                fewest[row], sums[row] = len(ids), static.table[ids].sum(axis=0)
    return sums


def find_cached_folder(name: str) -> Path | None:
    """Return a local folder, or the snapshot of a hub id in the Hugging Face cache; None if there is neither."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if name.count("/") != 1 or not all(name.split("/")) or name[0] in "./~":
        return None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        paths = [try_to_load_from_cache(name, file) for file in (_MODULES, "config.json")]
    except HFValidationError:
        return None
    return next((Path(path).parent for path in paths if isinstance(path, str)), None)


def _is_sentence_transformers(folder: Path) -> bool:
    modules = _read_json(folder / _MODULES)
    return bool(modules) and isinstance(modules, list) and _get_kind(modules[0]) == "StaticEmbedding"


def _is_model2vec(folder: Path) -> bool:
    config = _read_json(folder / "config.json")
    if (folder / _MODULES).exists() or not isinstance(config, dict):
        return False
    names = [config.get("model_type"), *(config.get("architectures") or [])]
    return "model2vec" in names or "StaticModel" in names


def _find_files(folder: Path) -> StaticFiles:
    """Find the two files of a folder; refuse modules after the embeddings other than Normalize."""
    inner = folder
    if _is_sentence_transformers(folder):
        modules = _read_json(folder / _MODULES)
        others = [_get_kind(module) for module in modules[1:] if _get_kind(module) != "Normalize"]
        if others:
            raise ModelError(
                f"{folder}: module {others[0]} after StaticEmbedding; expected none but Normalize, take another model"
            )
        inner = folder / str(modules[0].get("path", ""))
    return StaticFiles(inner / WEIGHTS, inner / TOKENIZER)


def find_wordllama() -> StaticFiles:
    """Find the files in the installed wheel without importing the package."""
    spec = find_spec(WORDLLAMA)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(f"the backbone {WORDLLAMA!r}", WORDLLAMA, "static")
    folder = Path(spec.submodule_search_locations[0])
    files = StaticFiles(folder / _WORDLLAMA_WEIGHTS, folder / _WORDLLAMA_TOKENIZER)
    for path in files:
        if not path.exists():
            raise ModelError(
                f"{path} does not exist: another version of wordllama than expected; "
                "install it with: pip install 'wordllama==0.4.0.post1'"
            )
    return files


def has_wordllama() -> bool:
    """Return whether the wheel is installed with the files that are read."""
    try:
        find_wordllama()
    except (MissingExtraError, ModelError):
        return False
    return True


def _read_tokenizer(path: Path) -> "Tokenizer":
    """Read a tokenizer without special tokens, padding and truncation: static models add none."""
    from tokenizers import Tokenizer

    with open_to_read(path) as content:
        spec = json.loads(content.read())
    return Tokenizer.from_str(json.dumps(spec | dict.fromkeys(("post_processor", "padding", "truncation"))))


def _read_table(path: Path) -> Floats:
    """Read token vectors as float32, with model2vec's mapping and weights applied."""
    from safetensors.numpy import load_file

    open_to_read(path).close()
    arrays = load_file(path)
    table = next((arrays[key] for key in _KEYS if key in arrays), None)
    if table is None:
        raise ValueError(f"arrays {', '.join(sorted(arrays)) or 'none'}, expected one of {', '.join(_KEYS)}")
    if table.ndim != 2 or not table.size:
        raise ValueError(f"vectors of shape {table.shape}, expected (tokens, dimensions)")
    mapping, weights = arrays.get("mapping"), arrays.get("weights")
    if mapping is not None:
        if mapping.ndim != 1 or mapping.dtype.kind not in "iu" or mapping.min() < 0 or mapping.max() >= len(table):
            raise ValueError(f"a mapping that names other rows than the {len(table):,} of the vectors")
        table = table[mapping]
    table = table.astype(np.float32)
    if weights is not None:
        if weights.shape != (len(table),):
            raise ValueError(f"weights of shape {weights.shape}, expected ({len(table)},)")
        table = table * weights.astype(np.float32)[:, None]
    if not np.isfinite(table).all():
        raise ValueError("a weight is not finite")
    return np.ascontiguousarray(table)


def _get_unknown_id(tokenizer: "Tokenizer") -> int | None:
    token = getattr(tokenizer.model, "unk_token", None)
    return tokenizer.token_to_id(token) if token else None


def _get_kind(module: Any) -> str:
    return str(module.get("type", "")).rpartition(".")[2] if isinstance(module, dict) else ""


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
