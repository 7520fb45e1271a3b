"""A tokenizer made from the corpus itself, for text and for code."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import xxhash

from bidr.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAD, UNKNOWN = "[PAD]", "[UNK]"
_SAMPLE_CHARACTERS = 24_000_000
_ALPHABET = 1_000

# Case has to be looked at before it is lowered: parseHTTPResponse is parse http response, and URLs stays urls.
_CASE_BOUNDARY = r"(?<=[\p{Ll}\p{N}])(?=\p{Lu})|(?<=\p{Lu})(?=\p{Lu}\p{Ll}{2})"
# Words, numbers (long ones in parts, or each would become a piece of its own), and the few signs that mean something by
# themselves; other punctuation is left out.
_UNITS = r"[\p{L}\p{M}]+|\p{N}{1,4}|[+#%&@$€£]"


def train_wordpieces(texts: Iterable[str], size: int = 30_000) -> "Tokenizer":
    """A lower-casing tokenizer of at most `size` pieces, the same for the same texts.

    Identifiers come apart at underscores, digits and changes of case. A piece is the same inside a word as at its
    beginning, so "youtube" and "YouTube" give the same tokens where the pieces allow. [PAD] is 0, [UNK] is 1; no
    special tokens are added around a text. Of a large corpus an even sample is read, but the corpus is streamed whole.
    """
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token=UNKNOWN, continuing_subword_prefix=""))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Replace(Regex(_CASE_BOUNDARY), " "),
            normalizers.Lowercase(),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_UNITS), behavior="removed", invert=True)
    sample = list(_sample(texts))
    if not sample:
        raise DataError("there is no text to make a tokenizer from; expected at least one document")
    alphabet = _alphabet(sample)
    # With the alphabet given, the trainer has no ties to break between rare letters, which it does at random.
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=[PAD, UNKNOWN],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix="",
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample, trainer)
    return tokenizer


def is_wordpieces(said: dict[str, Any]) -> bool:
    """Whether a tokenizer, as its JSON says it, is one that `train_wordpieces` made."""
    parts = [part.get("pattern") for part in (said["normalizer"] or {}).get("normalizers", [])]
    units = (said["pre_tokenizer"] or {}).get("pattern")
    return {"Regex": _CASE_BOUNDARY} in parts and units == {"Regex": _UNITS} and said["model"]["type"] == "WordPiece"


def _sample(texts: Iterable[str]) -> Iterator[str]:
    """All texts while they are few; then each by chance, fixed by its content, less often the more there are."""
    kept: list[tuple[int, str]] = []
    threshold, characters = 1 << 64, 0
    for text in texts:
        rank = xxhash.xxh3_64_intdigest(text.encode())
        if rank < threshold:
            kept.append((rank, text))
            characters += len(text)
        while characters > _SAMPLE_CHARACTERS and len(kept) > 1:
            threshold //= 2
            kept = [(rank, text) for rank, text in kept if rank < threshold]
            characters = sum(len(text) for _, text in kept)
    return (text for _, text in kept)


def _alphabet(sample: list[str]) -> list[str]:
    """The letters that occur most, after normalisation."""
    import unicodedata

    counts: Counter[str] = Counter()
    for text in sample:
        counts.update(text)
    normal: Counter[str] = Counter()
    for letter, count in counts.items():
        for part in unicodedata.normalize("NFKD", letter).lower():
            if part.isalnum() or unicodedata.category(part)[0] in "MS" or part in "#%&@":
                normal[part] += count
    return sorted(normal, key=lambda letter: (-normal[letter], letter))[:_ALPHABET]
