"""Tokenization in memory, or streamed to a folder that `TokenStore` opens."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from bidr.errors import ConfigError, DataError
from bidr.tokenization.token_store import FORMAT, Tokens, TokenStore
from bidr.tokenization.wordpieces import is_word_local
from bidr.utils.cpu_and_heap import count_available_cpus
from bidr.utils.files import storage_errors, sync_file, sync_folder, write_json
from bidr.utils.prefetch import map_in_order
from bidr.utils.progress import ProgressCallback, show_progress

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from bidr.tokenization.word_cache import WordCache

_TEXTS_PER_BLOCK = 1024
_CHARACTERS_PER_TOKEN = 8
_MAX_THREADS = 4  # on sixteen cores, more were no faster (docs/reports/training-speed.md)


def fingerprint(tokenizer: "Tokenizer") -> str:
    """Hash a tokenizer without its truncation and padding."""
    return xxhash.xxh3_128_hexdigest(_copy_without_limits(tokenizer).to_str().encode())


def tokenize_texts(texts: Sequence[str], tokenizer: "Tokenizer", max_length: int) -> Tokens:
    """Tokenize in memory, with special tokens, cut at `max_length`.

    A text without tokens becomes one token: the tokenizer's unknown token, or id 0 when it has none.
    """
    return TextTokenizer(tokenizer, max_length)(texts)


def _join_blocks(blocks: "list[_Block]") -> Tokens:
    lengths = np.fromiter(chain([0], *(block.lengths for block in blocks)), dtype=np.int64)
    ids = np.concatenate([block.ids for block in blocks]) if blocks else np.empty(0, dtype=np.int32)
    return Tokens(ids, np.cumsum(lengths))


def tokenize(
    texts: Iterable[str],
    tokenizer: "Tokenizer",
    folder: str | Path,
    *,
    max_length: int,
    source: str,
    total: int | None = None,
) -> TokenStore:
    """Tokenize a stream of texts into a folder, or open the folder if it holds the same tokens.

    Args:
        texts: The texts; not read if the folder can be reused.
        tokenizer: Not changed; its truncation and padding are ignored.
        folder: Created, or replaced if it holds other tokens.
        max_length: Tokens per text, special tokens included.
        source: Fingerprint of the texts. With tokenizer and `max_length` it decides whether the folder is reused.
        total: Number of texts, for the progress bar; None: no bar.
    """
    folder, encoder = Path(folder), TextTokenizer(tokenizer, max_length, use_cache=True)
    meta = {
        "format": FORMAT,
        "tokenizer": fingerprint(tokenizer),
        "max_length": max_length,
        "source": source,
        "closing": encoder.closing,
        "dtype": "uint16" if encoder.largest_id < 1 << 16 else "uint32",
    }
    store = _open_matching(folder, meta)
    if store is not None:
        return store
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.new")
    with storage_errors(folder):
        try:
            temporary.mkdir(parents=True)
            with show_progress("tokenize", total, "texts") if total else _hide_progress() as advance:
                _write(encoder.iter_blocks(texts), temporary, meta, advance)
            shutil.rmtree(folder, ignore_errors=True)
            temporary.rename(folder)
            sync_folder(folder.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return TokenStore.open(folder)


def _hide_progress() -> AbstractContextManager[ProgressCallback]:
    def advance(count: int = 1, note: str = "") -> None:
        pass

    return nullcontext(advance)


def _open_matching(folder: Path, expected: dict[str, Any]) -> TokenStore | None:
    """Open the store if its metadata match; ConfigError for a folder of other files, which must not be replaced."""
    if not (folder / "meta.json").exists():
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"{folder} holds something other than tokens; choose an empty or new folder for them")
        return None
    try:
        store = TokenStore.open(folder)
    except DataError:
        return None
    return store if expected.items() <= store.meta.items() else None


class _Block(NamedTuple):
    ids: NDArray[np.int32]
    lengths: list[int]


def _split_texts(texts: Iterable[str]) -> Iterator[list[str]]:
    stream = iter(texts)
    while part := list(islice(stream, _TEXTS_PER_BLOCK)):
        yield part


def _make_block(rows: list[list[int]]) -> _Block:
    return _Block(np.fromiter(chain.from_iterable(rows), dtype=np.int32), [len(row) for row in rows])


def _replace_rows(ids: NDArray[np.int32], lengths: NDArray[np.int64], rows: dict[int, list[int]]) -> _Block:
    """Replace some rows of a block."""
    ends, parts, position = np.cumsum(lengths), [], 0
    for index, row in rows.items():
        parts += [ids[position : ends[index] - lengths[index]], np.array(row, dtype=np.int32)]
        position, lengths[index] = ends[index], len(row)
    return _Block(np.concatenate([*parts, ids[position:]]), lengths.tolist())


def _write(blocks: Iterator[_Block], folder: Path, meta: dict[str, Any], advance: ProgressCallback) -> None:
    lengths = []
    with (folder / "tokens.bin").open("wb") as out:
        for block in blocks:
            out.write(block.ids.astype(meta["dtype"]).tobytes())
            lengths.append(np.array(block.lengths, dtype=np.int64))
            advance(len(block.lengths))
    if not lengths:
        raise DataError(f"there is no text to tokenize for {folder.name}; expected at least one")
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), *lengths]).cumsum()
    np.save(folder / "offsets.npy", offsets)
    write_json(folder / "meta.json", {**meta, "count": len(offsets) - 1, "tokens": int(offsets[-1])})
    sync_file(folder / "tokens.bin")
    sync_file(folder / "offsets.npy")


def _copy_without_limits(tokenizer: "Tokenizer") -> "Tokenizer":
    from tokenizers import Tokenizer

    copy: Tokenizer = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


class TextTokenizer:
    """A tokenizer with a maximum length. Construction copies the tokenizer: reuse the instance for single queries.

    use_cache: cache the tokens of words if the tokenizer allows it; pays for a corpus.
    """

    def __init__(self, tokenizer: "Tokenizer", max_length: int, *, use_cache: bool = False) -> None:
        special = tokenizer.num_special_tokens_to_add(False)
        if max_length <= special:
            raise ConfigError(f"max_length={max_length} leaves no room for text; expected more than {special}")
        self.tokenizer, self.max_length = _copy_without_limits(tokenizer), max_length
        mask = self.tokenizer.encode("a").special_tokens_mask
        self.closing = mask[::-1].index(0) if 0 in mask else 0
        self.tokenizer.enable_truncation(max_length)
        self.largest_id = max(self.tokenizer.get_vocab().values(), default=0)
        unknown = getattr(self.tokenizer.model, "unk_token", None)
        self.filler = (self.tokenizer.token_to_id(unknown) if unknown else None) or 0
        cacheable = use_cache and is_word_local(self.tokenizer)
        self.threads = min(count_available_cpus(), _MAX_THREADS) if cacheable else 0

    def __call__(self, texts: Sequence[str]) -> Tokens:
        """Tokenize texts to ragged rows."""
        return _join_blocks(list(self.iter_blocks(texts)))

    def iter_blocks(self, texts: Iterable[str]) -> Iterator[_Block]:
        """Yield the tokens of blocks of texts."""
        parts = _split_texts(texts)
        if not self.threads:
            return (_make_block(self._encode(part)) for part in parts)
        from bidr.tokenization.word_cache import WordCache

        cache = WordCache(self.tokenizer, self.max_length)
        return map_in_order(lambda part: self._encode_cached(part, cache), parts, self.threads)

    def _encode_cached(self, texts: list[str], cache: "WordCache") -> _Block:
        """Like `_encode`, but faster; the few texts that the cache cannot handle go through the tokenizer."""
        prefixes = [self._cut_text(text) for text in texts]
        cached = cache.tokenize(prefixes)
        shortened = np.array([prefix is not text for prefix, text in zip(prefixes, texts, strict=True)])
        min_lengths = np.where(shortened, self.max_length, 1)
        uncached = sorted({*cached.uncached, *np.flatnonzero(cached.lengths < min_lengths).tolist()})
        rows = self._encode([texts[index] for index in uncached]) if uncached else []
        return _replace_rows(cached.ids, cached.lengths, dict(zip(uncached, rows, strict=True)))

    def _encode(self, texts: list[str]) -> list[list[int]]:
        """Tokenize only a prefix of long texts, cut at white space.

        The few whose prefix does not fill a row are tokenized a second time in full: the result is the same.
        """
        prefixes = [self._cut_text(text) for text in texts]
        rows = self._get_ids(prefixes)
        short = [i for i, row in enumerate(rows) if len(row) < self.max_length and prefixes[i] is not texts[i]]
        for i, row in zip(short, self._get_ids([texts[i] for i in short]), strict=True):
            rows[i] = row
        return [row or [self.filler] for row in rows]

    def _cut_text(self, text: str) -> str:
        limit = self.max_length * _CHARACTERS_PER_TOKEN
        if len(text) <= limit:
            return text
        space = text.rfind(" ", 0, limit)
        return text[:space] if space > 0 else text

    def _get_ids(self, texts: list[str]) -> list[list[int]]:
        encode: Callable[[list[str]], list[Any]] = self.tokenizer.encode_batch_fast
        return [encoding.ids for encoding in encode(texts)]
