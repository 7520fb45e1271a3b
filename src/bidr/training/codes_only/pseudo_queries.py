"""Questions for documents that nobody asked for, made from those that their neighbours were asked.

A labelled question says how questions lie around the document that answers them. What separates the two, laid at a
document near by, is a question that could have been asked for that one: no text is needed, only vectors.
"""

from typing import NamedTuple

import numpy as np

from bidr.quantization.exact_search import search_vectors
from bidr.training.codes_only.distillation import EncodedVectors
from bidr.utils.array_types import Floats, Rows

NEAR = 16


class PseudoQueries(NamedTuple):
    """For every made question: the document it is for, the question it is made from, and that one's own answer."""

    documents: Rows
    questions: Rows
    owners: Rows

    def vectors(self, given: EncodedVectors) -> Floats:
        """The made questions, as long as those they are made from."""
        lent = given.questions[self.questions]
        made: Floats = given.documents[self.documents] + lent - given.documents[self.owners]
        lengths = np.linalg.norm(made, axis=1, keepdims=True)
        made *= np.linalg.norm(lent, axis=1, keepdims=True) / np.maximum(lengths, 1e-12)
        return made


def make_pseudo_queries(
    given: EncodedVectors, labelled: Rows, borrowers: Rows, count: int, random: np.random.Generator, device: str = "cpu"
) -> PseudoQueries:
    """Draw so many documents of the borrowers (of all, where there are none), and for each a question near by.

    labelled: for every question its labelled rows, -1 where there are fewer; at least one question has some.
    """
    lenders = np.flatnonzero((labelled >= 0).any(axis=1))
    owners = labelled[lenders].max(axis=1)
    documents = np.sort(random.choice(borrowers if len(borrowers) else np.arange(len(given.documents)), count))
    unique, which = np.unique(documents, return_inverse=True)
    near = search_vectors(given.documents[unique], given.documents[owners], min(NEAR, len(owners)), device=device).rows
    chosen = near[which, random.integers(near.shape[1], size=count)]
    return PseudoQueries(documents, lenders[chosen], owners[chosen])
