"""Stateless dropout for compiled layers: the mask is a hash of position and seed.

Regenerating torch's random numbers in the backward pass costs more than fusing the layer's small operations saves. A
hash is a few integer operations in the same kernel, and no mask is stored between the passes.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

DRAWS = 1 << 24
# Rounds of lowbias32 (Chris Wellons), as signed integers.
ROUNDS = ((16, 0x7FEB352D), (15, 0x846CA68B - (1 << 32)), (16, 1))
ALIGNED = 4  # seeds at 16-byte alignment: compiled code copies unaligned tensors


class HashedDropout(nn.Dropout):
    """Dropout whose buffer `seed` is replaced for every pass (`draw_seeds`)."""

    seed: Tensor

    def __init__(self, share: float) -> None:
        super().__init__(share)
        self.register_buffer("seed", torch.zeros((), dtype=torch.int32), persistent=False)

    def forward(self, states: Tensor) -> Tensor:
        if not self.training or not self.p:
            return states
        mask = (self._hash_positions(states) & (DRAWS - 1)) >= round(self.p * DRAWS)
        return torch.where(mask, states * (1 / (1 - self.p)), 0)

    def _hash_positions(self, states: Tensor) -> Tensor:
        """Compute 32 random bits per element; integer overflow wraps around."""
        width = states.shape[-1]
        rows = torch.arange(states.numel() // width, dtype=torch.int32, device=states.device)
        columns = torch.arange(width, dtype=torch.int32, device=states.device)
        bits = (rows[:, None] * width + columns).view(states.shape) ^ self.seed
        return mix_bits(bits)


def mix_bits(bits: Tensor) -> Tensor:
    """Hash 32-bit integers."""
    for shift, factor in ROUNDS:
        bits = (bits ^ ((bits >> shift) & ((1 << (32 - shift)) - 1))) * factor
    return bits


def replace_dropouts(layers: nn.Module) -> None:
    """Replace every dropout by a hashed one."""
    for owner in list(layers.modules()):
        for name, child in owner.named_children():
            if type(child) is nn.Dropout:
                setattr(owner, name, HashedDropout(child.p))


def draw_seeds(model: nn.Module, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """Draw a seed for every hashed dropout, by buffer name."""
    names = [name for name, module in model.named_modules() if isinstance(module, HashedDropout)]
    seeds = torch.randint(-(1 << 31), 1 << 31, (len(names), ALIGNED), dtype=torch.int32, device=device)
    return zip((f"{name}.seed" for name in names), seeds[:, 0], strict=True)
