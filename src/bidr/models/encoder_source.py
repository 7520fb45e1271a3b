"""Locate pretrained encoders: a folder, an ONNX file, a Hugging Face id, or the wordllama wheel."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from bidr.data.vector_source import Metric
from bidr.errors import ModelError
from bidr.models.encoder_interface import Prompts
from bidr.models.static_embeddings import WORDLLAMA, find_cached_folder, find_wordllama
from bidr.utils.files import BUFFER_BYTES, open_to_read

MODULES, POOLING = "modules.json", "1_Pooling"
SENTENCE_TRANSFORMERS = "sentence-transformers"
"""Owner of ids without one, as sentence-transformers has it."""
SENTENCE_TRANSFORMERS_CONFIG = "config_sentence_transformers.json"
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
ONNX_FOLDER, ONNX_SUFFIX, ONNX_DATA_SUFFIXES = "onnx", ".onnx", (".data", ".onnx_data")
CONNECT_SECONDS = 5.0
_HASHED = frozenset([".safetensors", ".bin", ".json", ".txt", ".model"])
# Files of a hub repository that are copies of the weights in other formats, or not needed for inference.
_NOT_NEEDED = ["*.h5", "*.msgpack", "*.ot", "*.onnx", "onnx/*", "openvino/*", "*.gguf", "*.md", "*.png"]


class EncoderFiles(NamedTuple):
    """Files of an encoder.

    folder: With tokenizer and settings.
    graph:  ONNX graph to run; None: weights for torch or numpy.
    """

    folder: Path
    graph: Path | None = None


def locate_encoder(name: Path | str) -> EncoderFiles:
    """Locate an encoder; a Hugging Face id that is not cached is downloaded.

    Without a network, an id that is not cached is a ModelError within seconds.
    """
    text = str(name)
    if text == WORDLLAMA:
        return EncoderFiles(find_wordllama().weights.parent.parent)
    path = Path(text).expanduser()
    if path.is_file():
        if path.suffix != ONNX_SUFFIX:
            raise _make_error(text, "a file, expected a folder, an .onnx file, or a Hugging Face id")
        return EncoderFiles(_find_onnx_root(path), path)
    if not path.is_dir():
        if path.is_absolute() or text[:1] in (".", "~") or text.count("/") > 1 or not text.strip():
            raise _make_error(
                text,
                "no such folder; give a folder of sentence-transformers, model2vec or ONNX files, or a Hugging Face id",
            )
        path = fetch_hub_folder(text if "/" in text else f"{SENTENCE_TRANSFORMERS}/{text}")
    return EncoderFiles(path, None if _has_weights(path) else _find_graph(path))


def fetch_hub_folder(repository: str) -> Path:
    """Return the folder of a Hugging Face id: from the cache, else downloaded."""
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    cached = find_cached_folder(repository)
    if cached is not None and (_has_weights(cached) or any(cached.rglob(f"*{ONNX_SUFFIX}"))):
        return cached
    missing = "no such folder, not in the Hugging Face cache"
    advice = f"give a folder, or download it first where there is a network: hf download {repository}"
    if constants.HF_HUB_OFFLINE:
        raise _make_error(repository, f"{missing}, and HF_HUB_OFFLINE is set; {advice}")
    try:
        # One request without retries: `snapshot_download` alone retries for more than a minute.
        files = [file.rfilename for file in HfApi().model_info(repository, timeout=CONNECT_SECONDS).siblings or []]
    except HFValidationError:
        raise _make_error(repository, "neither a folder nor a Hugging Face id, expected OWNER/NAME") from None
    except RepositoryNotFoundError:
        reason = "no such folder, and no such repository on Hugging Face that you may read; check the name"
        raise _make_error(repository, reason) from None
    except Exception as error:
        reason = f"{missing}, and {constants.ENDPOINT} cannot be reached ({type(error).__name__}); {advice}"
        raise _make_error(repository, reason) from None
    has_safetensors = any(file.endswith(".safetensors") for file in files)
    needs_graph = not has_safetensors and not any(file.endswith(".bin") for file in files)
    unneeded = [] if needs_graph else [*_NOT_NEEDED, *(["*.bin"] if has_safetensors else [])]
    try:
        return Path(snapshot_download(repository, ignore_patterns=unneeded))
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise _make_error(repository, f"cannot be downloaded ({reason}); {advice}") from error


def _make_error(name: str, reason: str) -> ModelError:
    return ModelError(f"cannot load the encoder {name!r}: {reason}")


def fingerprint_encoder(name: Path | str) -> str:
    """Hash weights, tokenizer and settings of an encoder."""
    digest = xxhash.xxh3_128()
    for label, path in _list_files(name):
        digest.update(label.encode())
        try:
            with open_to_read(path) as content:
                while piece := content.read(BUFFER_BYTES):
                    digest.update(piece)
        except OSError as error:
            raise ModelError(f"{path} cannot be read ({error.strerror}); restore the encoder") from error
    return digest.hexdigest()


def read_prompts(folder: Path) -> Prompts:
    """Read the prompts of queries and documents from the settings of sentence-transformers."""
    stored = read_json_object(folder / SENTENCE_TRANSFORMERS_CONFIG).get("prompts") or {}
    return select_prompts(stored if isinstance(stored, dict) else {})


def select_prompts(stored: dict[str, str]) -> Prompts:
    """Select the prompts of queries and documents among named ones."""
    document = next((stored[name] for name in DOCUMENT_PROMPTS if stored.get(name)), "")
    return Prompts(stored.get("query") or "", document)


def read_encoder_metric(name: Path | str) -> Metric:
    """Read the similarity that an encoder was trained for: "ip" if its settings say dot product, else "cosine"."""
    settings = read_json_object(locate_encoder(name).folder / SENTENCE_TRANSFORMERS_CONFIG)
    return "ip" if settings.get("similarity_fn_name") == "dot" else "cosine"


def read_modules(folder: Path) -> list[tuple[str, Path]]:
    """Read the modules of sentence-transformers: kind and folder of each; empty for other layouts."""
    modules = read_json(folder / MODULES)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        return []
    return [(str(entry.get("type", "")).rpartition(".")[2], folder / str(entry.get("path", ""))) for entry in modules]


def read_json(path: Path) -> Any:
    """Read a JSON file; None if there is none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if there is none that can be read."""
    content = read_json(path)
    return content if isinstance(content, dict) else {}


def _list_files(name: Path | str) -> list[tuple[str, Path]]:
    """List the files that determine the vectors, each with its name in the fingerprint."""
    if str(name) == WORDLLAMA:
        return [(path.name, path) for path in find_wordllama()]
    folder, graph = locate_encoder(name)
    places = [path for _, path in read_modules(folder)] or [folder, folder / POOLING]
    files = {path for place in [folder, *places] for path in _list_folder(place)}
    if graph is not None:
        files = {path for path in files if path.suffix in (".json", ".txt", ".model")}
        files |= {graph} | {path for path in graph.parent.iterdir() if path.name.endswith(ONNX_DATA_SUFFIXES)}
        files |= {path for path in _list_folder(graph.parent) if path.suffix == ".json"}
    return sorted((str(path.relative_to(folder)), path) for path in files)


def _list_folder(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if path.suffix in _HASHED and path.is_file()]


def _has_weights(folder: Path) -> bool:
    """Return whether a folder has weights for torch or numpy, at its top or in the folder of a module."""
    places = [folder, *(path for _, path in read_modules(folder))]
    return any(path.suffix in (".safetensors", ".bin") for place in places for path in _list_folder(place))


def _find_graph(folder: Path) -> Path:
    """Find the ONNX graph of a folder: model.onnx, onnx/model.onnx, or the only one."""
    graphs = [path for place in (folder, folder / ONNX_FOLDER) for path in sorted(place.glob(f"*{ONNX_SUFFIX}"))]
    if len(graphs) == 1:
        return graphs[0]
    for path in (folder / "model.onnx", folder / ONNX_FOLDER / "model.onnx"):
        if path in graphs:
            return path
    if graphs:
        raise ModelError(
            f"{folder}: several ONNX graphs ({', '.join(path.name for path in graphs)}); give the file of one"
        )
    raise ModelError(
        f"{folder}: no encoder here, expected the files of sentence-transformers (modules.json), of model2vec "
        "(model.safetensors, tokenizer.json), or an ONNX graph (model.onnx) with its tokenizer.json"
    )


def _find_onnx_root(graph: Path) -> Path:
    """Find the folder with the tokenizer of a graph: its own, or the one above."""
    for folder in (graph.parent, graph.parent.parent):
        if (folder / "tokenizer.json").exists():
            return folder
    raise ModelError(f"{graph}: no tokenizer.json beside it or in the folder above; add the tokenizer of the encoder")
