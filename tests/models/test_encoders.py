import json
import shutil

import numpy as np
import pytest
import torch
from sample_encoders import TEXTS, bag, bert, close, sentence_bert
from torch.nn import functional

from bidr.errors import ModelError
from bidr.models.auto import load_encoder
from bidr.models.bag_of_tokens import BagOfTokensEncoder, compute_idf
from bidr.models.corpus_encoding import TokenArray, encode_rows, encode_texts
from bidr.models.huggingface_encoder import TransformerEncoder
from bidr.tokenization.tokenizer import tokenize_texts


@pytest.fixture(autouse=True, scope="module")
def offline():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return bert(tmp_path_factory.mktemp("bert") / "plain")


@pytest.fixture(scope="module")
def sentence(tmp_path_factory):
    prompts = {"query": "query: ", "document": "document: "}
    return sentence_bert(tmp_path_factory.mktemp("sentence") / "model", prompts=prompts)


def as_others_see_it(folder, texts=TEXTS, **options) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu").encode(texts, **options)


def vectors(encoder, texts=TEXTS, prompt="", max_length=512) -> np.ndarray:
    return encode_texts(encoder, texts, prompt=prompt, max_length=max_length)


# the bag of word pieces


def test_a_bag_begins_as_tf_idf(tmp_path):
    encoder, store = bag(tmp_path / "tokens")
    size = encoder.tokenizer.get_vocab_size()
    rows = [set(store.get_batch([row]).ids.tolist()) for row in range(len(store))]
    frequency = np.array([sum(piece in row for row in rows) for piece in range(size)])
    expected = np.maximum(np.log((len(store) + 1) / (frequency + 0.5)), 0.01)
    assert np.allclose(compute_idf(store, size), expected)
    assert np.allclose(compute_idf(store, size, rows_at_once=2), expected), "blocks must not show"
    assert np.allclose(encoder.weights.detach().numpy(), expected, atol=1e-5)
    assert np.allclose(encoder.directions.detach().norm(dim=1).numpy(), 1, atol=1e-5)


def test_a_bags_vector_is_the_weighted_sum_of_its_pieces(tmp_path):
    encoder, store = bag(tmp_path / "tokens")
    found = encode_rows(encoder, store)
    for row in range(len(store)):
        ids = torch.from_numpy(store.get_batch([row]).ids.astype(np.int64))
        whole = (encoder.directions[ids] * encoder.weights[ids].unsqueeze(1)).sum(0)
        assert close(found[row], functional.normalize(whole, dim=0).detach().numpy())


def test_a_saved_bag_gives_the_same_vectors_here_and_elsewhere(tmp_path):
    encoder, _ = bag(tmp_path / "tokens")
    with torch.no_grad():
        encoder.directions += 0.3 * torch.randn(encoder.directions.shape, generator=torch.Generator().manual_seed(1))
        encoder.weights[5:9] *= -1
    encoder.save(tmp_path / "bag")
    found = load_encoder(tmp_path / "bag")
    assert isinstance(found, BagOfTokensEncoder)
    assert close(vectors(found), vectors(encoder))
    said = [text for text in TEXTS if text]
    assert close(as_others_see_it(tmp_path / "bag", said), vectors(encoder, said))


def test_both_parts_of_a_bag_learn(tmp_path):
    encoder, store = bag(tmp_path / "tokens")
    encoder.encode(store.get_batch([0, 2])).sum().backward()
    assert encoder.directions.grad.abs().sum() > 0
    assert encoder.weights.grad.abs().sum() > 0


def test_a_damaged_bag_is_a_model_error(tmp_path):
    encoder, _ = bag(tmp_path / "tokens")
    encoder.save(tmp_path / "bag")
    for name in ("model.safetensors", "tokenizer.json"):
        copy = tmp_path / name
        shutil.copytree(tmp_path / "bag", copy)
        (copy / "0_StaticEmbedding" / name).write_text("{}")
        with pytest.raises(ModelError, match="cannot be read"):
            load_encoder(copy)


# transformers


def test_a_plain_folder_is_read_as_sentence_transformers_reads_it(plain):
    encoder = TransformerEncoder.open(str(plain))
    assert (encoder.dim, encoder.max_length, encoder.normalized) == (32, 32, False)
    assert close(vectors(encoder), as_others_see_it(plain))


def test_a_folder_that_says_its_pooling_is_taken_at_its_word(sentence):
    encoder = load_encoder(sentence)
    assert encoder.normalized
    assert (encoder.prompts.query, encoder.prompts.document) == ("query: ", "document: ")
    assert close(vectors(encoder), as_others_see_it(sentence))
    asked = vectors(encoder, prompt=encoder.prompts.query)
    assert close(asked, as_others_see_it(sentence, prompt_name="query"))
    assert not close(asked, vectors(encoder))


def test_padding_does_not_show(plain):
    encoder = TransformerEncoder.open(str(plain)).eval()
    alone = np.concatenate([vectors(encoder, [text]) for text in TEXTS])
    assert close(vectors(encoder), alone)
    tokens = tokenize_texts(TEXTS, encoder.tokenizer, 32)
    with torch.inference_mode():
        together = encoder.encode(tokens).numpy()
    assert close(together, alone)


def test_rows_come_back_in_their_order_whatever_their_lengths(plain, monkeypatch):
    from bidr.models import corpus_encoding as encode

    encoder = TransformerEncoder.open(str(plain))
    source = TokenArray(tokenize_texts(TEXTS, encoder.tokenizer, 32))
    whole = encode_rows(encoder, source)
    monkeypatch.setitem(encode.TOKENS_PER_BATCH, "cpu", 20)
    monkeypatch.setattr(encode, "ROWS_PER_BATCH", 2)
    rows = np.array([3, 0, 0, 5, 2])
    assert close(encode_rows(encoder, source, rows), whole[rows])


def test_dropout_is_off_while_encoding_and_on_again_afterwards(plain):
    encoder = TransformerEncoder.open(str(plain)).train()
    assert np.array_equal(vectors(encoder), vectors(encoder))
    assert encoder.training


def test_dropout_that_was_given_survives_saving(plain, tmp_path):
    encoder = TransformerEncoder.open(str(plain), dropout=0.0)
    encoder.save(tmp_path / "saved")
    again = load_encoder(tmp_path / "saved").train()
    tokens = again.get_tokenizer(32)(TEXTS)
    assert torch.equal(again.encode(tokens), again.encode(tokens))
    other = TransformerEncoder.open(str(plain)).train()
    assert not torch.equal(other.encode(tokens), other.encode(tokens))


def test_long_texts_are_cut_where_the_model_ends_and_where_asked(plain):
    encoder = TransformerEncoder.open(str(plain))
    long = "the night watch " * 40
    assert close(vectors(encoder, [long]), as_others_see_it(plain, [long]))
    shorter = tokenize_texts([long], encoder.tokenizer, 7)
    assert len(shorter.ids) == 7
    assert shorter.ids[-1] == encoder.tokenizer.token_to_id("[SEP]")
    assert close(vectors(encoder, [long], max_length=7), vectors(encoder, ["the night watch the night"]))


def test_truncation_and_padding_in_the_tokenizers_own_file_are_ignored(plain, tmp_path):
    """As MiniLM's has them: without a word it would read a quarter of what was asked for."""
    cut = TransformerEncoder.open(str(bert(tmp_path / "cut", truncation=4)))
    assert close(vectors(cut), vectors(TransformerEncoder.open(str(plain))))


@pytest.mark.parametrize(
    "options",
    [
        {"pooling": "max"},
        {"pooling": "lasttoken"},
        {"projection": 12},
        {"normalise": True},
        {"projection": 8, "normalise": True, "pooling": "cls"},
    ],
    ids=str,
)
def test_overrides_survive_saving_and_are_seen_elsewhere(plain, tmp_path, options):
    encoder = TransformerEncoder.open(str(plain), **options)
    before = vectors(encoder)
    assert before.shape[1] == encoder.dim == options.get("projection", 32)
    assert encoder.normalized is options.get("normalise", False)
    assert not close(before, vectors(TransformerEncoder.open(str(plain))))
    encoder.save(tmp_path / "saved")
    found = load_encoder(tmp_path / "saved")
    assert (found.normalized, found.dim, found.max_length) == (encoder.normalized, encoder.dim, encoder.max_length)
    assert close(vectors(found), before)
    assert close(as_others_see_it(tmp_path / "saved"), before)


def test_normalisation_can_be_taken_away(sentence, tmp_path):
    encoder = TransformerEncoder.open(str(sentence), normalise=False)
    assert not encoder.normalized
    assert not np.allclose(np.linalg.norm(vectors(encoder), axis=1), 1)
    encoder.save(tmp_path / "saved")
    assert not load_encoder(tmp_path / "saved").normalized


def test_a_normalised_model_with_a_projection_stays_normalised(sentence):
    found = vectors(TransformerEncoder.open(str(sentence), projection=6))
    assert found.shape[1] == 6
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


def test_prompts_that_were_given_survive_saving(plain, tmp_path):
    encoder = TransformerEncoder.open(str(plain), query_prompt="query: ", document_prompt="document: ")
    encoder.save(tmp_path / "saved")
    found = load_encoder(tmp_path / "saved")
    assert found.prompts == encoder.prompts == ("query: ", "document: ")
    assert close(as_others_see_it(tmp_path / "saved", prompt_name="query"), vectors(found, prompt="query: "))


@pytest.mark.parametrize("name", ["document", "passage", "corpus"])
def test_a_models_own_prompts_are_found_and_can_be_taken_away(tmp_path, name):
    folder = sentence_bert(tmp_path / "model", prompts={"query": "query: ", name: "document: "})
    assert load_encoder(folder).prompts == ("query: ", "document: ")
    silent = TransformerEncoder.open(str(folder), query_prompt="", document_prompt="")
    assert silent.prompts == ("", "")
    silent.save(tmp_path / "saved")
    assert load_encoder(tmp_path / "saved").prompts == ("", "")


def test_the_same_seed_gives_the_same_projection(plain):
    one, again, other = (TransformerEncoder.open(str(plain), projection=4, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(vectors(one), vectors(again))
    assert not close(vectors(one), vectors(other))


def test_gradients_reach_the_backbone_and_the_projection(plain):
    encoder = TransformerEncoder.open(str(plain), projection=4)
    encoder.encode(tokenize_texts(TEXTS, encoder.tokenizer, 32)).square().sum().backward()
    missing = [name for name, value in encoder.named_parameters() if value.grad is None and "pooler" not in name]
    assert missing == []


def test_what_cannot_be_opened_is_a_model_error(tmp_path):
    with pytest.raises(ModelError, match="cannot load the encoder"):
        TransformerEncoder.open(str(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match="cannot load the encoder"):
        load_encoder(tmp_path)


@pytest.mark.parametrize(("key", "value"), [("method_output_name", 1.5), ("method", "no_such_method")])
def test_a_configuration_that_fails_while_encoding_is_refused_on_loading(tmp_path, key, value):
    folder = sentence_bert(tmp_path / "model")
    path = folder / "sentence_bert_config.json"
    config = json.loads(path.read_text())
    config["modality_config"]["text"][key] = value
    path.write_text(json.dumps(config))
    with pytest.raises(ModelError, match="cannot load the encoder"):
        TransformerEncoder.open(str(folder))
