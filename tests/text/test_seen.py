"""Tokens put together from words seen before are those of the whole text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from bidr.text import seen, tokens
from bidr.text.seen import splits_at_spaces
from bidr.text.tokens import Tokeniser
from bidr.text.wordpieces import train_wordpieces

PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abcdefgh,.-",
    *("##" + one for one in "abcdefgh"),
    "中",
    "and",
]
ODD = ["\x1c", "\x85", "\xa0", "\u2009", "\u200b", "\x00", "\n", "\t", "\r", " ", "\u3000", "\ufeff"]
STRINGS = st.text(st.sampled_from([*"abcdefgh,.-ABé中", " ", *ODD])) | st.sampled_from(["[MASK]", "and", "x" * 300])
TEXTS = st.lists(STRINGS, max_size=30).map(" ".join)


def bert(**kinds: object) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece({one: i for i, one in enumerate(PIECES)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    for name, value in kinds.items():
        setattr(tokenizer, name, value)
    tokenizer.add_special_tokens(["[CLS]", "[SEP]", "[MASK]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_padding(length=16)
    return tokenizer


BOTH = {"bert": bert(), "built-in": train_wordpieces(["abc def, gh and ABC-de chef bead", "face é bad cafe"], 60)}


@pytest.fixture(autouse=True)
def few_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_FEW_CORES", 1_000)


def rows(tokeniser: Tokeniser, texts: list[str]) -> list[list[int]]:
    found = tokeniser(texts)
    return [found.ids[start:end].tolist() for start, end in zip(found.offsets, found.offsets[1:], strict=False)]


@pytest.mark.parametrize("name", BOTH)
@given(texts=st.lists(TEXTS, max_size=6), length=st.sampled_from([3, 8, 64]))
@settings(max_examples=150, deadline=None)
def test_words_give_the_tokens_of_the_whole_text(name: str, texts: list[str], length: int) -> None:
    by_words, whole = Tokeniser(BOTH[name], length, by_words=True), Tokeniser(BOTH[name], length)
    assert by_words._seen
    assert rows(by_words, texts) == rows(whole, texts)
    assert rows(by_words, texts[::-1]) == rows(whole, texts[::-1])  # nothing new any more


def test_it_forgets_rather_than_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "MOST_WORDS", 3)
    tokeniser = Tokeniser(BOTH["bert"], 16, by_words=True)
    first = rows(tokeniser, ["a b c d e f"])
    rows(tokeniser, ["g h"])
    assert len(tokeniser._seen._known) == 2
    assert rows(tokeniser, ["a b c d e f"]) == first


@pytest.mark.parametrize(
    "kinds",
    [
        {"pre_tokenizer": pre_tokenizers.ByteLevel()},
        {"pre_tokenizer": pre_tokenizers.Metaspace()},
        {"normalizer": normalizers.Replace(" ", "")},
    ],
)
def test_tokenizers_that_look_across_spaces_are_left_alone(kinds: dict[str, object]) -> None:
    assert not splits_at_spaces(bert(**kinds))


def test_so_is_one_with_a_token_that_holds_a_space() -> None:
    tokenizer = bert()
    tokenizer.add_tokens(["a b"])
    assert splits_at_spaces(bert())
    assert not splits_at_spaces(tokenizer)


def test_queries_that_threads_share_a_tokeniser_for_keep_nothing() -> None:
    assert Tokeniser(BOTH["bert"], 16)._seen is None
