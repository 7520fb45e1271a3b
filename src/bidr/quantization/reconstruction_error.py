"""How far documents are from what their codes say of them."""

import numpy as np

from bidr.quantization.additive_quantizer import Additive, summed
from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Codes, Floats


def code_errors(codebooks: Codebooks | Additive, vectors: Floats, codes: Codes) -> Floats:
    """Squared distance of each vector to the codewords chosen for it, as a share of its own squared length."""
    if isinstance(codebooks, Codebooks) and codebooks.document is not None:
        codebooks = summed(codebooks)
    if isinstance(codebooks, Additive):
        placed = codebooks.place(vectors)
        chosen = codebooks.chosen_by[np.arange(codes.shape[1]), codes]
        said = chosen.reshape(len(codes), codebooks.groups, -1, chosen.shape[2]).sum(axis=2).reshape(placed.shape)
    else:
        placed = codebooks.rotate(vectors)
        words = codebooks.centroids if codebooks.choosing is None else codebooks.choosing
        said = words[np.arange(codebooks.books), codes].reshape(placed.shape)
    lengths = np.square(placed).sum(axis=1)
    errors: Floats = np.square(placed - said).sum(axis=1) / np.maximum(lengths, np.finfo(np.float32).tiny)
    return errors
