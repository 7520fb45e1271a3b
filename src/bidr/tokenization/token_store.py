"""Tokens of texts: ragged batches in memory, and those of a corpus on disk that training and encoding share."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidr.errors import DataError

FORMAT = 1


class Tokens(NamedTuple):
    """Token ids of several texts end to end: text i is ids[offsets[i]:offsets[i + 1]], never empty."""

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]


class TokenStore:
    """The tokens of a corpus, memory mapped: a row a text, in the order of the texts. Every row has a token or more.

    `TokenStore.open(folder)` opens one that `tokenise` made.
    """

    def __init__(self, folder: Path, meta: dict[str, Any]) -> None:
        self.folder, self.meta = folder, meta
        self._offsets = np.load(folder / "offsets.npy", mmap_mode="r")
        self._ids = np.memmap(folder / "tokens.bin", dtype=meta["dtype"], mode="r")

    @classmethod
    def open(cls, folder: str | Path) -> "TokenStore":
        """Open a folder; DataError when it holds no tokens or only a part of them."""
        folder = Path(folder)
        try:
            meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
            store = cls(folder, meta)
            whole = meta["format"] == FORMAT and len(store) == meta["count"] and len(store._ids) == store._offsets[-1]
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise DataError(f"{folder} holds no readable tokens ({error}); delete it and tokenise again") from error
        if not whole:
            raise DataError(f"{folder} is damaged or of another version; delete it and tokenise again")
        return store

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def get_lengths(self) -> NDArray[np.int64]:
        """The number of tokens of every row."""
        offsets: NDArray[np.int64] = np.asarray(self._offsets)
        return offsets[1:] - offsets[:-1]

    def get_batch(self, rows: NDArray[np.integer[Any]] | Sequence[int], max_length: int | None = None) -> Tokens:
        """The tokens of these rows, in this order. `max_length` cuts as the tokenizer would: closing tokens stay."""
        rows = np.asarray(rows, dtype=np.int64)
        if rows.size and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of {len(self)}")
        starts = np.asarray(self._offsets[rows])
        whole = np.asarray(self._offsets[rows + 1]) - starts
        closing = int(self.meta["closing"])
        kept = whole if max_length is None else np.minimum(whole, max(max_length, closing + 1))
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(kept, out=offsets[1:])
        source = np.repeat(starts - offsets[:-1], kept) + np.arange(offsets[-1])
        if max_length is not None and closing:
            closes = (offsets[1:, None] - np.arange(1, closing + 1)).ravel()
            source[closes] += np.repeat(whole - kept, closing)
        return Tokens(self._ids[source].astype(np.int32), offsets)


class TokenArray:
    """Tokens in memory as a source of rows."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens.offsets) - 1

    def get_lengths(self) -> NDArray[np.int64]:
        return np.diff(self.tokens.offsets)

    def get_batch(self, rows: NDArray[np.int64]) -> Tokens:
        starts, kept = self.tokens.offsets[rows], self.tokens.offsets[rows + 1] - self.tokens.offsets[rows]
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(kept)])
        source = np.repeat(starts - offsets[:-1], kept) + np.arange(offsets[-1])
        return Tokens(self.tokens.ids[source], offsets)
