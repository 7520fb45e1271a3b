import numpy as np
import pytest
import torch
from sample_encoders import TEXTS, bag
from torch import nn

from bidr.models import corpus_encoding as encode
from bidr.models.corpus_encoding import TokenArray, discard_encoded, encode_corpus, encode_rows, hash_weights
from bidr.quantization.codebooks import Codebooks
from bidr.tokenization.tokenizer import tokenize, tokenize_texts


class Killed(BaseException):
    """As a kill: nothing may catch it."""


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setitem(encode.ROWS_PER_BLOCK, "cpu", 4)


@pytest.fixture
def made(tmp_path):
    """A bag encoder and eighteen texts, in five blocks."""
    encoder, _ = bag(tmp_path / "tokens")
    return encoder, TokenArray(tokenize_texts(TEXTS * 3, encoder.tokenizer, 64))


@pytest.fixture
def calls(monkeypatch):
    """The first row of each block that is encoded; raises at the row that `stop_at` holds."""
    seen, real = {"rows": [], "stop_at": None}, encode.encode_rows

    def watched(encoder, source, rows=None, dtype=np.float32, **options):
        if rows[0] == seen["stop_at"]:
            raise Killed
        seen["rows"].append(int(rows[0]))
        return real(encoder, source, rows, dtype, **options)

    monkeypatch.setattr(encode, "encode_rows", watched)
    return seen


def books(encoder, seed: int = 0) -> Codebooks:
    random = np.random.default_rng(seed)
    return Codebooks(np.eye(encoder.dim, dtype=np.float32), random.standard_normal((4, 16, 2)).astype(np.float32) / 3)


def kill(calls, row: int, *arguments, **options) -> None:
    calls["stop_at"] = row
    with pytest.raises(Killed):
        encode_corpus(*arguments, **options)
    calls["stop_at"] = None
    calls["rows"].clear()


def test_vectors_are_those_of_the_encoder_in_half_precision(made, tmp_path):
    found = encode_corpus(*made, tmp_path / "v.npy")
    assert found.dtype == np.float16
    assert np.array_equal(found, encode_rows(*made).astype(np.float16))


@pytest.mark.parametrize("coded", [False, True])
@pytest.mark.parametrize("row", [0, 4, 8, 16])
def test_what_was_cut_off_is_continued_and_gives_the_same_bytes(made, tmp_path, calls, coded, row):
    codebooks = books(made[0]) if coded else None
    encode_corpus(*made, tmp_path / "whole.npy", codebooks=codebooks)
    path = tmp_path / "cut.npy"
    kill(calls, row, *made, path, codebooks=codebooks)
    encode_corpus(*made, path, codebooks=codebooks)
    assert calls["rows"] == list(range(row, 18, 4)), "finished blocks must not be encoded again"
    assert path.read_bytes() == (tmp_path / "whole.npy").read_bytes()
    calls["rows"].clear()
    encode_corpus(*made, path, codebooks=codebooks)
    assert calls["rows"] == []


def test_codes_are_those_of_the_codebooks(made, tmp_path):
    codebooks = books(made[0])
    found = encode_corpus(*made, tmp_path / "c.npy", codebooks=codebooks)
    assert found.dtype == np.uint8
    assert np.array_equal(found, codebooks.encode(encode_rows(*made)))


def test_another_encoder_begins_again(made, tmp_path, calls):
    encoder, source = made
    kill(calls, 8, encoder, source, tmp_path / "v.npy")
    with torch.no_grad():
        encoder.weights[3] += 0.5
    found = encode_corpus(encoder, source, tmp_path / "v.npy")
    assert calls["rows"] == [0, 4, 8, 12, 16]
    assert np.array_equal(found, encode_rows(encoder, source).astype(np.float16))


def test_other_codebooks_begin_again(made, tmp_path, calls):
    kill(calls, 8, *made, tmp_path / "c.npy", codebooks=books(made[0]))
    found = encode_corpus(*made, tmp_path / "c.npy", codebooks=books(made[0], seed=1))
    assert np.array_equal(found, books(made[0], seed=1).encode(encode_rows(*made)))
    vectors = encode_corpus(*made, tmp_path / "c.npy")
    assert vectors.dtype == np.float16
    assert np.array_equal(vectors, encode_rows(*made).astype(np.float16))


def test_other_texts_of_the_same_length_begin_again(made, tmp_path, calls):
    encoder, source = made
    kill(calls, 8, encoder, source, tmp_path / "v.npy")
    tokens = source.tokens._replace(ids=source.tokens.ids[::-1].copy())
    found = encode_corpus(encoder, TokenArray(tokens), tmp_path / "v.npy")
    assert np.array_equal(found, encode_rows(encoder, TokenArray(tokens)).astype(np.float16))


def test_another_store_of_the_same_lengths_begins_again(made, tmp_path):
    encoder, _ = made
    stores = [
        tokenize(texts, encoder.tokenizer, tmp_path / str(number), max_length=64, source=str(number))
        for number, texts in enumerate((["pearl", "night"], ["night", "pearl"]))
    ]
    first, second = (np.array(encode_corpus(encoder, store, tmp_path / "v.npy")) for store in stores)
    assert np.array_equal(first, second[::-1])
    assert not np.array_equal(first, second)


def test_a_file_that_vanished_or_a_state_that_is_no_json_begins_again(made, tmp_path, calls):
    path = tmp_path / "v.npy"
    whole = np.array(encode_corpus(*made, path))
    path.unlink()
    assert np.array_equal(encode_corpus(*made, path), whole)
    path.with_suffix(".progress.json").write_text("{")
    calls["rows"].clear()
    assert np.array_equal(encode_corpus(*made, path), whole)
    assert len(calls["rows"]) == 5


def test_discard_leaves_nothing(made, tmp_path):
    encode_corpus(*made, tmp_path / "out" / "v.npy")
    discard_encoded(tmp_path / "out" / "v.npy")
    assert list((tmp_path / "out").iterdir()) == []


def test_every_weight_counts_in_the_fingerprint(made):
    encoder, _ = made
    before = hash_weights(encoder)
    assert before == hash_weights(encoder)
    for value in encoder.parameters():
        with torch.no_grad():
            value.view(-1)[-1] += 1e-3
        assert hash_weights(encoder) != before
        before = hash_weights(encoder)


def test_single_numbers_count_in_the_fingerprint(made):
    """As the step counter of a batch normalisation or a learned scale."""
    encoder, _ = made
    encoder.scale = nn.Parameter(torch.tensor(1.0))
    before = hash_weights(encoder)
    encoder.scale.data += 1
    assert hash_weights(encoder) != before
