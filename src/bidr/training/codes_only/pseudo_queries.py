"""Pseudo-queries: questions for unlabeled documents, made from the questions of their neighbors.

The offset between a labeled question and its document, added to a nearby document, is a plausible question for it. No
text is needed, only vectors.
"""

from typing import NamedTuple

import numpy as np

from bidr.quantization.exact_search import search_vectors
from bidr.training.codes_only.ranking_distillation import EncodedVectors
from bidr.utils.array_types import Floats, Rows

NEIGHBORS = 16


class PseudoQueries(NamedTuple):
    """For each pseudo-query: its document, its source question, and that question's labeled document."""

    documents: Rows
    questions: Rows
    owners: Rows

    def make_vectors(self, vectors: EncodedVectors) -> Floats:
        """Make the vectors, with the lengths of their source questions."""
        source = vectors.questions[self.questions]
        pseudo_queries: Floats = vectors.documents[self.documents] + source - vectors.documents[self.owners]
        lengths = np.linalg.norm(pseudo_queries, axis=1, keepdims=True)
        pseudo_queries *= np.linalg.norm(source, axis=1, keepdims=True) / np.maximum(lengths, 1e-12)
        return pseudo_queries


def make_pseudo_queries(
    vectors: EncodedVectors,
    labelled: Rows,
    borrowers: Rows,
    count: int,
    random: np.random.Generator,
    device: str = "cpu",
) -> PseudoQueries:
    """Draw documents of the borrowers (of all, if there are none) and a nearby question for each.

    labelled: Labeled rows of each question, padded with -1; at least one question has one.
    """
    lenders = np.flatnonzero((labelled >= 0).any(axis=1))
    owners = labelled[lenders].max(axis=1)
    documents = np.sort(random.choice(borrowers if len(borrowers) else np.arange(len(vectors.documents)), count))
    unique, which = np.unique(documents, return_inverse=True)
    neighbors = search_vectors(
        vectors.documents[unique], vectors.documents[owners], min(NEIGHBORS, len(owners)), device=device
    ).rows
    chosen = neighbors[which, random.integers(neighbors.shape[1], size=count)]
    return PseudoQueries(documents, lenders[chosen], owners[chosen])
