"""The whole corpus encoded by all processes, each a part of it, into one file."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.models.corpus_encoding import build_stamp, discard_encoded, encode_corpus
from bidr.models.encoder import Encoder
from bidr.quantization.codebooks import Codebooks
from bidr.tokenization.token_store import Tokens, TokenStore
from bidr.training.engine.distributed import ProcessGroup
from bidr.utils.files import storage_errors, sync_file, write_json


class Part(TokenStore):
    """Some rows of a store in a row, as a store."""

    def __init__(self, store: TokenStore, first: int, end: int) -> None:
        super().__init__(store.folder, {**store.meta, "rows": [first, end]})
        self.store, self.first, self.end = store, first, end

    def __len__(self) -> int:
        return self.end - self.first

    def get_lengths(self) -> npt.NDArray[np.int64]:
        return self.store.get_lengths()[self.first : self.end]

    def get_batch(self, rows: Any, max_length: int | None = None) -> Tokens:
        return self.store.get_batch(np.asarray(rows) + self.first, max_length)


def encode_corpus_sharded(
    group: ProcessGroup,
    encoder: Encoder,
    store: TokenStore,
    path: Path,
    *,
    codebooks: Codebooks | None = None,
    label: str,
) -> npt.NDArray[Any]:
    """As `encode_corpus`; what was cut off is continued by as many processes as began it, else begun anew."""
    if group.active_size == 1:
        return encode_corpus(encoder, store, path, codebooks=codebooks, label=label)
    stamp = build_stamp(encoder, store, codebooks)
    if not group.run_on_rank_zero(lambda: _is_whole(path, stamp, len(store))):
        bounds = np.linspace(0, len(store), group.size + 1).astype(int).tolist()
        own = Part(store, *bounds[group.rank : group.rank + 2])
        parts = [path.with_name(f"{path.stem}.{rank}of{group.size}.npy") for rank in range(group.size)]
        encode_corpus(encoder, own, parts[group.rank], codebooks=codebooks, label=label)
        group.barrier()
        group.run_on_rank_zero(lambda: _join(parts, path, stamp, len(store)))
    encoded: npt.NDArray[Any] = np.load(path, mmap_mode="r")
    return encoded


def _is_whole(path: Path, stamp: dict[str, Any], count: int) -> bool:
    try:
        found = json.loads(_state(path).read_text())
    except (OSError, ValueError):
        return False
    return path.exists() and found == {**stamp, "done": count}


def _join(parts: list[Path], path: Path, stamp: dict[str, Any], count: int) -> None:
    """Append the parts' rows to one another; they go when the whole is there."""
    aside = path.with_name(f".{path.name}.new")
    with storage_errors(path):
        first = np.load(parts[0], mmap_mode="r")
        out = np.lib.format.open_memmap(aside, mode="w+", dtype=first.dtype, shape=(count, first.shape[1]))
        start = 0
        for part in parts:
            rows = np.load(part, mmap_mode="r")
            out[start : start + len(rows)] = rows
            start += len(rows)
        out.flush()
        sync_file(aside)
        _state(path).unlink(missing_ok=True)
        os.replace(aside, path)
        write_json(_state(path), {**stamp, "done": count})
    for part in parts:
        discard_encoded(part)


def _state(path: Path) -> Path:
    return path.with_suffix(".progress.json")
