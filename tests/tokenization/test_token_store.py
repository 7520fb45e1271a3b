"""The token store returns the tokens of direct tokenization."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from bidr.errors import ConfigError, DataError
from bidr.tokenization.token_store import Tokens, TokenStore
from bidr.tokenization.tokenizer import fingerprint, tokenize, tokenize_texts

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghij"]
TEXTS = ["a b c", "", "d", " ".join("abcdefghij" * 3), "e f g h i j a b", "zz a"]


def made_tokenizer(special: bool = True, words: list[str] = WORDS) -> Tokenizer:
    """A word-level tokenizer that carries a truncation and a padding, as published ones do."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if special:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=16)
    return tokenizer


@pytest.fixture(scope="module", params=[True, False], ids=["special tokens", "no special tokens"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return made_tokenizer(special=request.param)


@pytest.fixture(scope="module")
def store(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    folder = tmp_path_factory.mktemp("tokens") / "store"
    return tokenize(iter(TEXTS), tokenizer, folder, max_length=20, source="made", total=len(TEXTS))


def assert_same(one: Tokens, other: Tokens) -> None:
    np.testing.assert_array_equal(one.offsets, other.offsets)
    np.testing.assert_array_equal(one.ids, other.ids)


def test_word_tokens_stand_between_special_tokens() -> None:
    tokens = tokenize_texts(["a b", "zz"], made_tokenizer(), 20)
    np.testing.assert_array_equal(tokens.ids, [2, 4, 5, 3, 2, 1, 3])
    np.testing.assert_array_equal(tokens.offsets, [0, 4, 7])


@given(rows=st.lists(st.integers(0, len(TEXTS) - 1)), max_length=st.integers(3, 20))
def test_a_batch_equals_tokenization_at_its_length(
    store: TokenStore, tokenizer: Tokenizer, rows: list[int], max_length: int
) -> None:
    expected = tokenize_texts([TEXTS[row] for row in rows], tokenizer, max_length)
    assert_same(store.get_batch(np.array(rows, dtype=np.int64), max_length), expected)
    assert_same(store.get_batch(rows), tokenize_texts([TEXTS[row] for row in rows], tokenizer, 20))


def test_lengths_and_rows(store: TokenStore, tokenizer: Tokenizer) -> None:
    assert len(store) == len(TEXTS)
    np.testing.assert_array_equal(store.get_lengths(), np.diff(tokenize_texts(TEXTS, tokenizer, 20).offsets))
    assert store.get_lengths().max() == 20, "cut at max_length, not at the tokenizer's own 5 or 16"
    assert store.get_lengths().min() >= 1, "an empty text has a token too"
    for wrong in ([-1], [len(TEXTS)]):
        with pytest.raises(IndexError):
            store.get_batch(wrong)


def test_an_empty_text_without_special_tokens_is_the_unknown_token() -> None:
    np.testing.assert_array_equal(tokenize_texts([""], made_tokenizer(special=False), 8).ids, [1])


def test_the_callers_tokenizer_is_not_changed(tokenizer: Tokenizer, tmp_path: Path) -> None:
    before = tokenizer.to_str()
    tokenize(TEXTS, tokenizer, tmp_path / "store", max_length=9, source="made")
    assert tokenizer.to_str() == before


def test_the_fingerprint_ignores_truncation_and_padding() -> None:
    plain = made_tokenizer()
    plain.no_truncation()
    plain.no_padding()
    assert fingerprint(plain) == fingerprint(made_tokenizer())
    assert fingerprint(plain) != fingerprint(made_tokenizer(special=False))


def unreadable() -> Iterator[str]:
    raise AssertionError("the texts were read again")
    yield ""


def test_a_store_is_reused_unless_its_inputs_changed(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    tokenize(TEXTS, made_tokenizer(), folder, max_length=8, source="one")
    assert len(tokenize(unreadable(), made_tokenizer(), folder, max_length=8, source="one")) == len(TEXTS)
    for changed in ({"max_length": 9, "source": "one"}, {"max_length": 8, "source": "two"}):
        with pytest.raises(AssertionError, match="read again"):
            tokenize(unreadable(), made_tokenizer(), folder, **changed)
    with pytest.raises(AssertionError, match="read again"):
        tokenize(unreadable(), made_tokenizer(special=False), folder, max_length=8, source="one")
    assert len(tokenize(["a"], made_tokenizer(), folder, max_length=8, source="two")) == 1
    assert TokenStore.open(folder).meta["source"] == "two"


def test_a_failed_run_leaves_the_old_store_unchanged(tmp_path: Path) -> None:
    folder = tmp_path / "store"

    def failing() -> Iterator[str]:
        yield from ["a"] * 3000
        raise DataError("line 3001 is bad")

    with pytest.raises(DataError, match="line 3001"):
        tokenize(failing(), made_tokenizer(), folder, max_length=8, source="one")
    assert list(tmp_path.iterdir()) == []
    tokenize(TEXTS, made_tokenizer(), folder, max_length=8, source="one")
    with pytest.raises(DataError, match="line 3001"):
        tokenize(failing(), made_tokenizer(), folder, max_length=8, source="two")
    assert TokenStore.open(folder).meta["source"] == "one"
    assert list(tmp_path.iterdir()) == [folder]


def test_a_damaged_store_is_refused_when_opened_and_replaced_by_tokenize(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with pytest.raises(DataError, match="store holds no readable tokens"):
        TokenStore.open(folder)
    tokenize(TEXTS, made_tokenizer(), folder, max_length=8, source="one")
    content = (folder / "tokens.bin").read_bytes()
    (folder / "tokens.bin").write_bytes(content[:-2])
    with pytest.raises(DataError, match="store is damaged"):
        TokenStore.open(folder)
    tokenize(TEXTS, made_tokenizer(), folder, max_length=8, source="one")
    assert (folder / "tokens.bin").read_bytes() == content


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="something other than tokens"):
        tokenize(TEXTS, made_tokenizer(), tmp_path, max_length=8, source="one")
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_vocabulary_beyond_two_bytes(tmp_path: Path) -> None:
    words = [*WORDS, *(f"w{n}" for n in range(70_000))]
    store = tokenize(["w69999 a"], made_tokenizer(words=words), tmp_path / "store", max_length=8, source="one")
    assert json.loads((tmp_path / "store" / "meta.json").read_text())["dtype"] == "uint32"
    np.testing.assert_array_equal(store.get_batch([0]).ids, [2, 70_013, 4, 3])


def test_too_small_max_length_and_empty_corpora_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_length=2 leaves no room for text; expected more than 2"):
        tokenize_texts(["a"], made_tokenizer(), 2)
    with pytest.raises(DataError, match="no text to tokenize"):
        tokenize([], made_tokenizer(), tmp_path / "store", max_length=8, source="one")
    assert tokenize_texts([], made_tokenizer(), 8).offsets.tolist() == [0]


LONG = [
    "a " * 500,
    "a" + " " * 500 + "b c",
    "zz" * 500 + " a",
    "zzzzzzzzzzzz " * 3 + "a " * 40,
    " " * 300 + "a b",
]


@pytest.mark.parametrize("text", LONG)
@pytest.mark.parametrize("max_length", [3, 4, 10])
def test_cutting_long_texts_early_does_not_change_tokens(text: str, max_length: int) -> None:
    whole = made_tokenizer()
    whole.no_padding()
    whole.enable_truncation(max_length)
    np.testing.assert_array_equal(tokenize_texts([text], made_tokenizer(), max_length).ids, whole.encode(text).ids)
