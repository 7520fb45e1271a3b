"""Texts end to end give the vectors that padded ones give. The GPU's kernel is stood in for by plain attention."""

import pytest
import torch
from packed_attention import packed, plain_attention  # noqa: F401 - a fixture
from sample_encoders import TEXTS, bert

from bidr.models.corpus_encoding import encode_texts
from bidr.models.huggingface_encoder import TransformerEncoder
from bidr.models.kernels.hash_dropout import replace_dropouts
from bidr.models.kernels.varlen import can_pack

pytest.importorskip("torch.nn.attention.varlen")


@pytest.mark.parametrize("options", [{}, {"pooling": "cls"}, {"pooling": "lasttoken"}, {"projection": 8}])
def test_packed_texts_have_the_vectors_of_padded_ones(tmp_path, options):
    encoder = TransformerEncoder.open(str(bert(tmp_path)), normalise=True, **options).eval()
    assert can_pack(encoder.model)
    expected = encode_texts(encoder, TEXTS, prompt="", max_length=32)
    with torch.no_grad():
        assert packed(encoder, TEXTS, False).numpy() == pytest.approx(expected, abs=1e-5)
        rough = packed(encoder, TEXTS, True).numpy()
    assert (rough * expected).sum(1).min() > 0.999


def test_gradients_reach_the_weights_that_learn(tmp_path):
    encoder = TransformerEncoder.open(str(bert(tmp_path)), projection=8).train()
    packed(encoder, TEXTS, True).square().sum().backward()
    learned = {name: value for name, value in encoder.named_parameters() if "pooler" not in name}
    assert all(value.grad is not None and value.dtype == torch.float32 for value in learned.values())


def test_what_is_saved_does_not_know_of_it(tmp_path):
    encoder = TransformerEncoder.open(str(bert(tmp_path / "a"))).eval()
    before = encoder.model[0].model.config._attn_implementation
    packed(encoder, TEXTS, False)
    assert encoder.model[0].model.config._attn_implementation == before
    encoder.save(tmp_path / "b")
    assert "bidr" not in "".join(path.read_text() for path in (tmp_path / "b").rglob("*.json"))


def test_other_kinds_are_padded(tmp_path):
    model = TransformerEncoder.open(str(bert(tmp_path)), pooling="max").model
    assert not can_pack(model)
    model = TransformerEncoder.open(str(bert(tmp_path / "again"))).model
    model[0].model.config.model_type = "mpnet"
    assert not can_pack(model)


def test_hashed_dropout_draws_anew_in_every_pass(tmp_path):
    encoder = TransformerEncoder.open(str(bert(tmp_path)), dropout=0.2).train()
    encoder.model[0].model.embeddings.dropout.p = 0.0
    replace_dropouts(encoder.model[0].model.encoder.layer)
    torch.manual_seed(1)
    first, second = (packed(encoder, TEXTS, True).detach() for _ in range(2))
    torch.manual_seed(1)
    again = packed(encoder, TEXTS, True).detach()
    assert torch.equal(first, again)
    assert not torch.allclose(first, second, atol=1e-3)


def test_what_the_loss_does_not_reach_gets_no_gradient(tmp_path):
    encoder = TransformerEncoder.open(str(bert(tmp_path)), pooling="cls").train()
    packed(encoder, TEXTS, True).square().sum().backward()
    assert {name for name, value in encoder.named_parameters() if value.grad is None} == {
        name for name, _ in encoder.named_parameters() if "pooler" in name
    }
