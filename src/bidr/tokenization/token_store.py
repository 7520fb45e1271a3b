"""Tokenized texts: ragged batches in memory, and memory-mapped corpora on disk."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidr.errors import DataError

FORMAT = 1


class Tokens(NamedTuple):
    """Concatenated token ids: text i is ids[offsets[i]:offsets[i + 1]], never empty."""

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]


class TokenStore:
    """Memory-mapped tokens of a corpus, one row per text in input order, each with at least one token.

    Written by `tokenize`.
    """

    def __init__(self, folder: Path, meta: dict[str, Any]) -> None:
        self.folder, self.meta = folder, meta
        self._offsets = np.load(folder / "offsets.npy", mmap_mode="r")
        self._ids = np.memmap(folder / "tokens.bin", dtype=meta["dtype"], mode="r")

    @classmethod
    def open(cls, folder: str | Path) -> "TokenStore":
        """Open a folder; DataError when it holds no tokens or is incomplete."""
        folder = Path(folder)
        try:
            meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
            store = cls(folder, meta)
            is_complete = len(store) == meta["count"] and len(store._ids) == store._offsets[-1]
            is_current = meta["format"] == FORMAT
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise DataError(f"{folder} holds no readable tokens ({error}); delete it and tokenize again") from error
        if not (is_complete and is_current):
            raise DataError(f"{folder} is damaged or of another version; delete it and tokenize again")
        return store

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def get_lengths(self) -> NDArray[np.int64]:
        """Return the number of tokens of every row."""
        offsets: NDArray[np.int64] = np.asarray(self._offsets)
        return offsets[1:] - offsets[:-1]

    def get_batch(self, rows: NDArray[np.integer[Any]] | Sequence[int], max_length: int | None = None) -> Tokens:
        """Read the tokens of rows. `max_length` truncates like the tokenizer: closing special tokens stay."""
        rows = np.asarray(rows, dtype=np.int64)
        if rows.size and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of {len(self)}")
        starts = np.asarray(self._offsets[rows])
        lengths = np.asarray(self._offsets[rows + 1]) - starts
        closing = int(self.meta["closing"])
        cut = lengths if max_length is None else np.minimum(lengths, max(max_length, closing + 1))
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(cut, out=offsets[1:])
        source = np.repeat(starts - offsets[:-1], cut) + np.arange(offsets[-1])
        if max_length is not None and closing:
            closes = (offsets[1:, None] - np.arange(1, closing + 1)).ravel()
            source[closes] += np.repeat(lengths - cut, closing)
        return Tokens(self._ids[source].astype(np.int32), offsets)


class TokenArray:
    """In-memory tokens with the interface of `TokenStore`."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens.offsets) - 1

    def get_lengths(self) -> NDArray[np.int64]:
        return np.diff(self.tokens.offsets)

    def get_batch(self, rows: NDArray[np.int64]) -> Tokens:
        starts, lengths = self.tokens.offsets[rows], self.tokens.offsets[rows + 1] - self.tokens.offsets[rows]
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
        source = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Tokens(self.tokens.ids[source], offsets)
