"""Word cache: tokenizes by looking up the tokens of known words; only new words go through the tokenizer.

Valid for tokenizers whose words are independent of their neighbors (`wordpieces.is_word_local`): BERT's and the
built-in one. Threads share a cache: lookups run concurrently on snapshots, one thread at a time adds words.
"""

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidr.tokenization.word_cache_kernels import (
    EMPTY,
    LETTER,
    SIGN,
    SPACE,
    UNSUPPORTED,
    Bytes,
    Counts,
    Numbers,
    PackedStrings,
    WordNumbers,
    WordSnapshot,
    add_words,
    assemble_tokens,
    fill_slots,
    look_up_words,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_WORDS, MAX_LETTERS = 1_000_000, 50_000_000
_MIN_SLOTS = 1 << 12
_WORDS_PER_BATCH = 256
_LINE_BREAKS = str.maketrans("\n\t\r", "   ")
EncodeWords = Callable[[list[str]], tuple[Numbers, Counts]]


class CachedTokens(NamedTuple):
    """Concatenated token ids of several texts, and which texts must be tokenized without the cache."""

    ids: Numbers
    lengths: Counts
    uncached: list[int]


class WordCache:
    """Thread-safe cache of the tokens of words; cleared when it exceeds MAX_WORDS or MAX_LETTERS."""

    def __init__(self, tokenizer: "Tokenizer", max_length: int) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.no_truncation()
        sample = tokenizer.encode("a")
        inner = [index for index, special in enumerate(sample.special_tokens_mask) if not special]
        self._frame = (np.array(sample.ids[: inner[0]], np.int32), np.array(sample.ids[inner[-1] + 1 :], np.int32))
        self.max_tokens = max_length - sum(map(len, self._frame))
        self.table = self._create_table()

    def _create_table(self) -> "WordTable":
        # A tokenizer finds its added tokens anywhere, within words too: texts that contain one are not cached.
        added = [token.content.encode() for token in self._tokenizer.get_added_tokens_decoder().values()]
        return WordTable(self._encode_words, pack_strings(added))

    def tokenize(self, texts: list[str]) -> CachedTokens:
        """Tokenize with special tokens and truncation.

        Texts with unusual white space, control characters or an added token are returned as `uncached`.
        """
        table = self.table
        if table.count > MAX_WORDS or table.letters > MAX_LETTERS:
            table = self.table = self._create_table()  # other threads finish with their table
        encoded = [_encode_text(text) for text in texts]
        numbers, words = table.number_words([content or b"" for content in encoded], self.max_tokens)
        ids, lengths = assemble_tokens(
            numbers.words, numbers.counts, words.ids, words.firsts, self._frame, self.max_tokens
        )
        uncached = np.array([content is None for content in encoded], dtype=np.bool_) | numbers.unsupported
        # Some words have no tokens: a text that was cut after max_tokens words may have room for more.
        uncached |= numbers.truncated & (lengths < self.max_tokens + sum(map(len, self._frame)))
        return CachedTokens(ids, lengths, np.flatnonzero(uncached).tolist())

    def _encode_words(self, words: list[str]) -> tuple[Numbers, Counts]:
        """Return the concatenated tokens of new words, and their number per word."""
        groups = [words[start : start + _WORDS_PER_BATCH] for start in range(0, len(words), _WORDS_PER_BATCH)]
        encodings = self._tokenizer.encode_batch(groups, is_pretokenized=True, add_special_tokens=False)
        ids = np.concatenate([np.array(encoding.ids, dtype=np.int32) for encoding in encodings])
        owners = [np.array(encoding.word_ids, dtype=np.int64) for encoding in encodings]
        counts = [np.bincount(owner, minlength=len(group)) for owner, group in zip(owners, groups, strict=True)]
        return ids, np.concatenate(counts)


class WordTable:
    """Numbers words in order of first occurrence and stores their tokens.

    Args:
        encode_words: Returns the concatenated tokens of new words, and their number per word.
        added_tokens: Texts that contain one of these strings are flagged as unsupported.
    """

    def __init__(self, encode_words: EncodeWords, added_tokens: PackedStrings) -> None:
        self._encode_words, self._added_tokens, self._kinds = encode_words, added_tokens, classify_bytes()
        self._lock, self._is_consistent = threading.Lock(), True
        ids, zero = np.empty(0, dtype=np.int32), np.zeros(1, dtype=np.int64)
        slots = np.full(_MIN_SLOTS, EMPTY, dtype=np.int32)
        self.snapshot = WordSnapshot(0, slots, np.empty(0, np.uint64), np.empty(0, np.uint8), zero, ids, zero)

    @property
    def count(self) -> int:
        return self.snapshot.size

    @property
    def letters(self) -> int:
        snapshot = self.snapshot
        return int(snapshot.starts[snapshot.size])

    def number_words(self, texts: list[bytes], max_words: int) -> tuple[WordNumbers, WordSnapshot]:
        """Number the first `max_words` words of every text; the snapshot returned contains all of them."""
        snapshot, joined, ends = self.snapshot, np.frombuffer(b"".join(texts), dtype=np.uint8), _sum_lengths(texts)
        capacity = min(len(joined), len(texts) * max_words)
        flags = np.zeros((2, len(texts)), dtype=np.bool_)
        out = WordNumbers(np.empty(capacity, dtype=np.int32), np.zeros(len(texts), dtype=np.int64), *flags)
        new = np.empty((capacity, 3), dtype=np.int64)
        # Lock-free: a snapshot does not change.
        new = new[: look_up_words(joined, ends, max_words, self._kinds, self._added_tokens, snapshot, out, new)]
        if len(new):
            snapshot = self._add(joined, new, out.words)
        return out._replace(words=out.words[: out.counts.sum()]), snapshot

    def _add(self, text: Bytes, new: Counts, words: Numbers) -> WordSnapshot:
        """Number new words; other threads may have added some of them since the lookup."""
        with self._lock:
            old = self.snapshot
            snapshot = self._reserve(old, new)
            self._is_consistent = False  # an error leaves slots of words without tokens
            count = add_words(text, new, words, snapshot)
            if count > old.size:
                ids, counts = self._encode_words(_decode_words(snapshot, old.size, count))
                snapshot = _append_tokens(snapshot, ids, counts)._replace(size=count)
            self.snapshot, self._is_consistent = snapshot, True
            return snapshot

    def _reserve(self, snapshot: WordSnapshot, new: Counts) -> WordSnapshot:
        """Make room for new words. Full arrays are replaced, not changed: other threads may be reading them."""
        words = snapshot.size + len(new)
        letters = int(snapshot.starts[snapshot.size] + (new[:, 2] - new[:, 1]).sum())
        if len(snapshot.hashes) < words:
            hashes, starts = _extend(snapshot.hashes, 2 * words), _extend(snapshot.starts, 2 * words + 1)
            snapshot = snapshot._replace(hashes=hashes, starts=starts)
        if len(snapshot.letters) < letters:
            snapshot = snapshot._replace(letters=_extend(snapshot.letters, 2 * letters))
        if len(snapshot.slots) < 2 * words or not self._is_consistent:
            slots = np.full(max(len(snapshot.slots), 1 << (2 * words).bit_length()), EMPTY, dtype=np.int32)
            fill_slots(slots, snapshot.hashes, snapshot.size)
            snapshot = snapshot._replace(slots=slots)
        return snapshot


def classify_bytes() -> Bytes:
    """Classify each UTF-8 byte as part of a word, white space, a one-byte word, or unsupported."""
    kinds = np.full(256, LETTER, dtype=np.uint8)
    kinds[:128] = [LETTER if chr(code).isalnum() else SIGN for code in range(128)]
    kinds[:32], kinds[127] = UNSUPPORTED, UNSUPPORTED
    kinds[[ord(space) for space in " \n\t\r"]] = SPACE
    return kinds


def pack_strings(strings: list[bytes]) -> PackedStrings:
    """Concatenate strings for the kernels."""
    letters = np.frombuffer(b"".join(strings), dtype=np.uint8)
    first_bytes = sorted({string[0] for string in strings})
    return PackedStrings(letters, np.append(0, _sum_lengths(strings)), np.array(first_bytes, dtype=np.uint8))


def _encode_text(text: str) -> bytes | None:
    """Encode as UTF-8; None for texts with non-ASCII characters that may end a word or are not printable."""
    if text.isascii() or text.isprintable() or text.translate(_LINE_BREAKS).isprintable():
        return text.encode()
    return None


def _append_tokens(snapshot: WordSnapshot, ids: Numbers, counts: Counts) -> WordSnapshot:
    """Append the tokens of the words after snapshot.size."""
    words, tokens = snapshot.size + len(counts), int(snapshot.firsts[snapshot.size]) + len(ids)
    if len(snapshot.firsts) <= words:
        snapshot = snapshot._replace(firsts=_extend(snapshot.firsts, 2 * words + 1))
    if len(snapshot.ids) < tokens:
        snapshot = snapshot._replace(ids=_extend(snapshot.ids, 2 * tokens))
    snapshot.ids[tokens - len(ids) : tokens] = ids
    snapshot.firsts[snapshot.size + 1 : words + 1] = tokens - len(ids) + np.cumsum(counts)
    return snapshot


def _decode_words(snapshot: WordSnapshot, first: int, end: int) -> list[str]:
    starts = snapshot.starts[first : end + 1]
    letters = snapshot.letters[starts[0] : starts[-1]].tobytes()
    return [letters[start:stop].decode() for start, stop in pairwise((starts - starts[0]).tolist())]


def _sum_lengths(strings: list[bytes]) -> Counts:
    return np.cumsum(np.fromiter(map(len, strings), dtype=np.int64, count=len(strings)))


def _extend(array: NDArray[Any], length: int) -> NDArray[Any]:
    out = np.empty(length, dtype=array.dtype)
    out[: len(array)] = array
    return out
