"""Dropout for compiled layers: what is dropped is a hash of a place and a seed.

The numbers that torch draws take so long to draw again on the way back that fusing a layer's small operations does not
pay. A hash is a handful of integer operations in the same kernel, and nothing of it is kept between the two ways.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

DRAWS = 1 << 24
# Rounds of a hash whose bits all depend on all (lowbias32 of Chris Wellons), as signed numbers.
ROUNDS = ((16, 0x7FEB352D), (15, 0x846CA68B - (1 << 32)), (16, 1))
ALIGNED = 4  # compiled code copies what does not begin at 16 bytes


class HashedDropout(nn.Dropout):
    """`seed` is given anew for every pass (`drawn_seeds`)."""

    seed: Tensor

    def __init__(self, share: float) -> None:
        super().__init__(share)
        self.register_buffer("seed", torch.zeros((), dtype=torch.int32), persistent=False)

    def forward(self, states: Tensor) -> Tensor:
        if not self.training or not self.p:
            return states
        kept = (self._draws(states) & (DRAWS - 1)) >= round(self.p * DRAWS)
        return torch.where(kept, states * (1 / (1 - self.p)), 0)

    def _draws(self, states: Tensor) -> Tensor:
        """32 bits for every place. Sums and products wrap around."""
        width = states.shape[-1]
        rows = torch.arange(states.numel() // width, dtype=torch.int32, device=states.device)
        columns = torch.arange(width, dtype=torch.int32, device=states.device)
        bits = (rows[:, None] * width + columns).view(states.shape) ^ self.seed
        return mix_bits(bits)


def mix_bits(bits: Tensor) -> Tensor:
    """Hashes of 32-bit numbers."""
    for shift, factor in ROUNDS:
        bits = (bits ^ ((bits >> shift) & ((1 << (32 - shift)) - 1))) * factor
    return bits


def replace_dropouts(layers: nn.Module) -> None:
    """Put a hashed dropout in the place of every other."""
    for owner in list(layers.modules()):
        for name, child in owner.named_children():
            if type(child) is nn.Dropout:
                setattr(owner, name, HashedDropout(child.p))


def draw_seeds(model: nn.Module, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """A new seed for every hashed dropout, by the name of its buffer."""
    names = [name for name, module in model.named_modules() if isinstance(module, HashedDropout)]
    seeds = torch.randint(-(1 << 31), 1 << 31, (len(names), ALIGNED), dtype=torch.int32, device=device)
    return zip((f"{name}.seed" for name in names), seeds[:, 0], strict=True)
