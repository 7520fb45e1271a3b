"""An encoder from a folder or an id, whichever kind it is."""

import json
from pathlib import Path

from tokenizers import Tokenizer

from bidr.models.bag_of_tokens import MODULES, BagEncoder
from bidr.models.encoder import Encoder
from bidr.utils.files import write_json

SETTINGS = "tokenizer_config.json"


def load_encoder(folder: Path | str) -> Encoder:
    """An encoder that was saved by `Encoder.save`, or any that sentence-transformers reads."""
    if _first_module(Path(folder)).endswith("StaticEmbedding"):
        return BagEncoder.load(Path(folder))
    from bidr.models.transformer import TransformerEncoder

    return TransformerEncoder.open(str(folder))


def limit_length(folder: Path, length: int) -> None:
    """Have sentence-transformers cut texts at so many tokens too, unless the saved encoder cuts them earlier."""
    pieces = folder / MODULES[0]["path"] / "tokenizer.json"
    if pieces.exists():  # a bag has no settings of its own: its tokenizer does it
        tokenizer = Tokenizer.from_file(str(pieces))
        tokenizer.enable_truncation(length)
        tokenizer.save(str(pieces))
    elif (folder / SETTINGS).exists():
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        settings["model_max_length"] = min(length, settings.get("model_max_length") or length)
        write_json(folder / SETTINGS, settings)


def _first_module(folder: Path) -> str:
    try:
        return str(json.loads((folder / "modules.json").read_text())[0]["type"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return ""
