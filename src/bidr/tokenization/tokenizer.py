"""From texts to tokens: in memory, or streamed into a folder that `TokenStore` opens."""

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
from bidr.tokenization.word_cache import WordCache, is_word_local
from bidr.utils.files import storage_errors, sync_file, sync_folder, write_json
from bidr.utils.prefetch import ordered_parallel_map
from bidr.utils.progress import ProgressCallback, show_progress
from bidr.utils.system import available_cpus

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BLOCK = 1024
_CHARACTERS_PER_TOKEN = 8
_MOST_THREADS = 4  # on sixteen cores, more were no quicker (docs/reports/training-speed.md)


def fingerprint(tokenizer: "Tokenizer") -> str:
    """Tells tokenizers apart by what they make of a text; the truncation and padding they carry do not count."""
    return xxhash.xxh3_128_hexdigest(_plain_copy(tokenizer).to_str().encode())


def tokenize_texts(texts: Sequence[str], tokenizer: "Tokenizer", max_length: int) -> Tokens:
    """Tokenise in memory, with special tokens, cut at `max_length`.

    A text of which nothing is left gives one token: the tokenizer's unknown token, or id 0 when it has none.
    """
    return TextTokenizer(tokenizer, max_length)(texts)


def _joined(blocks: "list[_Block]") -> Tokens:
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
    """Tokenise a stream of texts into a folder, or open the folder when it holds just that already.

    `source` says where the texts come from and how they were made (corpus.fingerprint() and the title policy, say): it
    decides, with the tokenizer and `max_length`, whether what the folder holds can be used. Truncation and padding that
    the tokenizer carries are ignored, and the tokenizer is not changed. `total` gives the progress bar its length.
    """
    folder, encoder = Path(folder), TextTokenizer(tokenizer, max_length, by_words=True)
    wanted = {
        "format": FORMAT,
        "tokenizer": fingerprint(tokenizer),
        "max_length": max_length,
        "source": source,
        "closing": encoder.closing,
        "dtype": "uint16" if encoder.largest_id < 1 << 16 else "uint32",
    }
    store = _reusable(folder, wanted)
    if store is not None:
        return store
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.new")
    with storage_errors(folder):
        try:
            aside.mkdir(parents=True)
            with show_progress("tokenise", total, "texts") if total else _silent() as advance:
                _write(encoder.blocks(texts), aside, wanted, advance)
            shutil.rmtree(folder, ignore_errors=True)
            aside.rename(folder)
            sync_folder(folder.parent)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return TokenStore.open(folder)


def _silent() -> AbstractContextManager[ProgressCallback]:
    def advance(done: int = 1, note: str = "") -> None:
        pass

    return nullcontext(advance)


def _reusable(folder: Path, wanted: dict[str, Any]) -> TokenStore | None:
    """The store in the folder when it is the one wanted; ConfigError when what is there is not ours to replace."""
    if not (folder / "meta.json").exists():
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"{folder} holds something other than tokens; choose an empty or new folder for them")
        return None
    try:
        store = TokenStore.open(folder)
    except DataError:
        return None
    return store if wanted.items() <= store.meta.items() else None


class _Block(NamedTuple):
    ids: NDArray[np.int32]
    lengths: list[int]


def _parts(texts: Iterable[str]) -> Iterator[list[str]]:
    stream = iter(texts)
    while part := list(islice(stream, _BLOCK)):
        yield part


def _block(rows: list[list[int]]) -> _Block:
    return _Block(np.fromiter(chain.from_iterable(rows), dtype=np.int32), [len(row) for row in rows])


def _with_rows(ids: NDArray[np.int32], lengths: NDArray[np.int64], rows: dict[int, list[int]]) -> _Block:
    """The block with some of its rows replaced."""
    ends, parts, done = np.cumsum(lengths), [], 0
    for place, row in rows.items():
        parts += [ids[done : ends[place] - lengths[place]], np.array(row, dtype=np.int32)]
        done, lengths[place] = ends[place], len(row)
    return _Block(np.concatenate([*parts, ids[done:]]), lengths.tolist())


def _write(blocks: Iterator[_Block], folder: Path, meta: dict[str, Any], advance: ProgressCallback) -> None:
    lengths = []
    with (folder / "tokens.bin").open("wb") as out:
        for block in blocks:
            out.write(block.ids.astype(meta["dtype"]).tobytes())
            lengths.append(np.array(block.lengths, dtype=np.int64))
            advance(len(block.lengths))
    if not lengths:
        raise DataError(f"there is no text to tokenise for {folder.name}; expected at least one")
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), *lengths]).cumsum()
    np.save(folder / "offsets.npy", offsets)
    write_json(folder / "meta.json", {**meta, "count": len(offsets) - 1, "tokens": int(offsets[-1])})
    sync_file(folder / "tokens.bin")
    sync_file(folder / "offsets.npy")


def _plain_copy(tokenizer: "Tokenizer") -> "Tokenizer":
    from tokenizers import Tokenizer

    copy: Tokenizer = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


class TextTokenizer:
    """A tokenizer set up for one length. Setting up copies the tokenizer, so keep one where queries come singly.

    by_words: keep the tokens of words seen before, where the tokenizer allows: for a corpus.
    """

    def __init__(self, tokenizer: "Tokenizer", max_length: int, *, by_words: bool = False) -> None:
        special = tokenizer.num_special_tokens_to_add(False)
        if max_length <= special:
            raise ConfigError(f"max_length={max_length} leaves no room for text; expected more than {special}")
        self.tokenizer, self.max_length = _plain_copy(tokenizer), max_length
        mask = self.tokenizer.encode("a").special_tokens_mask
        self.closing = mask[::-1].index(0) if 0 in mask else 0
        self.tokenizer.enable_truncation(max_length)
        self.largest_id = max(self.tokenizer.get_vocab().values(), default=0)
        unknown = getattr(self.tokenizer.model, "unk_token", None)
        self.filler = (self.tokenizer.token_to_id(unknown) if unknown else None) or 0
        pays = by_words and is_word_local(self.tokenizer)
        self.threads = min(available_cpus(), _MOST_THREADS) if pays else 0

    def __call__(self, texts: Sequence[str]) -> Tokens:
        """Ragged rows, one a text."""
        return _joined(list(self.blocks(texts)))

    def blocks(self, texts: Iterable[str]) -> Iterator[_Block]:
        parts = _parts(texts)
        if not self.threads:
            return (_block(self._encode(part)) for part in parts)
        words = WordCache(self.tokenizer, self.max_length)
        return ordered_parallel_map(lambda part: self._by_words(part, words), parts, self.threads)

    def _by_words(self, texts: list[str], words: WordCache) -> _Block:
        """The same tokens sooner; the few texts that cannot be had this way are tokenised whole."""
        beginnings = [self._beginning(text) for text in texts]
        found = words.rows(beginnings)
        shortened = np.array([cut is not text for cut, text in zip(beginnings, texts, strict=True)])
        least = np.where(shortened, self.max_length, 1)
        again = sorted({*found.whole, *np.flatnonzero(found.lengths < least).tolist()})
        rows = self._encode([texts[place] for place in again]) if again else []
        return _with_rows(found.ids, found.lengths, dict(zip(again, rows, strict=True)))

    def _encode(self, texts: list[str]) -> list[list[int]]:
        """Long texts are cut at white space first, since all but their beginning would be tokenised for nothing.

        The few whose beginning was not enough to fill a row are tokenised again whole, so the result is the same.
        """
        beginnings = [self._beginning(text) for text in texts]
        rows = self._ids(beginnings)
        short = [i for i, row in enumerate(rows) if len(row) < self.max_length and beginnings[i] is not texts[i]]
        for i, row in zip(short, self._ids([texts[i] for i in short]), strict=True):
            rows[i] = row
        return [row or [self.filler] for row in rows]

    def _beginning(self, text: str) -> str:
        limit = self.max_length * _CHARACTERS_PER_TOKEN
        if len(text) <= limit:
            return text
        space = text.rfind(" ", 0, limit)
        return text[:space] if space > 0 else text

    def _ids(self, texts: list[str]) -> list[list[int]]:
        encode: Callable[[list[str]], list[Any]] = self.tokenizer.encode_batch_fast
        return [encoding.ids for encoding in encode(texts)]
