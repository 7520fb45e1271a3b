"""Encode a corpus in batches of similar length, streamed to disk and resumable."""

import json
import os
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt
import xxhash

from bidr.models.encoder_interface import ArrayEncoder, TextEncoder
from bidr.quantization.codebooks import Codebooks
from bidr.tokenization.token_store import TokenArray, Tokens, TokenStore
from bidr.utils.array_types import Codes
from bidr.utils.files import storage_errors, sync_file, write_json
from bidr.utils.prefetch import AsyncHostCopy, prefetch
from bidr.utils.progress import show_progress

if TYPE_CHECKING:
    from bidr.models.trainable_encoder import Encoder

TOKENS_PER_BATCH = {"cpu": 16_384, "cuda": 262_144}
ROWS_PER_BATCH = 4_096
ROWS_PER_BLOCK = {"cpu": 16_384, "cuda": 131_072}


class Batching(NamedTuple):
    """Sizes that vectors depend on in the last digits; None: by device.

    tokens_per_batch: tokens that are encoded at once.
    rows_per_block:   rows between checkpoints.
    """

    tokens_per_batch: int | None = None
    rows_per_block: int | None = None


BY_DEVICE = Batching()


class TokenSource(Protocol):
    """Rows of tokens, in memory or on disk."""

    def __len__(self) -> int: ...
    def get_lengths(self) -> npt.NDArray[np.int64]: ...
    def get_batch(self, rows: npt.NDArray[np.int64]) -> Tokens: ...


def encode_texts(encoder: TextEncoder, texts: list[str], *, prompt: str, max_length: int) -> npt.NDArray[np.float32]:
    """Encode a few texts in memory."""
    tokens = encoder.get_tokenizer(max_length)([prompt + text for text in texts])
    return encode_rows(encoder, TokenArray(tokens))


def encode_rows(
    encoder: TextEncoder,
    source: TokenSource,
    rows: npt.NDArray[np.int64] | None = None,
    dtype: Any = np.float32,
    tokens_per_batch: int | None = None,
) -> npt.NDArray[Any]:
    """Encode rows (None: all) in memory; the result is in the order of `rows`."""
    rows = np.arange(len(source)) if rows is None else rows
    out = np.empty((len(rows), encoder.dim), dtype=dtype)
    lengths = source.get_lengths()[rows]
    tokens_per_batch = tokens_per_batch or TOKENS_PER_BATCH[device_type(encoder)]
    groups = list(batch_by_length(lengths, tokens_per_batch, ROWS_PER_BATCH))
    batches = prefetch(lambda places: source.get_batch(rows[places]), groups)
    if isinstance(encoder, ArrayEncoder):
        for places, tokens in zip(groups, batches, strict=True):
            out[places] = encoder.encode(tokens)
    else:
        _encode_batches(cast("Encoder", encoder), groups, batches, out)
    return out


def _encode_batches(
    encoder: "Encoder", groups: list[npt.NDArray[np.int64]], batches: Iterable[Tokens], out: npt.NDArray[Any]
) -> None:
    """Run a torch encoder; results are copied to the host while the next batch is computed."""
    import torch

    pending: deque[AsyncHostCopy] = deque()
    with torch.inference_mode():
        training = encoder.training
        encoder.eval()
        for number, tokens in enumerate(batches):
            pending.append(AsyncHostCopy(encoder.encode(tokens).float()))
            if number:
                out[groups[number - 1]] = pending.popleft().wait().numpy()
        if pending:
            out[groups[-1]] = pending.popleft().wait().numpy()
        encoder.train(training)


def device_type(encoder: TextEncoder) -> str:
    """Return "cpu" or "cuda": where an encoder runs."""
    return "cpu" if isinstance(encoder, ArrayEncoder) else str(cast("Encoder", encoder).device.type)


def encode_codes(codebooks: Codebooks, vectors: npt.NDArray[np.float32], encoder: TextEncoder) -> Codes:
    """Encode vectors into codes on the device of the encoder that they come from."""
    if device_type(encoder) == "cpu":
        return codebooks.encode(vectors)
    from bidr.quantization.torch_kmeans import encode_on_device

    return encode_on_device(codebooks, vectors, cast("Encoder", encoder).device)


def encode_corpus(
    encoder: TextEncoder,
    source: TokenSource,
    path: Path,
    *,
    codebooks: Codebooks | None = None,
    label: str = "encode documents",
    batching: Batching = BY_DEVICE,
) -> npt.NDArray[Any]:
    """Encode a corpus to a memory-mapped .npy file: float16 vectors, or codes if codebooks are given.

    An interrupted call is resumed if encoder, codebooks and tokens are the same. `discard_encoded` removes the file.
    """
    stamp = build_stamp(encoder, source, codebooks)
    if batching != BY_DEVICE:
        stamp["batching"] = list(batching)
    width, dtype = (codebooks.books, "uint8") if codebooks else (encoder.dim, "float16")
    state = path.with_suffix(".progress.json")
    first = _read_progress(path, state, stamp)
    shape = (len(source), width)
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        out = np.lib.format.open_memmap(path, mode="r+" if first else "w+", dtype=np.dtype(dtype), shape=shape)
        if not first:  # reserve space: a full disk would kill the process with SIGBUS
            with path.open("r+b") as opened:
                os.posix_fallocate(opened.fileno(), 0, path.stat().st_size)
        with show_progress(label, len(source), "documents", first) as advance:
            step = batching.rows_per_block or ROWS_PER_BLOCK[device_type(encoder)]
            for start in range(first, len(source), step):
                rows = np.arange(start, min(start + step, len(source)))
                vectors = encode_rows(encoder, source, rows, tokens_per_batch=batching.tokens_per_batch)
                block = encode_codes(codebooks, vectors, encoder) if codebooks else vectors
                out[rows[0] : rows[-1] + 1] = block
                out.flush()
                write_json(state, {**stamp, "done": int(rows[-1]) + 1})
                advance(len(rows))
        sync_file(path)
    encoded: npt.NDArray[Any] = np.load(path, mmap_mode="r")
    return encoded


def build_stamp(encoder: TextEncoder, source: TokenSource, codebooks: Codebooks | None) -> dict[str, Any]:
    """Build the fingerprints of everything that an encoded corpus depends on."""
    stamp = {"encoder": hash_weights(encoder), "tokens": _hash_tokens(source)}
    if codebooks:
        arrays = b"".join(array.tobytes() for array in codebooks if array is not None)
        stamp["codebooks"] = xxhash.xxh3_128_hexdigest(arrays)
    return stamp


def discard_encoded(path: Path) -> None:
    """Remove the files of `encode_corpus`."""
    path.unlink(missing_ok=True)
    path.with_suffix(".progress.json").unlink(missing_ok=True)


def hash_weights(encoder: TextEncoder) -> str:
    """Hash the weights of an encoder."""
    if isinstance(encoder, ArrayEncoder):
        return encoder.hash_weights()
    import torch

    digest = xxhash.xxh3_128()
    for name, value in sorted(cast("Encoder", encoder).state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _hash_tokens(source: TokenSource) -> str:
    """Hash the metadata of a token store, or the tokens of another source."""
    if isinstance(source, TokenStore):
        return xxhash.xxh3_128_hexdigest(json.dumps(source.meta, sort_keys=True).encode())
    tokens = source.get_batch(np.arange(len(source)))
    return xxhash.xxh3_128_hexdigest(tokens.ids.tobytes() + tokens.offsets.tobytes())


def _read_progress(path: Path, state: Path, stamp: dict[str, Any]) -> int:
    try:
        progress = json.loads(state.read_text())
    except (OSError, ValueError):
        return 0
    count = progress.pop("done", 0)
    return int(count) if progress == stamp and path.exists() else 0


def batch_by_length(
    lengths: npt.NDArray[np.int64], tokens_at_once: int | None, rows_at_once: int | None = None
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield indexes of batches of similar length, longest first, within the limits (None: no limit) after padding.

    A row that exceeds the limit alone is a batch of its own.
    """
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = max(int(lengths[order[start]]), 1)
        fitting = max(tokens_at_once // longest, 1) if tokens_at_once else len(order)
        count = min(fitting, rows_at_once or len(order))
        yield order[start : start + count]
        start += count
