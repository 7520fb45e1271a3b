"""Tokenising by the words seen before.

BERT's tokenizers and the built-in one never look across white space or a sign such as a comma, so what they make of a
word is the same everywhere. Most words of a text have been seen; only new ones go through the tokenizer.
"""

import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidr.tokenization.wordpieces import is_wordpieces

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from bidr.tokenization.word_table import WordTable

MOST_WORDS, MOST_LETTERS = 1_000_000, 50_000_000
_AT_ONCE = 256
_BREAKS = str.maketrans("\n\t\r", "   ")


class Rows(NamedTuple):
    """Token ids of several texts end to end, and which of the texts have to be tokenised whole instead."""

    ids: NDArray[np.int32]
    lengths: NDArray[np.int64]
    whole: list[int]


def is_word_local(tokenizer: "Tokenizer") -> bool:
    """Whether a text's tokens are those of its words and signs, one after the other."""
    said = json.loads(tokenizer.to_str())
    kinds = [(said[name] or {}).get("type") for name in ("normalizer", "pre_tokenizer", "model")]
    bert = kinds in (["BertNormalizer", "BertPreTokenizer", "WordPiece"], [None, "BertPreTokenizer", "WordPiece"])
    return (bert or is_wordpieces(said)) and not any(token["normalized"] for token in said["added_tokens"])


class WordCache:
    """The tokens of every word seen so far, for several threads. Begins anew when it has grown too large."""

    def __init__(self, tokenizer: "Tokenizer", max_length: int) -> None:
        from tokenizers import Tokenizer

        self._plain = Tokenizer.from_str(tokenizer.to_str())
        self._plain.no_truncation()
        one = tokenizer.encode("a")
        inner = [place for place, special in enumerate(one.special_tokens_mask) if not special]
        self._frame = (np.array(one.ids[: inner[0]], np.int32), np.array(one.ids[inner[-1] + 1 :], np.int32))
        self.room = max_length - sum(map(len, self._frame))
        self.table = self._begun()

    def _begun(self) -> "WordTable":
        """A tokenizer finds its own tokens wherever they stand, signs and all: texts with one are left."""
        from bidr.tokenization.word_table import WordTable, strings

        added = [token.content.encode() for token in self._plain.get_added_tokens_decoder().values()]
        return WordTable(self._tokens_of, strings(added))

    def rows(self, texts: list[str]) -> Rows:
        """Cut at the room there is, with special tokens. Texts with odd white space, control characters or a token of
        the tokenizer's own are left."""
        from bidr.tokenization.word_cache_kernels import put_together

        table = self.table
        if table.count > MOST_WORDS or table.letters > MOST_LETTERS:
            table = self.table = self._begun()  # other threads finish with the one they have
        encoded = [_encoded(text) for text in texts]
        found, known = table.number([one or b"" for one in encoded], self.room)
        ids, lengths = put_together(found.words, found.counts, known.ids, known.firsts, self._frame, self.room)
        left = np.array([one is None for one in encoded], dtype=np.bool_) | found.odd
        # Words that no token is left of: what lies behind the cut may still have some.
        left |= found.more & (lengths < self.room + sum(map(len, self._frame)))
        return Rows(ids, lengths, np.flatnonzero(left).tolist())

    def _tokens_of(self, words: list[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """End to end, and how many each word has."""
        groups = [words[start : start + _AT_ONCE] for start in range(0, len(words), _AT_ONCE)]
        found = self._plain.encode_batch(groups, is_pretokenized=True, add_special_tokens=False)
        ids = np.concatenate([np.array(one.ids, dtype=np.int32) for one in found])
        owners = [np.array(one.word_ids, dtype=np.int64) for one in found]
        counts = [np.bincount(own, minlength=len(group)) for own, group in zip(owners, groups, strict=True)]
        return ids, np.concatenate(counts)


def _encoded(text: str) -> bytes | None:
    """As bytes; None where there is something besides ASCII that may end a word, or is none."""
    if text.isascii() or text.isprintable() or text.translate(_BREAKS).isprintable():
        return text.encode()
    return None
