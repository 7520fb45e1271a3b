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

LONGEST = 128
WIDTHS = (16, 32, 64)
WARPS = {16: 1, 32: 1, 64: 2, 128: 4}


def fits(query: Tensor, longest: int) -> bool:
    """Whether texts and heads, (tokens, heads, width), are of a size that this is made for."""
    return longest <= LONGEST and query.shape[-1] in WIDTHS and query.dtype in (torch.bfloat16, torch.float16)


@torch.library.custom_op("bidr::short_attention", mutates_args=())
def attend(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, longest: int) -> Tensor:
    """(tokens, heads, width) each; text i is the rows from offsets[i] to offsets[i + 1]."""
    query, key, value = (part.contiguous() for part in (query, key, value))
    found = torch.empty_like(query)
    _launch(_forward, (query, key, value, found), offsets, longest)
    return found


@torch.library.custom_op("bidr::short_attention_backward", mutates_args=())
def _attend_back(
    query: Tensor, key: Tensor, value: Tensor, given: Tensor, offsets: Tensor, longest: int
) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value, given = (part.contiguous() for part in (query, key, value, given))
    found = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    _launch(_backward, (query, key, value, given, *found), offsets, longest)
    return found


@attend.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, longest: int) -> Tensor:
    return torch.empty_like(query, memory_format=torch.contiguous_format)


@_attend_back.register_fake
def _(query: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    like = [torch.empty_like(query, memory_format=torch.contiguous_format) for _ in range(3)]
    return like[0], like[1], like[2]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *parts, ctx.longest = inputs
    ctx.save_for_backward(*parts)


def _back(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
    query, key, value, offsets = ctx.saved_tensors
    return *_attend_back(query, key, value, given, offsets, ctx.longest), None, None


attend.register_autograd(_back, setup_context=_keep)


def _launch(kernel: Any, parts: tuple[Tensor, ...], offsets: Tensor, longest: int) -> None:
    _, heads, width = parts[0].shape
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
def _shares(query, key, length, scale, BLOCK: tl.constexpr):
    scores = tl.dot(query, tl.trans(key)) * (scale * LOG2E)
    scores = tl.where((tl.arange(0, BLOCK) < length)[None, :], scores, float("-inf"))
    raised = tl.exp2(scores - tl.max(scores, 1)[:, None])
    return raised / tl.sum(raised, 1)[:, None]


@triton.jit
def _forward_block(q, k, v, out, start, length, stride, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    at, there = _places(start, length, stride, WIDTH, BLOCK)
    query, key, value = tl.load(q + at, there, 0.0), tl.load(k + at, there, 0.0), tl.load(v + at, there, 0.0)
    shares = _shares(query, key, length, scale, BLOCK).to(value.dtype)
    tl.store(out + at, tl.dot(shares, value).to(value.dtype), there)


@triton.jit
def _backward_block(q, k, v, do, dq, dk, dv, start, length, stride, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    at, there = _places(start, length, stride, WIDTH, BLOCK)
    query, key, value = tl.load(q + at, there, 0.0), tl.load(k + at, there, 0.0), tl.load(v + at, there, 0.0)
    given = tl.load(do + at, there, 0.0)
    shares = _shares(query, key, length, scale, BLOCK)
    tl.store(dv + at, tl.dot(tl.trans(shares.to(given.dtype)), given).to(given.dtype), there)
    wanted = tl.dot(given, tl.trans(value))
    steep = (shares * (wanted - tl.sum(shares * wanted, 1)[:, None]) * scale).to(given.dtype)
    tl.store(dq + at, tl.dot(steep, key).to(given.dtype), there)
    tl.store(dk + at, tl.dot(tl.trans(steep), query).to(given.dtype), there)


@triton.jit
def _forward(q, k, v, out, offsets, stride, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    start, length = _text(offsets)
    if BLOCK > 32 and length <= 32:
        _forward_block(q, k, v, out, start, length, stride, scale, WIDTH, 32)
    elif BLOCK > 64 and length <= 64:
        _forward_block(q, k, v, out, start, length, stride, scale, WIDTH, 64)
    else:
        _forward_block(q, k, v, out, start, length, stride, scale, WIDTH, BLOCK)


@triton.jit
def _backward(q, k, v, do, dq, dk, dv, offsets, stride, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    start, length = _text(offsets)
    if BLOCK > 32 and length <= 32:
        _backward_block(q, k, v, do, dq, dk, dv, start, length, stride, scale, WIDTH, 32)
    elif BLOCK > 64 and length <= 64:
        _backward_block(q, k, v, do, dq, dk, dv, start, length, stride, scale, WIDTH, 64)
    else:
        _backward_block(q, k, v, do, dq, dk, dv, start, length, stride, scale, WIDTH, BLOCK)
