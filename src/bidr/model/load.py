"""An encoder from a folder or an id, whichever kind it is."""

import json
from pathlib import Path

from bidr.model.bag import BagEncoder
from bidr.model.encoder import Encoder


def load_encoder(folder: Path | str) -> Encoder:
    """An encoder that was saved by `Encoder.save`, or any that sentence-transformers reads."""
    if _first_module(Path(folder)).endswith("StaticEmbedding"):
        return BagEncoder.load(Path(folder))
    from bidr.model.transformer import TransformerEncoder

    return TransformerEncoder.open(str(folder))


def _first_module(folder: Path) -> str:
    try:
        return str(json.loads((folder / "modules.json").read_text())[0]["type"])
    except (OSError, ValueError, LookupError):
        return ""
