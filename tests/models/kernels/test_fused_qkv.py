"""One product for query, key and value: only of plain ones, and nobody but packed texts notices."""

import copy
import pickle

import pytest
import torch
from packed_attention import packed, plain_attention  # noqa: F401 - a fixture
from sample_encoders import TEXTS, bert

from bidr.models.corpus_encoding import encode_texts
from bidr.models.huggingface_encoder import TransformerEncoder
from bidr.models.kernels.varlen import can_pack

pytest.importorskip("torch.nn.attention.varlen")


class Other(torch.nn.Linear):
    """As an adapter's: more than its weight."""

    def forward(self, states):
        return super().forward(states) + 1


@pytest.fixture
def encoder(tmp_path):
    return TransformerEncoder.open(str(bert(tmp_path)), normalise=True).eval()


def padded(encoder):
    return encode_texts(encoder, TEXTS, prompt="", max_length=32)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_padded_texts_copies_and_pickles_go_the_usual_way(encoder, again):
    before, kind = padded(encoder), type(encoder.model[0].model.encoder.layer[0].attention.self)
    with torch.no_grad():
        found = packed(encoder, TEXTS, False)
        assert padded(encoder) == pytest.approx(before, abs=1e-6)
        twin = TransformerEncoder(again(encoder.model)).eval()
        assert type(twin.model[0].model.encoder.layer[0].attention.self) is kind
        assert padded(twin) == pytest.approx(before, abs=1e-6)
        assert torch.allclose(packed(twin, TEXTS, False), found)


def test_a_whole_encoder_can_be_copied_after_use(encoder):
    before = padded(encoder)
    assert padded(copy.deepcopy(encoder)) == pytest.approx(before)


def test_projections_that_are_more_than_a_weight_are_not_packed(encoder):
    attention = encoder.model[0].model.encoder.layer[1].attention.self
    assert can_pack(encoder.model)
    attention.key = Other(32, 32)
    assert not can_pack(encoder.model)
    attention.key = torch.nn.Linear(32, 32, bias=False)
    assert not can_pack(encoder.model)


@pytest.mark.parametrize("padding", [0, 1])
def test_robertas_positions_begin_behind_the_padding_token(encoder, padding):
    from transformers import RobertaConfig, RobertaModel

    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=40,
        pad_token_id=padding,
        initializer_range=0.3,
    )
    encoder.model[0].model = RobertaModel(config, add_pooling_layer=False).eval()
    encoder.pad_id = padding
    texts = TEXTS[:4]  # of which no token is the padding one
    expected = encode_texts(encoder, texts, prompt="", max_length=32)
    with torch.no_grad():
        assert can_pack(encoder.model)
        assert packed(encoder, texts, False).numpy() == pytest.approx(expected, abs=1e-5)
