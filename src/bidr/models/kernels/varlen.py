"""Texts end to end through a transformer, without padding: for BERT and its kin on a GPU.

A batch of ragged texts becomes one row of tokens; attention stays within each text by a kernel that knows where texts
begin. Weights and activations are bfloat16 while training (the weights that learn stay float32), which halves what the
many small operations between the matrix products have to move.
"""

import contextlib
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor

from bidr.models.kernels.fused_qkv import can_compile_kernels, can_fuse, fuse_projections
from bidr.models.kernels.hash_dropout import draw_seeds, replace_dropouts

ATTENTION = "bidr_packed"
POOLINGS = ("mean", "cls", "lasttoken")
SUPPORTED_MODELS = ("bert", "roberta", "xlm-roberta", "camembert")
COMPILED_STEPS = 500


def can_pack(model: Any) -> bool:
    """Whether a SentenceTransformer is of a kind that can read packed texts, and torch has the kernel for it."""
    if not find_spec("torch.nn.attention.varlen") or len(model) < 2:
        return False
    backbone = getattr(model[0], "model", None)
    kind = getattr(getattr(backbone, "config", None), "model_type", None)
    pooling = model[1]
    known = type(pooling).__name__ == "Pooling" and getattr(pooling, "pooling_mode", None) in POOLINGS
    if kind not in SUPPORTED_MODELS or not known or not getattr(pooling, "include_prompt", True):
        return False
    return can_fuse(cast(Any, backbone).encoder.layer)


def encode_packed(model: Any, ids: Tensor, offsets: Tensor, longest: int, *, training: bool) -> Tensor:
    """Vectors of texts that lie end to end: text i is ids[offsets[i]:offsets[i + 1]], on the GPU."""
    backbone, pooling = model[0].model, model[1].pooling_mode
    lengths = offsets.diff()
    owners = torch.repeat_interleave(lengths, output_size=len(ids))
    positions = torch.arange(len(ids), device=ids.device) - offsets[owners]
    given: dict[str, Any] = {
        "input_ids": ids[None],
        "position_ids": positions[None] + _first_position(backbone),
        "cu_seq_lens_q": offsets.int(),
        "max_length_q": longest,
    }
    with _attention(backbone):
        states = _states(backbone, given, training)
    vectors = _pool(states, pooling, owners, offsets)
    features = {"sentence_embedding": vectors.float()}
    for module in list(model)[2:]:
        features = module(features)
    return features["sentence_embedding"].float()


def _first_position(backbone: Any) -> int:
    """RoBERTa and its kin count from behind the padding token."""
    return 0 if backbone.config.model_type == "bert" else int(backbone.embeddings.padding_idx) + 1


def compile_layers(model: Any, steps: int) -> None:
    """Fuse what lies between a layer's matrix products, where there will be steps enough to earn the time back."""
    if steps < COMPILED_STEPS or not can_compile_kernels():
        return
    layers = model[0].model.encoder.layer
    replace_dropouts(layers)
    for layer in layers:
        layer.compile(dynamic=True)


def _states(backbone: Any, given: dict[str, Any], training: bool) -> Tensor:
    """The last layer's states, a row a token."""
    if training:
        names, values = zip(*backbone.named_parameters(), strict=True)
        weights = dict(zip(names, _Halved.apply(*values), strict=True))  # type: ignore[no-untyped-call]
        weights.update(draw_seeds(backbone, given["input_ids"].device))
        out = torch.func.functional_call(backbone, weights, (), given)
        return cast(Tensor, out.last_hidden_state[0])
    # What is indexed should be as exact as it can be, and compiled code would be made again for it.
    half = torch.autocast("cuda", dtype=torch.bfloat16, enabled=given["input_ids"].is_cuda)
    with torch.compiler.set_stance("force_eager"), half:
        return cast(Tensor, backbone(**given).last_hidden_state[0])


class _Halved(torch.autograd.Function):
    """Weights as bfloat16 and their gradients as float32, all of them by a few kernels instead of one each."""

    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(_converted(weights, torch.bfloat16))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """What was not used (a pooler, say) has none: the optimizer must leave it alone."""
        found = iter(_converted([each for each in gradients if each is not None], torch.float32))
        return tuple(None if each is None else next(found) for each in gradients)


def _converted(values: Sequence[Tensor], to: torch.dtype) -> list[Tensor]:
    found = [torch.empty_like(value, dtype=to) for value in values]
    torch._foreach_copy_(found, list(values))
    return found


def _pool(states: Tensor, how: str, owners: Tensor, offsets: Tensor) -> Tensor:
    if how == "cls":
        return states[offsets[:-1]]
    if how == "lasttoken":
        return states[offsets[1:] - 1]
    sums = torch.zeros(len(offsets) - 1, states.shape[1], device=states.device)
    return sums.index_add(0, owners, states.float()) / offsets.diff()[:, None]


@contextlib.contextmanager
def _attention(backbone: Any) -> Iterator[None]:
    """Packed texts for this call; what is saved of the model does not change."""
    from transformers import AttentionMaskInterface

    fuse_projections(backbone.encoder.layer)
    AttentionMaskInterface.register(ATTENTION, _no_mask)
    before = backbone.config._attn_implementation
    backbone.config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        backbone.config._attn_implementation = before


def _no_mask(*_: Any, **__: Any) -> None:
    """Texts are kept apart by their offsets."""
