"""Tokenising by the words seen before.

BERT's tokenizers and the built-in one never look across white space, so what they make of a word is the same
everywhere. Most words of a text have been seen; only new ones go through the tokenizer.
"""

import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidr.text.wordpieces import is_wordpieces

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_WORDS, MOST_CHARACTERS = 1_000_000, 50_000_000
_AT_ONCE = 256
_BREAKS = str.maketrans("\n\t\r", "   ")


class Rows(NamedTuple):
    """Token ids of several texts end to end, and which of the texts have to be tokenised whole instead."""

    ids: NDArray[np.int32]
    lengths: NDArray[np.int64]
    whole: list[int]


def splits_at_spaces(tokenizer: "Tokenizer") -> bool:
    """Whether a text's tokens are those of its words, one after the other."""
    said = json.loads(tokenizer.to_str())
    kinds = [(said[name] or {}).get("type") for name in ("normalizer", "pre_tokenizer", "model")]
    bert = kinds in (["BertNormalizer", "BertPreTokenizer", "WordPiece"], [None, "BertPreTokenizer", "WordPiece"])
    added = any(set(token["content"]) & set(" \n\t\r") for token in said["added_tokens"])
    return (bert or is_wordpieces(said)) and not added


class SeenWords:
    """The tokens of every word seen so far. Begins anew when it has grown too large."""

    def __init__(self, tokenizer: "Tokenizer", max_length: int) -> None:
        from tokenizers import Tokenizer

        self._plain = Tokenizer.from_str(tokenizer.to_str())
        self._plain.no_truncation()
        one = tokenizer.encode("a")
        inner = [place for place, special in enumerate(one.special_tokens_mask) if not special]
        self.opening = np.array(one.ids[: inner[0]], dtype=np.int32)
        self.closing = np.array(one.ids[inner[-1] + 1 :], dtype=np.int32)
        self.room = max_length - len(self.opening) - len(self.closing)
        self._begin()

    def _begin(self) -> None:
        self._known, self._characters = _Numbered(), 0
        self._ids, self._starts = np.empty(0, dtype=np.int32), np.zeros(1, dtype=np.int64)

    def rows(self, texts: list[str]) -> Rows:
        """Cut at the room there is, with special tokens. Texts with odd white space or control characters are left."""
        if len(self._known) > MOST_WORDS or self._characters > MOST_CHARACTERS:
            self._begin()
        words, counts, cut, whole = [], [], [], []
        for place, text in enumerate(texts):
            plain = text.translate(_BREAKS) if not text.isprintable() else text
            own = plain.split() if plain is text or plain.isprintable() else None
            if own is None:
                whole.append(place)
                own = []
            cut.append(len(own) > self.room)
            words += own[: self.room]
            counts.append(min(len(own), self.room))
        ids, found = self._tokens(words, np.array(counts, dtype=np.int64))
        # Words that no token is left of: what lies behind the cut may still have some.
        whole += np.flatnonzero(np.array(cut) & (found < self.room)).tolist()
        return Rows(*self._framed(ids, found), whole)

    def _tokens(self, words: list[str], counts: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Ids of the words, at most `room` for each text, and how many for each."""
        places = np.fromiter(map(self._known.__getitem__, words), dtype=np.int64, count=len(words))
        self._learn()
        starts, lengths = self._starts[places], self._starts[places + 1] - self._starts[places]
        before = np.concatenate([[0], np.cumsum(lengths)])
        ends = before[np.cumsum(counts)]
        begins = np.concatenate([[0], ends[:-1]])
        kept = np.minimum(ends - begins, self.room)
        source = np.repeat(starts - before[:-1], lengths) + np.arange(before[-1])
        return self._ids[source[_spans(begins, kept)]], kept

    def _learn(self) -> None:
        """Tokenise what came up for the first time."""
        new = self._known.new
        if not new:
            return
        self._characters += sum(map(len, new))
        groups = [new[start : start + _AT_ONCE] for start in range(0, len(new), _AT_ONCE)]
        found = self._plain.encode_batch(groups, is_pretokenized=True, add_special_tokens=False)
        ids = np.concatenate([np.array(one.ids, dtype=np.int32) for one in found])
        owners = [np.array(one.word_ids, dtype=np.int64) for one in found]
        counts = [np.bincount(own, minlength=len(group)) for own, group in zip(owners, groups, strict=True)]
        lengths = np.concatenate(counts)
        self._ids = np.concatenate([self._ids, ids])
        self._starts = np.concatenate([self._starts, self._starts[-1] + np.cumsum(lengths)])
        new.clear()

    def _framed(self, ids: NDArray[np.int32], kept: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """With the special tokens around each text."""
        lengths = kept + len(self.opening) + len(self.closing)
        ends = np.cumsum(lengths)
        out = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.int32)
        out[_spans(ends - lengths + len(self.opening), kept)] = ids
        for place, token in enumerate(self.opening):
            out[ends - lengths + place] = token
        for place, token in enumerate(self.closing):
            out[ends - len(self.closing) + place] = token
        return out, lengths


class _Numbered(dict[str, int]):
    """Gives every new word the next number."""

    def __init__(self) -> None:
        self.new: list[str] = []

    def __missing__(self, word: str) -> int:
        self.new.append(word)
        self[word] = number = len(self)
        return number


def _spans(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers of several ranges, one after the other."""
    ends = np.cumsum(lengths)
    spans: NDArray[np.int64] = np.repeat(starts - ends + lengths, lengths) + np.arange(ends[-1] if len(ends) else 0)
    return spans
