"""The kernel for short texts gives the attention, and the gradients, that plain attention gives. Needs a GPU."""

from itertools import pairwise

import pytest
import torch
from torch.nn import functional

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from bidr.models.kernels.triton_attention import HEAD_WIDTHS, MAX_TEXT_TOKENS, attend, is_supported


def plain(query, key, value, lengths):
    ends = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    heads = [[part[a:b].transpose(0, 1) for part in (query, key, value)] for a, b in pairwise(ends)]
    return torch.cat([functional.scaled_dot_product_attention(*each).transpose(0, 1) for each in heads])


@pytest.mark.parametrize("width", HEAD_WIDTHS)
@pytest.mark.parametrize("lengths", [[1], [16, 3], [32, 33, 1], [64, 65, 7], [MAX_TEXT_TOKENS, 1, 40, 90], [5] * 300])
def test_as_plain_attention(width, lengths):
    torch.manual_seed(0)
    joined = torch.randn(sum(lengths), 3, 5, width, device="cuda").bfloat16().requires_grad_()
    wide = joined.detach().double().requires_grad_()
    offsets = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
    assert is_supported(joined, max(lengths))
    found, expected = attend(joined, offsets, max(lengths)), plain(*wide.unbind(1), lengths)
    given = torch.randn_like(found)
    near(found, expected)
    near(*torch.autograd.grad(found, joined, given), *torch.autograd.grad(expected, wide, given.double()))


def near(found, expected):
    assert ((found.double() - expected).norm() / expected.norm().clamp(min=1e-6)) < 0.01


def test_longer_texts_and_other_widths_are_left_to_torch():
    joined = torch.empty(1, 3, 5, 32, dtype=torch.bfloat16)
    assert is_supported(joined, MAX_TEXT_TOKENS)
    assert not is_supported(joined, MAX_TEXT_TOKENS + 1)
    assert not is_supported(joined.float(), 8)
    assert not is_supported(torch.empty(1, 3, 5, 80, dtype=torch.bfloat16), 8)
