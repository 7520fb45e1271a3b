"""Open encoders of any kind by folder or hub id."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from bidr.models.encoder_interface import TextEncoder
from bidr.models.encoder_source import locate_encoder
from bidr.models.static_embeddings import TOKENIZER, is_static_model
from bidr.models.static_encoder import FOLDER, StaticEncoder
from bidr.utils.files import write_json

if TYPE_CHECKING:
    from bidr.models.trainable_encoder import Encoder

SETTINGS = "tokenizer_config.json"


def open_encoder(folder: Path | str, device: str = "cpu") -> TextEncoder:
    """Open an encoder for inference. The built-in one runs on numpy where it runs on the CPU, without torch."""
    if device == "cpu" and _is_static(Path(folder)):
        return StaticEncoder.load(Path(folder))
    return load_encoder(folder).to(device)


def open_pretrained_encoder(name: Path | str, device: str = "cpu", threads: int = 0) -> TextEncoder:
    """Open a pretrained encoder of any kind for inference.

    Args:
        name: A folder of sentence-transformers, model2vec or ONNX files, an .onnx file, a Hugging Face id, or
            "wordllama".
        device: Device of a torch encoder; the others run on the CPU.
        threads: CPU threads of an ONNX encoder; 0: all.
    """
    if is_static_model(str(name)):
        return StaticEncoder.load_pretrained(str(name))
    files = locate_encoder(name)
    if files.graph is not None:
        from bidr.models.onnx_encoder import OnnxEncoder

        return OnnxEncoder(files, threads)
    if is_static_model(str(files.folder)):  # downloaded just now
        return StaticEncoder.load_pretrained(str(files.folder))
    encoder = load_encoder(files.folder).to(device)
    return encoder.eval()


def load_encoder(folder: Path | str) -> "Encoder":
    """Load an encoder to be trained: saved by `Encoder.save`, or any that sentence-transformers reads."""
    if _is_static(Path(folder)):
        from bidr.models.bag_of_tokens import BagOfTokensEncoder

        return BagOfTokensEncoder.load(Path(folder))
    from bidr.models.huggingface_encoder import TransformerEncoder

    return TransformerEncoder.open(str(folder))


def limit_length(folder: Path, length: int) -> None:
    """Truncate texts at this length in sentence-transformers too, unless the saved encoder has a lower limit."""
    pieces = folder / FOLDER / TOKENIZER
    if pieces.exists():  # a bag of tokens has no settings: its tokenizer truncates
        tokenizer = Tokenizer.from_file(str(pieces))
        tokenizer.enable_truncation(length)
        tokenizer.save(str(pieces))
    elif (folder / SETTINGS).exists():
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        settings["model_max_length"] = min(length, settings.get("model_max_length") or length)
        write_json(folder / SETTINGS, settings)


def _is_static(folder: Path) -> bool:
    try:
        return str(json.loads((folder / "modules.json").read_text())[0]["type"]).endswith("StaticEmbedding")
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False
