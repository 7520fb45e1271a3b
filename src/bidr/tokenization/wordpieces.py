"""WordPiece tokenizer trained on the corpus, for text and code."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import xxhash

from bidr.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAD, UNKNOWN = "[PAD]", "[UNK]"
_SAMPLE_CHARACTERS = 24_000_000
_MAX_LETTERS = 1_000

# Split before lower-casing: parseHTTPResponse becomes parse http response, and URLs stays urls.
_CASE_BOUNDARY = r"(?<=[\p{Ll}\p{N}])(?=\p{Lu})|(?<=\p{Lu})(?=\p{Lu}\p{Ll}{2})"
# Words, numbers (long ones in parts, or each would become a piece of its own), and a few signs with a meaning of their
# own; other punctuation is dropped.
_UNITS = r"[\p{L}\p{M}]+|\p{N}{1,4}|[+#%&@$€£]"


def train_wordpieces(texts: Iterable[str], size: int = 30_000) -> "Tokenizer":
    """Train a lower-casing tokenizer of at most `size` pieces, deterministically.

    Identifiers are split at underscores, digits and changes of case. There is no continuation prefix, so that "youtube"
    and "YouTube" can have the same tokens. [PAD] is 0, [UNK] is 1; texts get no special tokens. A large corpus is
    streamed once and sampled.
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
    alphabet = _list_letters(sample)
    # Without initial_alphabet the trainer breaks ties between rare letters at random.
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


def is_word_local(tokenizer: "Tokenizer") -> bool:
    """Return whether the tokens of a text are the concatenated tokens of its words and signs."""
    spec = json.loads(tokenizer.to_str())
    kinds = [(spec[name] or {}).get("type") for name in ("normalizer", "pre_tokenizer", "model")]
    bert = kinds in (["BertNormalizer", "BertPreTokenizer", "WordPiece"], [None, "BertPreTokenizer", "WordPiece"])
    return (bert or _is_wordpieces(spec)) and not any(token["normalized"] for token in spec["added_tokens"])


def _is_wordpieces(spec: dict[str, Any]) -> bool:
    """Return whether the JSON form of a tokenizer is that of `train_wordpieces`."""
    parts = [part.get("pattern") for part in (spec["normalizer"] or {}).get("normalizers", [])]
    units = (spec["pre_tokenizer"] or {}).get("pattern")
    return {"Regex": _CASE_BOUNDARY} in parts and units == {"Regex": _UNITS} and spec["model"]["type"] == "WordPiece"


def _sample(texts: Iterable[str]) -> Iterator[str]:
    """Sample texts by their hashes, with a threshold that falls as the corpus grows; a small corpus is kept in full."""
    sample: list[tuple[int, str]] = []
    threshold, characters = 1 << 64, 0
    for text in texts:
        rank = xxhash.xxh3_64_intdigest(text.encode())
        if rank < threshold:
            sample.append((rank, text))
            characters += len(text)
        while characters > _SAMPLE_CHARACTERS and len(sample) > 1:
            threshold //= 2
            sample = [(rank, text) for rank, text in sample if rank < threshold]
            characters = sum(len(text) for _, text in sample)
    return (text for _, text in sample)


def _list_letters(sample: list[str]) -> list[str]:
    """List the most frequent letters after normalization."""
    import unicodedata

    counts: Counter[str] = Counter()
    for text in sample:
        counts.update(text)
    normal: Counter[str] = Counter()
    for letter, count in counts.items():
        for part in unicodedata.normalize("NFKD", letter).lower():
            if part.isalnum() or unicodedata.category(part)[0] in "MS" or part in "#%&@":
                normal[part] += count
    return sorted(normal, key=lambda letter: (-normal[letter], letter))[:_MAX_LETTERS]
