"""The word cache gives the tokens of the tokenizer itself."""

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from bidr.tokenization import tokenizer as module
from bidr.tokenization import word_cache
from bidr.tokenization.tokenizer import TextTokenizer
from bidr.tokenization.word_cache import CachedTokens, WordCache, WordTable, pack_strings
from bidr.tokenization.word_cache_kernels import WordSnapshot
from bidr.tokenization.wordpieces import is_word_local, train_wordpieces

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
PLAIN = st.lists(st.text("abcdefgh", min_size=1, max_size=4), min_size=1, max_size=10).map(" ".join)


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


def rows(tokenizer: TextTokenizer, texts: list[str]) -> list[list[int]]:
    found = tokenizer(texts)
    return [found.ids[start:end].tolist() for start, end in zip(found.offsets, found.offsets[1:], strict=False)]


@pytest.mark.parametrize("name", BOTH)
@given(texts=st.lists(TEXTS, max_size=6), length=st.sampled_from([3, 8, 64]))
@settings(max_examples=150, deadline=None)
def test_cached_tokens_equal_those_of_the_tokenizer(name: str, texts: list[str], length: int) -> None:
    cached, whole = TextTokenizer(BOTH[name], length, use_cache=True), TextTokenizer(BOTH[name], length)
    assert cached.threads
    assert rows(cached, texts) == rows(whole, texts)
    assert rows(cached, texts[::-1]) == rows(whole, texts[::-1])  # nothing new any more


def test_a_full_cache_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_cache, "MAX_WORDS", 3)
    words = WordCache(TextTokenizer(BOTH["bert"], 16).tokenizer, 16)
    first = words.tokenize(["a b c d e f"]).ids.tolist()
    words.tokenize(["g h"])
    assert words.table.count == 2
    assert words.tokenize(["a b c d e f"]).ids.tolist() == first


def test_several_threads_keep_the_order_of_the_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TEXTS_PER_BLOCK", 3)
    monkeypatch.setattr(module, "count_available_cpus", lambda: 3)
    tokenizer = TextTokenizer(BOTH["bert"], 16, use_cache=True)
    texts = [f"word{i % 11} and {i}," for i in range(500)]
    assert tokenizer.threads == 3
    assert rows(tokenizer, texts) == rows(TextTokenizer(BOTH["bert"], 16), texts)


@pytest.mark.parametrize(
    "kinds",
    [
        {"pre_tokenizer": pre_tokenizers.ByteLevel()},
        {"pre_tokenizer": pre_tokenizers.Metaspace()},
        {"normalizer": normalizers.Replace(" ", "")},
    ],
)
def test_tokenizers_that_look_across_spaces_are_not_cached(kinds: dict[str, object]) -> None:
    assert not is_word_local(bert(**kinds))


def test_a_tokenizer_with_an_added_token_with_a_space_is_not_cached() -> None:
    tokenizer = bert()
    tokenizer.add_tokens(["a b"])
    assert is_word_local(bert())
    assert not is_word_local(tokenizer)


def test_a_tokenizer_for_queries_has_no_cache() -> None:
    assert not TextTokenizer(BOTH["bert"], 16).threads


def letters_of(words: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens that are easy to check: a word's letters."""
    return np.array([ord(one) for one in "".join(words)], dtype=np.int32), np.array([len(one) for one in words])


def words_of(known: WordSnapshot) -> list[str]:
    """By their letters, and by their tokens."""
    ids = [known.ids[first:end] for first, end in pairwise(known.firsts[: known.size + 1])]
    words = [known.letters[first:end].tobytes().decode() for first, end in pairwise(known.starts[: known.size + 1])]
    assert words == ["".join(map(chr, one)) for one in ids]
    return words


def test_word_numbers_stay_when_the_table_grows() -> None:
    table, texts = WordTable(letters_of, pack_strings([])), [f"word{i} né{i % 7},".encode() for i in range(5_000)]
    first, known = table.number_words(texts, 3)
    assert table.count == 5_000 + 7 + 1
    assert table.letters == known.starts[known.size]
    assert first.counts.tolist() == [3] * 5_000
    again, _ = table.number_words(texts[::-1], 3)
    assert (again.words.reshape(-1, 3)[::-1] == first.words.reshape(-1, 3)).all()
    assert words_of(known)[:3] == ["word0", "né0", ","]
    assert table.count == len(set(words_of(known)))


def test_snapshots_stay_valid_while_words_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_cache, "_MIN_SLOTS", 2)
    table, moments, texts = (
        WordTable(letters_of, pack_strings([])),
        [],
        [f"word{i} other{i}".encode() for i in range(300)],
    )
    for text in texts:
        table.number_words([text], 2)
        moments.append((table.snapshot, words_of(table.snapshot)))
        assert each_once(table.snapshot)
        assert table.count == len(moments) * 2
    for arrays in zip(*(known[1:] for known, _ in moments), strict=True):
        assert 5 < len(set(map(id, arrays))) < 30
    assert all(words_of(known) == words for known, words in moments)
    assert table.number_words(texts, 2)[0].words.tolist() == list(range(600))


def each_once(known: WordSnapshot) -> bool:
    return sorted(known.slots[known.slots != word_cache.EMPTY].tolist()) == list(range(known.size))


def test_words_whose_encoding_failed_do_not_fill_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_cache, "_MIN_SLOTS", 8)

    def tokens_of(words: list[str]) -> tuple[np.ndarray, np.ndarray]:
        if words != ["known"]:
            raise MemoryError
        return letters_of(words)

    table = WordTable(tokens_of, pack_strings([]))
    for i in range(100):
        with pytest.raises(MemoryError):
            table.number_words([f"bad{i}".encode()], 1)
    assert words_of(table.number_words([b"known"], 1)[1]) == ["known"]
    assert each_once(table.snapshot)


def test_added_tokens_are_found_within_a_text_and_not_across_two() -> None:
    table = WordTable(letters_of, pack_strings([b"[a]", b"<b", b"<bc"]))
    texts = [b"x[a]y", b"x[a", b"]y <b", b"<", b"b", b"", b"<bc", b"c [A] [b]", b"[[a]"]
    assert table.number_words(texts, 9)[0].unsupported.tolist() == [
        True,
        False,
        True,
        False,
        False,
        False,
        True,
        False,
        True,
    ]
    assert set(words_of(table.snapshot)) == set("x[a<bc]A")


def test_an_added_token_is_found_within_a_word() -> None:
    texts = ["ab[MASK]cd, e", "ab [mask] cd", "a"]
    assert rows(TextTokenizer(BOTH["bert"], 16, use_cache=True), texts) == rows(TextTokenizer(BOTH["bert"], 16), texts)


def failing(monkeypatch: pytest.MonkeyPatch, fails: Iterable[bool]) -> None:
    """The tokenizer of new words fails where this says so, and not after its end."""
    tokens_of, calls = WordCache._encode_words, iter(fails)

    def failing(self: WordCache, new: list[str]) -> tuple[np.ndarray, np.ndarray]:
        if next(calls, False):
            raise MemoryError
        return tokens_of(self, new)

    monkeypatch.setattr(WordCache, "_encode_words", failing)


def test_an_error_ends_a_call_and_the_next_call_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "count_available_cpus", lambda: 1)
    monkeypatch.setattr(module, "_TEXTS_PER_BLOCK", 1)
    failing(monkeypatch, [False, True])
    texts, tokenizer = ["a b", "c d", "and h"], TextTokenizer(BOTH["bert"], 16, use_cache=True)
    found, whole = tokenizer.iter_blocks(texts), rows(TextTokenizer(BOTH["bert"], 16), texts)
    made: list[list[int]] = []
    with pytest.raises(MemoryError):
        made.extend(block.ids.tolist() for block in found)
    assert made == whole[:1]
    assert rows(tokenizer, texts) == whole


@given(data=st.data(), fails=st.lists(st.booleans(), max_size=20))
@settings(max_examples=100, deadline=None)
def test_words_are_added_correctly_after_errors(data: st.DataObject, fails: list[bool]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_cache, "_MIN_SLOTS", 2)
        failing(patch, fails)
        words, whole = WordCache(TextTokenizer(BOTH["bert"], 16).tokenizer, 16), TextTokenizer(BOTH["bert"], 16)
        for texts in data.draw(st.lists(st.lists(PLAIN, min_size=1, max_size=3), min_size=2, max_size=20)):
            with suppress(MemoryError):
                assert words.tokenize(texts).ids.tolist() == whole(texts).ids.tolist()


def test_lookups_continue_while_words_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    words, tokens_of = WordCache(TextTokenizer(BOTH["bert"], 16).tokenizer, 16), WordCache._encode_words
    known, learned, also = (words.tokenize([text]).ids.tolist() for text in ("a b", "bad cafe", "bad"))
    pool = ThreadPoolExecutor(2)
    waiting: list[Future[CachedTokens]] = []

    def while_learning(self: WordCache, new: list[str]) -> tuple[np.ndarray, np.ndarray]:
        if new == ["bad", "cafe"]:
            assert pool.submit(words.tokenize, ["a b"]).result(timeout=60).ids.tolist() == known
            waiting.append(pool.submit(words.tokenize, ["bad"]))
            assert not wait(waiting, timeout=0.2).done, "a word that is being learned was taken for known"
        return tokens_of(self, new)

    monkeypatch.setattr(WordCache, "_encode_words", while_learning)
    words.table = words._create_table()
    words.tokenize(["a b c d e f ab cd ef abcd efgh face"])  # which leaves room: nothing has to be replaced
    assert words.tokenize(["bad cafe"]).ids.tolist() == learned
    assert waiting[0].result(timeout=60).ids.tolist() == also
    pool.shutdown()


@given(texts=st.lists(TEXTS | PLAIN, max_size=60), most=st.sampled_from([1, 10, 1_000]))
@settings(max_examples=60, deadline=None)
def test_threads_share_a_cache_that_grows_and_is_cleared(texts: list[str], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_TEXTS_PER_BLOCK", 2)
        patch.setattr(word_cache, "_MIN_SLOTS", 2)
        patch.setattr(word_cache, "MAX_WORDS", most)
        cached = TextTokenizer(BOTH["bert"], 8, use_cache=True)
        cached.threads = 6
        assert rows(cached, texts) == rows(TextTokenizer(BOTH["bert"], 8), texts)


def test_threads_encode_each_word_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens_of, learned = WordCache._encode_words, []

    def noted(self: WordCache, new: list[str]) -> tuple[np.ndarray, np.ndarray]:
        learned.extend(new)
        return tokens_of(self, new)

    monkeypatch.setattr(WordCache, "_encode_words", noted)
    monkeypatch.setattr(module, "_TEXTS_PER_BLOCK", 5)
    cached = TextTokenizer(BOTH["bert"], 16, use_cache=True)
    cached.threads = 6
    texts = [f"{'abcdefgh'[i % 8]}{i % 97} and {i % 13}" for i in range(2_000)]
    assert rows(cached, texts) == rows(TextTokenizer(BOTH["bert"], 16), texts)
    assert len(learned) == len(set(learned)) == len({word for text in texts for word in text.split()})
