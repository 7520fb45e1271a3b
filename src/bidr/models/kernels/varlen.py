"""Padding-free (varlen) forward pass for BERT-like transformers on a GPU.

A batch of ragged texts becomes one row of tokens; a varlen attention kernel keeps texts apart. Training uses bfloat16
weights and activations (the master weights stay float32), which halves the memory traffic of the many small operations
between matrix products.
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
    """Return whether a SentenceTransformer supports packed texts, and torch has the varlen kernel."""
    if not find_spec("torch.nn.attention.varlen") or len(model) < 2:
        return False
    backbone = getattr(model[0], "model", None)
    kind = getattr(getattr(backbone, "config", None), "model_type", None)
    pooling = model[1]
    has_pooling = type(pooling).__name__ == "Pooling" and getattr(pooling, "pooling_mode", None) in POOLINGS
    if kind not in SUPPORTED_MODELS or not has_pooling or not getattr(pooling, "include_prompt", True):
        return False
    return can_fuse(cast(Any, backbone).encoder.layer)


def encode_packed(model: Any, ids: Tensor, offsets: Tensor, longest: int, *, training: bool) -> Tensor:
    """Encode packed texts on the GPU: text i is ids[offsets[i]:offsets[i + 1]]."""
    backbone, pooling = model[0].model, model[1].pooling_mode
    lengths = offsets.diff()
    owners = torch.repeat_interleave(lengths, output_size=len(ids))
    positions = torch.arange(len(ids), device=ids.device) - offsets[owners]
    inputs: dict[str, Any] = {
        "input_ids": ids[None],
        "position_ids": positions[None] + _get_first_position(backbone),
        "cu_seq_lens_q": offsets.int(),
        "max_length_q": longest,
    }
    with _use_packed_attention(backbone):
        states = _compute_states(backbone, inputs, training)
    vectors = _pool(states, pooling, owners, offsets)
    features = {"sentence_embedding": vectors.float()}
    for module in list(model)[2:]:
        features = module(features)
    return features["sentence_embedding"].float()


def _get_first_position(backbone: Any) -> int:
    """Return the first position id: RoBERTa-like models count from padding_idx + 1."""
    return 0 if backbone.config.model_type == "bert" else int(backbone.embeddings.padding_idx) + 1


def compile_layers(model: Any, steps: int) -> None:
    """Compile layers if there are enough training steps to amortize the compilation."""
    if steps < COMPILED_STEPS or not can_compile_kernels():
        return
    layers = model[0].model.encoder.layer
    replace_dropouts(layers)
    for layer in layers:
        layer.compile(dynamic=True)


def _compute_states(backbone: Any, inputs: dict[str, Any], training: bool) -> Tensor:
    """Compute the states of the last layer, one row per token."""
    if training:
        names, values = zip(*backbone.named_parameters(), strict=True)
        weights = dict(zip(names, _CastToBfloat16.apply(*values), strict=True))  # type: ignore[no-untyped-call]
        weights.update(draw_seeds(backbone, inputs["input_ids"].device))
        out = torch.func.functional_call(backbone, weights, (), inputs)
        return cast(Tensor, out.last_hidden_state[0])
    # Inference is eager: it keeps float32 weights, and compiled code would be recompiled for it.
    half = torch.autocast("cuda", dtype=torch.bfloat16, enabled=inputs["input_ids"].is_cuda)
    with torch.compiler.set_stance("force_eager"), half:
        return cast(Tensor, backbone(**inputs).last_hidden_state[0])


class _CastToBfloat16(torch.autograd.Function):
    """Casts all weights to bfloat16, and their gradients to float32, in a few fused kernels."""

    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(_cast_all(weights, torch.bfloat16))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Cast gradients; unused weights (a pooler, for example) keep None, so that the optimizer skips them."""
        cast_gradients = iter(_cast_all([gradient for gradient in gradients if gradient is not None], torch.float32))
        return tuple(None if gradient is None else next(cast_gradients) for gradient in gradients)


def _cast_all(values: Sequence[Tensor], to: torch.dtype) -> list[Tensor]:
    copies = [torch.empty_like(value, dtype=to) for value in values]
    torch._foreach_copy_(copies, list(values))
    return copies


def _pool(states: Tensor, how: str, owners: Tensor, offsets: Tensor) -> Tensor:
    if how == "cls":
        return states[offsets[:-1]]
    if how == "lasttoken":
        return states[offsets[1:] - 1]
    sums = torch.zeros(len(offsets) - 1, states.shape[1], device=states.device)
    return sums.index_add(0, owners, states.float()) / offsets.diff()[:, None]


@contextlib.contextmanager
def _use_packed_attention(backbone: Any) -> Iterator[None]:
    """Use packed attention within the context; the saved configuration does not change."""
    from transformers import AttentionMaskInterface

    fuse_projections(backbone.encoder.layer)
    AttentionMaskInterface.register(ATTENTION, _skip_mask)
    previous = backbone.config._attn_implementation
    backbone.config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        backbone.config._attn_implementation = previous


def _skip_mask(*_: Any, **__: Any) -> None:
    """Create no mask: offsets keep texts apart."""
