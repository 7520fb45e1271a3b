"""Record of the dev queries that a model was selected on, by hashes of their texts."""

import base64
import binascii
from collections.abc import Iterable
from typing import Any

import numpy as np
import xxhash

KEY = "selected_on"


def make_dev_record(texts: Iterable[str]) -> str:
    """Encode sorted 64-bit hashes of the texts, 11 characters a query."""
    return base64.b64encode(_hash_texts(texts).tobytes()).decode()


def count_dev_queries(training: dict[str, Any], texts: Iterable[str]) -> int:
    """Count the texts that a model's training was selected on; 0 for models without a record."""
    try:
        recorded = np.frombuffer(base64.b64decode(training.get(KEY, ""), validate=True), dtype="<u8")
    except (binascii.Error, TypeError, ValueError):
        return 0
    return int(np.isin(_hash_texts(texts), recorded).sum())


def _hash_texts(texts: Iterable[str]) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
    return np.sort(np.fromiter((xxhash.xxh3_64_intdigest(text.encode()) for text in texts), dtype="<u8"))
