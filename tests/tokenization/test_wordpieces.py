"""The tokenizer made from a corpus."""

import pytest

from bidr.errors import DataError
from bidr.tokenization import wordpieces
from bidr.tokenization.wordpieces import train_wordpieces

TEXTS = [
    "def parseHTTPResponse(raw_bytes, maxSize=2048): return utf8Decoder.decode(raw_bytes)",
    "Parse the HTTP response and decode its raw bytes with the utf 8 decoder; max size in bytes",
    "Watch the naïve video on YouTube. You watch the tube. C++ and 50% off",
] * 20


def test_identifiers_are_split_at_case_underscores_and_digits() -> None:
    tokenizer = train_wordpieces(TEXTS)
    encode = lambda text: tokenizer.encode(text).tokens  # noqa: E731
    assert encode("parseHTTPResponse raw_bytes utf8Decoder") == [
        "parse", "http", "response", "raw", "bytes", "utf", "8", "decoder",
    ]  # fmt: skip
    assert encode("__maxSize__") == ["max", "size"]
    assert encode("naïve NAIVE") == ["naive", "naive"]
    assert encode("youtube") == encode("YouTube") == ["you", "tube"]
    assert encode("c++, 50%") == ["c", "+", "+", "50", "%"]


def test_padding_is_zero_and_unknown_one() -> None:
    tokenizer = train_wordpieces(TEXTS)
    assert tokenizer.token_to_id("[PAD]") == 0
    assert tokenizer.token_to_id("[UNK]") == 1
    assert tokenizer.encode("лебедь").ids == [1]


def test_training_is_deterministic_beyond_the_alphabet_limit() -> None:
    letters = "".join(map(chr, range(0x4E00, 0x4E00 + 3000)))
    texts = [*TEXTS, *(letters[n : n + 10] for n in range(0, 3000, 10))]
    made = {train_wordpieces(texts, size=2_000).to_str() for _ in range(3)}
    assert len(made) == 1


def test_the_vocabulary_has_at_most_size_pieces() -> None:
    assert train_wordpieces(TEXTS, size=60).get_vocab_size() <= 60


def test_a_large_corpus_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wordpieces, "_SAMPLE_CHARACTERS", 10_000)
    texts = [f"text number {n} of many" for n in range(5_000)]
    sample = list(wordpieces._sample(iter(texts)))
    assert 2_000 < sum(map(len, sample)) <= 10_000
    positions = [texts.index(text) for text in sample]
    assert positions == sorted(positions)
    assert 1_500 < sum(positions) / len(positions) < 3_500, "from the whole corpus, not its beginning"
    assert sample == list(wordpieces._sample(iter(texts)))


def test_an_empty_corpus_is_refused() -> None:
    with pytest.raises(DataError, match="no text to make a tokenizer from"):
        train_wordpieces([])
