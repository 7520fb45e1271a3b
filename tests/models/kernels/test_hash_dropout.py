"""Dropout by a hash: the share, the scale, nothing in common from pass to pass, and the same places on the way back."""

import pytest
import torch
from sample_encoders import bert

from bidr.models.huggingface_encoder import TransformerEncoder
from bidr.models.kernels.hash_dropout import HashedDropout, draw_seeds, replace_dropouts

SHAPE = (1, 2_000, 96)


def dropout(seed: int, share: float = 0.1) -> HashedDropout:
    made = HashedDropout(share).train()
    made.seed = torch.tensor(seed, dtype=torch.int32)
    return made


@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize("seed", [0, 7, -(2**31), 2**31 - 1])
def test_the_share_is_dropped_everywhere_and_the_rest_raised(share, seed):
    found = dropout(seed, share)(torch.ones(SHAPE))
    gone = (found == 0).double()
    assert gone.mean().item() == pytest.approx(share, abs=0.005)
    assert gone.mean(1).sub(share).abs().max() < 0.06  # every column
    assert gone.mean(2).sub(share).abs().max() < 0.3  # every row
    assert found.max().item() == pytest.approx(1 / (1 - share))


def test_passes_and_neighbours_have_nothing_in_common():
    one, other = ((dropout(seed)(torch.ones(SHAPE)) == 0).double().flatten() for seed in (5, 6))
    assert (one * other).mean().item() == pytest.approx(0.01, abs=0.001)
    for step in (1, 2, SHAPE[2]):
        assert (one[step:] * one[:-step]).mean().item() == pytest.approx(0.01, abs=0.001)


def test_the_way_back_drops_the_same():
    states = torch.randn(SHAPE).requires_grad_()
    found = dropout(3)(states)
    found.sum().backward()
    assert torch.equal(states.grad == 0, found == 0)


def test_nothing_is_dropped_outside_training():
    states = torch.randn(SHAPE)
    assert torch.equal(dropout(3).eval()(states), states)
    assert torch.equal(dropout(3, 0.0)(states), states)


def test_a_models_own_share_is_kept_and_every_place_gets_a_seed_of_its_own(tmp_path):
    encoder = TransformerEncoder.open(str(bert(tmp_path / "plain")), dropout=0.25)
    backbone = encoder.model[0].model
    before = encoder.model.state_dict().keys()
    replace_dropouts(backbone.encoder.layer)
    hashed = [module for module in backbone.modules() if isinstance(module, HashedDropout)]
    assert {module.p for module in hashed} == {0.25}
    assert encoder.model.state_dict().keys() == before
    torch.manual_seed(0)
    first, again = (dict(draw_seeds(backbone, torch.device("cpu"))) for _ in range(2))
    assert len(first) == len(hashed) == len({int(seed) for seed in first.values()})
    assert all(int(first[name]) != int(again[name]) for name in first)
    assert first.keys() <= dict(backbone.named_buffers()).keys()
    encoder.save(tmp_path / "saved")
    assert TransformerEncoder.open(str(tmp_path / "saved")).dim == encoder.dim
