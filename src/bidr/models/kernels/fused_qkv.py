"""Query, key and value of packed texts by one matrix product instead of three.

The product reads the states once, its gradient is one product instead of three and two sums, and attention reads the
three where they lie. Weights keep their names and places: what is saved does not know of it.
"""

import shutil
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

PARTS = ("query", "key", "value")


def can_fuse(layers: nn.ModuleList) -> bool:
    """Whether all projections are plain ones: of an adapter's, say, the weight is not all."""
    attentions = [cast(Any, layer).attention.self for layer in layers]
    projections = [getattr(one, name) for one in attentions for name in PARTS]
    return all(type(one) is nn.Linear and one.bias is not None for one in projections)


def fuse_projections(layers: nn.ModuleList) -> None:
    """Let every layer's attention take packed texts so; padded ones go the way they went."""
    for layer in layers:
        attention: Any = layer.attention
        if not isinstance(attention.self, _Joined):
            kind: Any = type(attention.self)
            attention.self.__class__ = _joined(kind)


class _Joined(nn.Module):
    """Laid over a BERT's own self-attention, which is next in line."""

    attention_head_size: int
    attend: Callable[[Tensor, Tensor, int], Tensor]  # (tokens, 3, heads, width) to (tokens, heads, width)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles are of the kind that this is laid over."""
        made: Any = super().__reduce_ex__(protocol)
        return _new, (type(self).__bases__[1],), *made[2:]

    def forward(self, hidden_states: Tensor, *given: Any, **named: Any) -> Any:
        if "cu_seq_lens_q" not in named:
            return super().forward(hidden_states, *given, **named)
        parts = [getattr(self, name) for name in PARTS]
        weight, bias = (torch.cat([getattr(part, name) for part in parts]) for name in ("weight", "bias"))
        joined = functional.linear(hidden_states[0], weight, bias)
        joined = joined.view(len(joined), len(PARTS), -1, self.attention_head_size)
        found = self.attend(joined, named["cu_seq_lens_q"], named["max_length_q"])
        return found.flatten(1)[None], None


def _new(kind: Any) -> Any:
    return kind.__new__(kind)


@cache
def _joined(kind: Any) -> Any:
    attend = staticmethod(_attend_short if can_compile_kernels() else _attend)
    return type(kind.__name__, (_Joined, kind), {"attend": attend})


@cache
def can_compile_kernels() -> bool:
    """Whether there is a GPU, and what writes kernels for it."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    return torch.cuda.is_available() and find_spec("triton") is not None and compiler is not None


def _attend_short(joined: Tensor, offsets: Tensor, longest: int) -> Tensor:
    """By a kernel of our own where texts are short."""
    from bidr.models.kernels.triton_attention import attend, is_supported

    if joined.is_cuda and is_supported(joined, longest):
        return cast(Tensor, attend(joined, offsets, longest))
    return _attend(joined, offsets, longest)


def _attend(joined: Tensor, offsets: Tensor, longest: int) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = joined.unbind(1)
    return cast(Tensor, varlen_attn(query, key, value, offsets, offsets, longest, longest))
