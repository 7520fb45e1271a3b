"""Encode the corpus with all processes, one shard each, into one file."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.models.corpus_encoding import build_stamp, discard_encoded, encode_corpus
from bidr.models.trainable_encoder import Encoder
from bidr.quantization.codebooks import Codebooks
from bidr.tokenization.token_store import Tokens, TokenStore
from bidr.training.engine.distributed import ProcessGroup
from bidr.utils.files import storage_errors, sync_file, write_json


class TokenShard(TokenStore):
    """A contiguous range of rows of a token store."""

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
    """Encode a corpus; an interrupted run resumes with the same number of processes, else restarts."""
    if group.active_size == 1:
        return encode_corpus(encoder, store, path, codebooks=codebooks, label=label)
    stamp = build_stamp(encoder, store, codebooks)
    if not group.run_on_rank_zero(lambda: _is_complete(path, stamp, len(store))):
        bounds = np.linspace(0, len(store), group.size + 1).astype(int).tolist()
        shard = TokenShard(store, *bounds[group.rank : group.rank + 2])
        paths = [path.with_name(f"{path.stem}.{rank}of{group.size}.npy") for rank in range(group.size)]
        encode_corpus(encoder, shard, paths[group.rank], codebooks=codebooks, label=label)
        group.barrier()
        group.run_on_rank_zero(lambda: _concat_shards(paths, path, stamp, len(store)))
    encoded: npt.NDArray[Any] = np.load(path, mmap_mode="r")
    return encoded


def _is_complete(path: Path, stamp: dict[str, Any], count: int) -> bool:
    try:
        progress = json.loads(_get_progress_path(path).read_text())
    except (OSError, ValueError):
        return False
    return path.exists() and progress == {**stamp, "done": count}


def _concat_shards(paths: list[Path], path: Path, stamp: dict[str, Any], count: int) -> None:
    """Concatenate the shards' rows into one file, then delete the shards."""
    temporary = path.with_name(f".{path.name}.new")
    with storage_errors(path):
        first = np.load(paths[0], mmap_mode="r")
        out = np.lib.format.open_memmap(temporary, mode="w+", dtype=first.dtype, shape=(count, first.shape[1]))
        start = 0
        for shard_path in paths:
            rows = np.load(shard_path, mmap_mode="r")
            out[start : start + len(rows)] = rows
            start += len(rows)
        out.flush()
        sync_file(temporary)
        _get_progress_path(path).unlink(missing_ok=True)
        os.replace(temporary, path)
        write_json(_get_progress_path(path), {**stamp, "done": count})
    for shard_path in paths:
        discard_encoded(shard_path)


def _get_progress_path(path: Path) -> Path:
    return path.with_suffix(".progress.json")
