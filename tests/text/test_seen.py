"""Tokens put together from words seen before are those of the whole text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from bidr.text import seen
from bidr.text.seen import splits_at_signs
from bidr.text.tokeniser import Tokeniser
from bidr.text.wordpieces import train_wordpieces
from bidr.text.wordtable import WordTable

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


def rows(tokeniser: Tokeniser, texts: list[str]) -> list[list[int]]:
    found = tokeniser(texts)
    return [found.ids[start:end].tolist() for start, end in zip(found.offsets, found.offsets[1:], strict=False)]


@pytest.mark.parametrize("name", BOTH)
@given(texts=st.lists(TEXTS, max_size=6), length=st.sampled_from([3, 8, 64]))
@settings(max_examples=150, deadline=None)
def test_words_give_the_tokens_of_the_whole_text(name: str, texts: list[str], length: int) -> None:
    by_words, whole = Tokeniser(BOTH[name], length, by_words=True), Tokeniser(BOTH[name], length)
    assert by_words.threads
    assert rows(by_words, texts) == rows(whole, texts)
    assert rows(by_words, texts[::-1]) == rows(whole, texts[::-1])  # nothing new any more


def test_it_forgets_rather_than_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "MOST_WORDS", 3)
    words = seen.SeenWords(Tokeniser(BOTH["bert"], 16).tokenizer, 16)
    first = words.rows(["a b c d e f"]).ids.tolist()
    words.rows(["g h"])
    assert words.table.count == 2
    assert words.rows(["a b c d e f"]).ids.tolist() == first


def test_several_threads_keep_the_order_of_the_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bidr.text.tokeniser._BLOCK", 3)
    monkeypatch.setattr("bidr.text.tokeniser.cores", lambda: 3)
    tokeniser = Tokeniser(BOTH["bert"], 16, by_words=True)
    texts = [f"word{i % 11} and {i}," for i in range(500)]
    assert tokeniser.threads == 3
    assert rows(tokeniser, texts) == rows(Tokeniser(BOTH["bert"], 16), texts)


@pytest.mark.parametrize(
    "kinds",
    [
        {"pre_tokenizer": pre_tokenizers.ByteLevel()},
        {"pre_tokenizer": pre_tokenizers.Metaspace()},
        {"normalizer": normalizers.Replace(" ", "")},
    ],
)
def test_tokenizers_that_look_across_spaces_are_left_alone(kinds: dict[str, object]) -> None:
    assert not splits_at_signs(bert(**kinds))


def test_so_is_one_with_a_token_that_holds_a_space() -> None:
    tokenizer = bert()
    tokenizer.add_tokens(["a b"])
    assert splits_at_signs(bert())
    assert not splits_at_signs(tokenizer)


def test_queries_that_threads_share_a_tokeniser_for_keep_nothing() -> None:
    assert not Tokeniser(BOTH["bert"], 16).threads


def test_a_table_of_words_grows_and_keeps_their_numbers() -> None:
    table, texts = WordTable(), [f"word{i} né{i % 7},".encode() for i in range(5_000)]
    first = table.number(texts, 3)
    assert table.count == 5_000 + 7 + 1
    assert first.counts.tolist() == [3] * 5_000
    again = table.number(texts[::-1], 3)
    assert (again.words.reshape(-1, 3)[::-1] == first.words.reshape(-1, 3)).all()
    assert table.since(0)[:3] == ["word0", "né0", ","]
    assert table.count == len(set(table.since(0)))


def test_a_token_of_the_tokenizers_own_is_found_within_a_word() -> None:
    texts = ["ab[MASK]cd, e", "ab [mask] cd", "a"]
    assert rows(Tokeniser(BOTH["bert"], 16, by_words=True), texts) == rows(Tokeniser(BOTH["bert"], 16), texts)


def test_after_an_error_words_are_learned_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bidr.text.tokeniser.cores", lambda: 1)
    texts = ["a b", "c d", "and h"]
    monkeypatch.setattr("bidr.text.tokeniser._BLOCK", 1)
    learn, calls = seen.SeenWords._learn, iter([False, True, False, False])

    def fails(self: seen.SeenWords, new: list[str]) -> None:
        if next(calls):
            raise MemoryError
        learn(self, new)

    monkeypatch.setattr(seen.SeenWords, "_learn", fails)
    found = Tokeniser(BOTH["bert"], 16, by_words=True).blocks(texts)
    whole = rows(Tokeniser(BOTH["bert"], 16), texts)
    made: list[list[int]] = []
    with pytest.raises(MemoryError):
        made.extend(block.ids.tolist() for block in found)
    assert made == whole[:1]
