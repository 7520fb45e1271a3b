"""Tokenising by the words seen before.

BERT's tokenizers and the built-in one never look across white space or a sign such as a comma, so what they make of a
word is the same everywhere. Most words of a text have been seen; only new ones go through the tokenizer.
"""

import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidr.text.wordpieces import is_wordpieces

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_WORDS, MOST_LETTERS = 1_000_000, 50_000_000
_AT_ONCE = 256
_BREAKS = str.maketrans("\n\t\r", "   ")


class Rows(NamedTuple):
    """Token ids of several texts end to end, and which of the texts have to be tokenised whole instead."""

    ids: NDArray[np.int32]
    lengths: NDArray[np.int64]
    whole: list[int]


def splits_at_signs(tokenizer: "Tokenizer") -> bool:
    """Whether a text's tokens are those of its words and signs, one after the other."""
    said = json.loads(tokenizer.to_str())
    kinds = [(said[name] or {}).get("type") for name in ("normalizer", "pre_tokenizer", "model")]
    bert = kinds in (["BertNormalizer", "BertPreTokenizer", "WordPiece"], [None, "BertPreTokenizer", "WordPiece"])
    return (bert or is_wordpieces(said)) and not any(token["normalized"] for token in said["added_tokens"])


class SeenWords:
    """The tokens of every word seen so far. Begins anew when it has grown too large."""

    def __init__(self, tokenizer: "Tokenizer", max_length: int) -> None:
        from tokenizers import Tokenizer

        self._plain = Tokenizer.from_str(tokenizer.to_str())
        self._plain.no_truncation()
        self._added = [token.content.encode() for token in self._plain.get_added_tokens_decoder().values()]
        one = tokenizer.encode("a")
        inner = [place for place, special in enumerate(one.special_tokens_mask) if not special]
        self._frame = (np.array(one.ids[: inner[0]], np.int32), np.array(one.ids[inner[-1] + 1 :], np.int32))
        self.room = max_length - sum(map(len, self._frame))
        self._begin()

    def _begin(self) -> None:
        from bidr.text.wordtable import WordTable

        self.table = WordTable()
        self._ids, self._starts = np.empty(0, dtype=np.int32), np.zeros(1, dtype=np.int64)

    def rows(self, texts: list[str]) -> Rows:
        """Cut at the room there is, with special tokens. Texts with odd white space, control characters or a token of
        the tokenizer's own are left."""
        from bidr.text.wordtable import put_together

        if self.table.count > MOST_WORDS or self.table.letters > MOST_LETTERS:
            self._begin()
        encoded = [_encoded(text) for text in texts]
        self._leave_added(encoded)
        known = self.table.count
        found = self.table.number([one or b"" for one in encoded], self.room)
        self._learn(self.table.since(known))
        ids, lengths = put_together(found.words, found.counts, self._ids, self._starts, self._frame, self.room)
        left = np.array([one is None for one in encoded], dtype=np.bool_) | found.odd
        # Words that no token is left of: what lies behind the cut may still have some.
        left |= found.more & (lengths < self.room + sum(map(len, self._frame)))
        return Rows(ids, lengths, np.flatnonzero(left).tolist())

    def _leave_added(self, encoded: list[bytes | None]) -> None:
        """A tokenizer finds its own tokens wherever they stand, signs and all."""
        together = b" ".join(one or b"" for one in encoded)
        for token in self._added:
            if token in together:
                encoded[:] = [None if one is None or token in one else one for one in encoded]

    def _learn(self, new: list[str]) -> None:
        """Tokenise what came up for the first time."""
        if not new:
            return
        groups = [new[start : start + _AT_ONCE] for start in range(0, len(new), _AT_ONCE)]
        found = self._plain.encode_batch(groups, is_pretokenized=True, add_special_tokens=False)
        ids = np.concatenate([np.array(one.ids, dtype=np.int32) for one in found])
        owners = [np.array(one.word_ids, dtype=np.int64) for one in found]
        counts = [np.bincount(own, minlength=len(group)) for own, group in zip(owners, groups, strict=True)]
        self._ids = np.concatenate([self._ids, ids])
        self._starts = np.concatenate([self._starts, self._starts[-1] + np.cumsum(np.concatenate(counts))])


def _encoded(text: str) -> bytes | None:
    """As bytes; None where there is something besides ASCII that may end a word, or is none."""
    if text.isascii() or text.isprintable() or text.translate(_BREAKS).isprintable():
        return text.encode()
    return None
