"""Encode texts without padding, with plain attention in place of the GPU kernel."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn import functional

from bidr.models.huggingface_encoder import TransformerEncoder
from bidr.models.kernels.varlen import encode_packed


@pytest.fixture(autouse=True)
def plain_attention(monkeypatch):
    def attend(query, key, value, starts, starts_k, longest, longest_k):
        assert longest == longest_k == int(starts.diff().max())
        found = []
        for begin, end in pairwise(starts.tolist()):
            heads = (part[begin:end].transpose(0, 1) for part in (query, key, value))
            found.append(functional.scaled_dot_product_attention(*heads).transpose(0, 1))
        return torch.cat(found)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", attend)


def packed(encoder: TransformerEncoder, texts: list[str], training: bool) -> torch.Tensor:
    tokens = encoder.get_tokenizer(32)(texts)
    ids, offsets = torch.from_numpy(tokens.ids), torch.from_numpy(tokens.offsets)
    longest = int(np.diff(tokens.offsets).max())
    return encode_packed(encoder.model, ids, offsets, longest, training=training)
