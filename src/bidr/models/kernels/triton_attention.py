"""Attention within texts that lie end to end, for texts short enough that one fits a processor's registers whole.

One program a text and head. Scores are made once on the way there and once more on the way back; nothing but query,
key and value is kept between the two, and a short text costs less than a long one. Written in Triton, which comes with
torch on a GPU.
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
    """Query, key and value side by side in; text i is the rows from offsets[i] to offsets[i + 1]."""
    joined = joined.contiguous()
    found = torch.empty_like(joined[:, 0], memory_format=torch.contiguous_format)
    _launch(_forward, (joined, found), offsets, longest)
    return found


@torch.library.custom_op("bidr::short_attention_backward", mutates_args=())
def _attend_back(joined: Tensor, given: Tensor, offsets: Tensor, longest: int) -> Tensor:
    joined, given = joined.contiguous(), given.contiguous()
    found = torch.empty_like(joined)
    _launch(_backward, (joined, given, found), offsets, longest)
    return found


@attend.register_fake
def _(joined: Tensor, offsets: Tensor, longest: int) -> Tensor:
    return torch.empty_like(joined[:, 0], memory_format=torch.contiguous_format)


@_attend_back.register_fake
def _(joined: Tensor, given: Tensor, offsets: Tensor, longest: int) -> Tensor:
    return torch.empty_like(joined, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    joined, offsets, ctx.longest = inputs
    ctx.save_for_backward(joined, offsets)


def _back(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
    joined, offsets = ctx.saved_tensors
    return _attend_back(joined, given, offsets, ctx.longest), None, None


attend.register_autograd(_back, setup_context=_keep)


def _launch(kernel: Any, parts: tuple[Tensor, ...], offsets: Tensor, longest: int) -> None:
    _, _, heads, width = parts[0].shape
    block = max(16, triton.next_power_of_2(longest))
    kernel[len(offsets) - 1, heads](
        *parts, offsets, heads * width, width**-0.5, WIDTH=width, BLOCK=block, num_warps=WARPS[block]
    )


LOG2E = tl.constexpr(math.log2(math.e))


@triton.jit
def _text(offsets):
    """Where this program's text begins, and how long it is."""
    start = tl.load(offsets + tl.program_id(0)).to(tl.int64)
    return start, (tl.load(offsets + tl.program_id(0) + 1) - start).to(tl.int32)


@triton.jit
def _places(start, length, stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Of this program's head in the text's rows, and which of these there are."""
    rows, columns = tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    return ((start + rows) * stride + tl.program_id(1) * WIDTH)[:, None] + columns[None, :], (rows < length)[:, None]


@triton.jit
def _parts(joined, start, length, wide, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Query, key and value, which stand side by side, each as wide as all heads."""
    at, there = _places(start, length, 3 * wide, WIDTH, BLOCK)
    query, key = tl.load(joined + at, there, 0.0), tl.load(joined + wide + at, there, 0.0)
    return query, key, tl.load(joined + 2 * wide + at, there, 0.0)


@triton.jit
def _shares(query, key, length, scale, BLOCK: tl.constexpr):
    scores = tl.dot(query, tl.trans(key)) * (scale * LOG2E)
    scores = tl.where((tl.arange(0, BLOCK) < length)[None, :], scores, float("-inf"))
    raised = tl.exp2(scores - tl.max(scores, 1)[:, None])
    return raised / tl.sum(raised, 1)[:, None]


@triton.jit
def _forward_block(joined, out, start, length, wide, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    query, key, value = _parts(joined, start, length, wide, WIDTH, BLOCK)
    shares = _shares(query, key, length, scale, BLOCK).to(value.dtype)
    at, there = _places(start, length, wide, WIDTH, BLOCK)
    tl.store(out + at, tl.dot(shares, value).to(value.dtype), there)


@triton.jit
def _backward_block(joined, given, out, start, length, wide, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    query, key, value = _parts(joined, start, length, wide, WIDTH, BLOCK)
    at, there = _places(start, length, wide, WIDTH, BLOCK)
    slope = tl.load(given + at, there, 0.0)
    shares = _shares(query, key, length, scale, BLOCK)
    at, there = _places(start, length, 3 * wide, WIDTH, BLOCK)
    tl.store(out + 2 * wide + at, tl.dot(tl.trans(shares.to(slope.dtype)), slope).to(slope.dtype), there)
    wanted = tl.dot(slope, tl.trans(value))
    steep = (shares * (wanted - tl.sum(shares * wanted, 1)[:, None]) * scale).to(slope.dtype)
    tl.store(out + at, tl.dot(steep, key).to(slope.dtype), there)
    tl.store(out + wide + at, tl.dot(tl.trans(steep), query).to(slope.dtype), there)


@triton.jit
def _forward(joined, out, offsets, wide, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    start, length = _text(offsets)
    if BLOCK > 32 and length <= 32:
        _forward_block(joined, out, start, length, wide, scale, WIDTH, 32)
    elif BLOCK > 64 and length <= 64:
        _forward_block(joined, out, start, length, wide, scale, WIDTH, 64)
    else:
        _forward_block(joined, out, start, length, wide, scale, WIDTH, BLOCK)


@triton.jit
def _backward(joined, given, out, offsets, wide, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    start, length = _text(offsets)
    if BLOCK > 32 and length <= 32:
        _backward_block(joined, given, out, start, length, wide, scale, WIDTH, 32)
    elif BLOCK > 64 and length <= 64:
        _backward_block(joined, given, out, start, length, wide, scale, WIDTH, 64)
    else:
        _backward_block(joined, given, out, start, length, wide, scale, WIDTH, BLOCK)
