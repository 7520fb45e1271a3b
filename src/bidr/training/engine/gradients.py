"""Gradients of a step, sharded over processes and cached in parts, with the same result.

The loss is computed on detached vectors, and the gradient of each vector is then backpropagated through the encoder.
So texts can be sharded (every process computes the loss on all vectors and backpropagates its own), and encoded in
parts: first without a graph, then again part by part (gradient caching: https://arxiv.org/abs/2101.06983).
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bidr.models.corpus_encoding import batch_by_length
from bidr.models.trainable_encoder import Encoder
from bidr.tokenization.token_store import TokenArray, Tokens
from bidr.training.engine.distributed import ProcessGroup
from bidr.training.losses.objectives import Objective, PreparedBatch

Positions = npt.NDArray[np.int64]


class StepSeed(NamedTuple):
    """Seed of a step's random numbers: a function of its place in the run, so that none is stored.

    Each rank has its own for the texts it encodes; all ranks share one for the loss.
    """

    seed: int
    epoch: int
    step: int

    def set(self, *more: int) -> None:
        torch.manual_seed(int(np.random.SeedSequence((*self, *more)).generate_state(1, np.uint64)[0]))


def backward(
    objective: Objective,
    prepared: PreparedBatch,
    step_seed: StepSeed,
    group: ProcessGroup,
    tokens_at_once: int | None = None,
) -> dict[str, Tensor]:
    """Backpropagate the loss of the batch into every parameter and return its terms.

    Args:
        tokens_at_once: Tokens, with padding, that are encoded with a graph at once; None: all.
    """
    step_seed.set(1, group.rank)
    bounds = [split_by_tokens(tokens, group.size) for tokens in prepared.texts]
    slices = [slice(*bound[group.rank : group.rank + 2]) for bound in bounds]
    texts = [slice_tokens(tokens, part.start, part.stop) for tokens, part in zip(prepared.texts, slices, strict=True)]
    # One pass for queries and documents: on a GPU small steps are bound by kernel launches.
    encoded = EncodedBatch(objective.encoder, concat_tokens(texts), tokens_at_once)
    parts = torch.split(encoded.vectors, [len(tokens.offsets) - 1 for tokens in texts])
    vectors = [
        group.gather(part, np.diff(bound).tolist()).requires_grad_() for part, bound in zip(parts, bounds, strict=True)
    ]
    step_seed.set(0)
    terms = objective.compute_terms(vectors, prepared.comparison)
    torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
    group.drop_duplicate_gradients(objective.parameters())
    gradients = [torch.zeros_like(vector) if vector.grad is None else vector.grad for vector in vectors]
    encoded.backward(torch.cat([gradient[part] for gradient, part in zip(gradients, slices, strict=True)]))
    group.sum_gradients(objective.parameters())
    return {name: term.detach() for name, term in terms.items()}


class EncodedBatch:
    """Vectors of texts, and backpropagation from their gradients to the encoder's."""

    def __init__(self, encoder: Encoder, tokens: Tokens, tokens_at_once: int | None) -> None:
        self.encoder, self.rows = encoder, TokenArray(tokens)
        self.parts = list(batch_by_length(self.rows.get_lengths(), tokens_at_once))
        self.states: list[tuple[Tensor, Tensor | None]] = []
        if len(self.parts) == 1:
            self.vectors = encoder.encode(tokens)
            return
        self.vectors = torch.empty(len(self.rows), encoder.dim, device=encoder.device)
        with torch.no_grad():
            for positions in self.parts:
                self.states.append(get_random_state(encoder.device))
                self.vectors[self._to_device(positions)] = encoder.encode(self.rows.get_batch(positions))

    def backward(self, gradient: Tensor) -> None:
        """Add to the encoder's gradients; parts are encoded again with the same random numbers."""
        if len(self.parts) == 1:
            torch.autograd.backward(self.vectors, gradient)
            return
        encoder = self.encoder
        for positions, state in zip(self.parts, self.states, strict=True):
            restore_random_state(encoder.device, state)
            vectors = encoder.encode(self.rows.get_batch(positions))
            torch.autograd.backward(vectors, gradient[self._to_device(positions)])

    def _to_device(self, positions: Positions) -> Tensor:
        return torch.from_numpy(positions).to(self.vectors.device, non_blocking=True)


def get_random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Return the state of the random generators that an encoder on this device uses."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def restore_random_state(device: torch.device, state: tuple[Tensor, Tensor | None]) -> None:
    """Restore the state of the random generators."""
    on_host, on_device = state
    torch.set_rng_state(on_host)
    if on_device is not None:
        torch.cuda.set_rng_state(on_device, device)


def split_by_tokens(tokens: Tokens, size: int) -> Positions:
    """Split texts between processes into ranges of about equal token counts; returns the bounds."""
    bounds: Positions = np.searchsorted(tokens.offsets, tokens.offsets[-1] * np.arange(size + 1) / size)
    return bounds


def slice_tokens(tokens: Tokens, first: int, end: int) -> Tokens:
    """Slice a range of texts."""
    offsets = tokens.offsets[first : end + 1]
    return Tokens(tokens.ids[offsets[0] : offsets[-1]], offsets - offsets[0])


def concat_tokens(texts: list[Tokens]) -> Tokens:
    """All texts of several batches, one after another."""
    ends = np.cumsum([0, *(tokens.offsets[-1] for tokens in texts)])
    starts = [tokens.offsets[:-1] + start for tokens, start in zip(texts, ends, strict=False)]
    return Tokens(np.concatenate([tokens.ids for tokens in texts]), np.concatenate([*starts, ends[-1:]]))
