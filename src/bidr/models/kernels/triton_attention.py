"""Triton attention for packed texts that are short enough to fit in the registers of a multiprocessor.

One program per text and head. Scores are computed in the forward pass and recomputed in the backward pass; only query,
key and value are saved. Short texts cost less than long ones.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_TEXT_TOKENS = 128
HEAD_WIDTHS = (16, 32, 64)
WARPS = {16: 1, 32: 1, 64: 2, 128: 4}


def is_supported(joined: Tensor, longest: int) -> bool:
    """Whether texts and heads, (tokens, 3, heads, width), are of a size that this is made for."""
    return (
        longest <= MAX_TEXT_TOKENS
        and joined.shape[-1] in HEAD_WIDTHS
        and joined.dtype in (torch.bfloat16, torch.float16)
    )


@torch.library.custom_op("bidr::short_attention", mutates_args=())
def attend(joined: Tensor, offsets: Tensor, longest: int) -> Tensor:
    """Compute attention of joined query, key and value; text i is the rows offsets[i]:offsets[i + 1]."""
    joined = joined.contiguous()
    attended = torch.empty_like(joined[:, 0], memory_format=torch.contiguous_format)
    _launch(_forward, (joined, attended), offsets, longest)
    return attended


@torch.library.custom_op("bidr::short_attention_backward", mutates_args=())
def _attend_backward(joined: Tensor, gradient: Tensor, offsets: Tensor, longest: int) -> Tensor:
    joined, gradient = joined.contiguous(), gradient.contiguous()
    joined_gradient = torch.empty_like(joined)
    _launch(_backward, (joined, gradient, joined_gradient), offsets, longest)
    return joined_gradient


@attend.register_fake
def _(joined: Tensor, offsets: Tensor, longest: int) -> Tensor:
    return torch.empty_like(joined[:, 0], memory_format=torch.contiguous_format)


@_attend_backward.register_fake
def _(joined: Tensor, gradient: Tensor, offsets: Tensor, longest: int) -> Tensor:
    return torch.empty_like(joined, memory_format=torch.contiguous_format)


def _save_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    joined, offsets, ctx.longest = inputs
    ctx.save_for_backward(joined, offsets)


def _backpropagate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    joined, offsets = ctx.saved_tensors
    return _attend_backward(joined, gradient, offsets, ctx.longest), None, None


attend.register_autograd(_backpropagate, setup_context=_save_context)


def _launch(kernel: Any, parts: tuple[Tensor, ...], offsets: Tensor, longest: int) -> None:
    _, _, heads, width = parts[0].shape
    block = max(16, triton.next_power_of_2(longest))
    kernel[len(offsets) - 1, heads](
        *parts, offsets, heads * width, width**-0.5, WIDTH=width, BLOCK=block, num_warps=WARPS[block]
    )


LOG2E = tl.constexpr(math.log2(math.e))


@triton.jit
def _load_bounds(offsets):
    """Load start and length of the program's text."""
    start = tl.load(offsets + tl.program_id(0)).to(tl.int64)
    return start, (tl.load(offsets + tl.program_id(0) + 1) - start).to(tl.int32)


@triton.jit
def _compute_addresses(start, length, stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Compute the addresses of the program's head in the rows of its text, and the mask of existing rows."""
    rows, columns = tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    return ((start + rows) * stride + tl.program_id(1) * WIDTH)[:, None] + columns[None, :], (rows < length)[:, None]


@triton.jit
def _load_parts(joined, start, length, wide, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Load query, key and value, which are adjacent, each as wide as all heads."""
    address, mask = _compute_addresses(start, length, 3 * wide, WIDTH, BLOCK)
    query, key = tl.load(joined + address, mask, 0.0), tl.load(joined + wide + address, mask, 0.0)
    return query, key, tl.load(joined + 2 * wide + address, mask, 0.0)


@triton.jit
def _compute_weights(query, key, length, scale, BLOCK: tl.constexpr):
    scores = tl.dot(query, tl.trans(key)) * (scale * LOG2E)
    scores = tl.where((tl.arange(0, BLOCK) < length)[None, :], scores, float("-inf"))
    raised = tl.exp2(scores - tl.max(scores, 1)[:, None])
    return raised / tl.sum(raised, 1)[:, None]


@triton.jit
def _forward_block(joined, out, start, length, wide, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    query, key, value = _load_parts(joined, start, length, wide, WIDTH, BLOCK)
    weights = _compute_weights(query, key, length, scale, BLOCK).to(value.dtype)
    address, mask = _compute_addresses(start, length, wide, WIDTH, BLOCK)
    tl.store(out + address, tl.dot(weights, value).to(value.dtype), mask)


@triton.jit
def _backward_block(joined, gradient, out, start, length, wide, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    query, key, value = _load_parts(joined, start, length, wide, WIDTH, BLOCK)
    address, mask = _compute_addresses(start, length, wide, WIDTH, BLOCK)
    output_gradient = tl.load(gradient + address, mask, 0.0)
    weights = _compute_weights(query, key, length, scale, BLOCK)
    address, mask = _compute_addresses(start, length, 3 * wide, WIDTH, BLOCK)
    tl.store(
        out + 2 * wide + address,
        tl.dot(tl.trans(weights.to(output_gradient.dtype)), output_gradient).to(output_gradient.dtype),
        mask,
    )
    weight_gradient = tl.dot(output_gradient, tl.trans(value))
    score_gradient = (weights * (weight_gradient - tl.sum(weights * weight_gradient, 1)[:, None]) * scale).to(
        output_gradient.dtype
    )
    tl.store(out + address, tl.dot(score_gradient, key).to(output_gradient.dtype), mask)
    tl.store(out + wide + address, tl.dot(tl.trans(score_gradient), query).to(output_gradient.dtype), mask)


@triton.jit
def _forward(joined, out, offsets, wide, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    start, length = _load_bounds(offsets)
    if BLOCK > 32 and length <= 32:
        _forward_block(joined, out, start, length, wide, scale, WIDTH, 32)
    elif BLOCK > 64 and length <= 64:
        _forward_block(joined, out, start, length, wide, scale, WIDTH, 64)
    else:
        _forward_block(joined, out, start, length, wide, scale, WIDTH, BLOCK)


@triton.jit
def _backward(joined, gradient, out, offsets, wide, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    start, length = _load_bounds(offsets)
    if BLOCK > 32 and length <= 32:
        _backward_block(joined, gradient, out, start, length, wide, scale, WIDTH, 32)
    elif BLOCK > 64 and length <= 64:
        _backward_block(joined, gradient, out, start, length, wide, scale, WIDTH, 64)
    else:
        _backward_block(joined, gradient, out, start, length, wide, scale, WIDTH, BLOCK)
