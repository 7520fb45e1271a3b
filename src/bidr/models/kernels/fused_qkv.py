"""Fused query-key-value projection for packed texts: one matrix product instead of three.

The product reads the states once, its gradient is one product instead of three products and two sums, and attention
reads the result in place. The names of the weights, and so saved models, do not change.
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
    """Return whether all projections are plain linear layers, not adapters for example."""
    attentions = [cast(Any, layer).attention.self for layer in layers]
    projections = [getattr(attention, name) for attention in attentions for name in PARTS]
    return all(type(layer) is nn.Linear and layer.bias is not None for layer in projections)


def fuse_projections(layers: nn.ModuleList) -> None:
    """Fuse the projections of every layer for packed texts; padded texts are not affected."""
    for layer in layers:
        attention: Any = layer.attention
        if not isinstance(attention.self, _FusedAttention):
            kind: Any = type(attention.self)
            attention.self.__class__ = _make_fused_class(kind)


class _FusedAttention(nn.Module):
    """Mixin over BERT's self-attention, the next class in the MRO."""

    attention_head_size: int
    attend: Callable[[Tensor, Tensor, int], Tensor]  # (tokens, 3, heads, width) to (tokens, heads, width)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copy and pickle as the original class."""
        reduced: Any = super().__reduce_ex__(protocol)
        return _create_instance, (type(self).__bases__[1],), *reduced[2:]

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        if "cu_seq_lens_q" not in kwargs:
            return super().forward(hidden_states, *args, **kwargs)
        parts = [getattr(self, name) for name in PARTS]
        weight, bias = (torch.cat([getattr(part, name) for part in parts]) for name in ("weight", "bias"))
        joined = functional.linear(hidden_states[0], weight, bias)
        joined = joined.view(len(joined), len(PARTS), -1, self.attention_head_size)
        output = self.attend(joined, kwargs["cu_seq_lens_q"], kwargs["max_length_q"])
        return output.flatten(1)[None], None


def _create_instance(kind: Any) -> Any:
    return kind.__new__(kind)


@cache
def _make_fused_class(kind: Any) -> Any:
    attend = staticmethod(_attend_short if can_compile_kernels() else _attend)
    return type(kind.__name__, (_FusedAttention, kind), {"attend": attend})


@cache
def can_compile_kernels() -> bool:
    """Return whether Triton can compile kernels: a GPU, the package and a C compiler are present."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    return torch.cuda.is_available() and find_spec("triton") is not None and compiler is not None


def _attend_short(joined: Tensor, offsets: Tensor, longest: int) -> Tensor:
    """Attend with the Triton kernel for short texts."""
    from bidr.models.kernels.triton_attention import attend, is_supported

    if joined.is_cuda and is_supported(joined, longest):
        return cast(Tensor, attend(joined, offsets, longest))
    return _attend(joined, offsets, longest)


def _attend(joined: Tensor, offsets: Tensor, longest: int) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = joined.unbind(1)
    return cast(Tensor, varlen_attn(query, key, value, offsets, offsets, longest, longest))
