"""Choose the device that a model runs on."""

import os
import re

from bidr.errors import ConfigError, MissingExtraError


def pick_device(name: str) -> str:
    """Choose a torch device; 'auto' is a GPU if there is one."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise ConfigError(f"device: given {name!r}, expected 'auto', 'cpu', 'cuda' or 'cuda:1'")
    # Batches differ in shape: without this the allocator's leftovers fill a large card within an epoch.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    if name == "cpu":
        return name
    try:
        from torch import cuda
    except ImportError:
        if name != "auto":
            raise MissingExtraError(f"device {name!r}", "torch", "train") from None
        return "cpu"
    if name == "auto":
        return "cuda" if cuda.is_available() else "cpu"
    if not cuda.is_available():
        raise ConfigError(f"device {name!r} given, but no CUDA GPU is available; use 'cpu' or 'auto'")
    return name
