"""A step's gradients: texts encoded by one process or several, at once or in parts, with the same result.

The vectors are compared apart from the work that made them: `terms` gives a gradient for each vector, and that is
pushed through the encoder. So the texts can be shared out (each process pushes its own vectors' gradients, which are
whole, since every process compares all vectors), and so can be encoded in parts: first without keeping anything for
the gradient, then again, a part at a time (gradient caching: https://arxiv.org/abs/2101.06983).
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bidr.models.corpus_encoding import batch_by_length
from bidr.models.encoder import Encoder
from bidr.tokenization.token_store import TokenArray, Tokens
from bidr.training.engine.distributed import ProcessGroup
from bidr.training.losses.objectives import Objective, PreparedBatch

Places = npt.NDArray[np.int64]


class StepSeed(NamedTuple):
    """Where a step's random numbers begin: a function of its place in the run, so that none has to be stored.

    Each process has its own for the texts it encodes, and all have the same for comparing.
    """

    seed: int
    epoch: int
    step: int

    def begin(self, *more: int) -> None:
        torch.manual_seed(int(np.random.SeedSequence((*self, *more)).generate_state(1, np.uint64)[0]))


def backward(
    objective: Objective,
    prepared: PreparedBatch,
    chance: StepSeed,
    group: ProcessGroup,
    tokens_at_once: int | None = None,
) -> dict[str, Tensor]:
    """Leave the gradient of the batch's whole loss in every parameter; returns the loss's terms.

    tokens_at_once: how many tokens, with padding, are encoded at once where the gradient needs all that lies between;
    None: all.
    """
    chance.begin(1, group.rank)
    bounds = [split_by_tokens(tokens, group.size) for tokens in prepared.texts]
    slices = [slice(*bound[group.rank : group.rank + 2]) for bound in bounds]
    own = [slice_tokens(tokens, part.start, part.stop) for tokens, part in zip(prepared.texts, slices, strict=True)]
    # One pass for questions and documents: on a GPU a step's length is what it takes to start its kernels.
    encoded = EncodedBatch(objective.encoder, concat_tokens(own), tokens_at_once)
    parts = torch.split(encoded.vectors, [len(tokens.offsets) - 1 for tokens in own])
    vectors = [
        group.gather(part, np.diff(bound).tolist()).requires_grad_() for part, bound in zip(parts, bounds, strict=True)
    ]
    chance.begin(0)
    terms = objective.terms(vectors, prepared.given)
    torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
    group.drop_duplicate_gradients(objective.parameters())
    wanted = [torch.zeros_like(whole) if whole.grad is None else whole.grad for whole in vectors]
    encoded.backward(torch.cat([gradient[part] for gradient, part in zip(wanted, slices, strict=True)]))
    group.sum_gradients(objective.parameters())
    return {name: term.detach() for name, term in terms.items()}


class EncodedBatch:
    """Vectors of texts, and the way back from their gradients to the encoder's."""

    def __init__(self, encoder: Encoder, tokens: Tokens, tokens_at_once: int | None) -> None:
        self.encoder, self.rows = encoder, TokenArray(tokens)
        self.parts = list(batch_by_length(self.rows.get_lengths(), tokens_at_once))
        self.states: list[tuple[Tensor, Tensor | None]] = []
        if len(self.parts) == 1:
            self.vectors = encoder.encode(tokens)
            return
        self.vectors = torch.empty(len(self.rows), encoder.dim, device=encoder.device)
        with torch.no_grad():
            for places in self.parts:
                self.states.append(get_random_state(encoder.device))
                self.vectors[self._on_device(places)] = encoder.encode(self.rows.get_batch(places))

    def backward(self, gradient: Tensor) -> None:
        """Add to the encoder's gradients. Parts are encoded again, with the random numbers of the first time."""
        if len(self.parts) == 1:
            torch.autograd.backward(self.vectors, gradient)
            return
        encoder = self.encoder
        for places, state in zip(self.parts, self.states, strict=True):
            restore_random_state(encoder.device, state)
            vectors = encoder.encode(self.rows.get_batch(places))
            torch.autograd.backward(vectors, gradient[self._on_device(places)])

    def _on_device(self, places: Places) -> Tensor:
        return torch.from_numpy(places).to(self.vectors.device, non_blocking=True)


def get_random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Where the generators are that an encoder on this device draws from."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def restore_random_state(device: torch.device, state: tuple[Tensor, Tensor | None]) -> None:
    """Set them back to where they were."""
    on_host, on_device = state
    torch.set_rng_state(on_host)
    if on_device is not None:
        torch.cuda.set_rng_state(on_device, device)


def split_by_tokens(tokens: Tokens, size: int) -> Places:
    """Where each process' texts begin and the last one's end: as many tokens for each as whole texts allow."""
    bounds: Places = np.searchsorted(tokens.offsets, tokens.offsets[-1] * np.arange(size + 1) / size)
    return bounds


def slice_tokens(tokens: Tokens, first: int, end: int) -> Tokens:
    """Some texts in a row."""
    offsets = tokens.offsets[first : end + 1]
    return Tokens(tokens.ids[offsets[0] : offsets[-1]], offsets - offsets[0])


def concat_tokens(texts: list[Tokens]) -> Tokens:
    """All texts of several batches, one after another."""
    ends = np.cumsum([0, *(tokens.offsets[-1] for tokens in texts)])
    starts = [tokens.offsets[:-1] + before for tokens, before in zip(texts, ends, strict=False)]
    return Tokens(np.concatenate([tokens.ids for tokens in texts]), np.concatenate([*starts, ends[-1:]]))
