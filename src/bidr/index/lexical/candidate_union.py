"""Candidates of the codes and of the words as one list: each document once."""

from typing import NamedTuple

import numpy as np

from bidr.utils.array_types import Floats, Rows


class CandidateUnion(NamedTuple):
    """Candidates of queries: (queries, n) each; places of -1, at the end, stand for none.

    ranks:       where the codes have the document, from 1; 0: the words alone found it.
    code_scores: for what the words alone found, the score of the last that the codes found: theirs is not above it.
    word_ranks:  where the words have it, from 1; 0: not among those that were asked for.
    added:       what its words add to the score of each.
    """

    places: Rows
    ranks: Rows
    code_scores: Floats
    word_ranks: Rows
    added: Floats


def unite_candidates(code_scores: Floats, codes: Rows, words: Rows) -> CandidateUnion:
    """Both lists of each query, the codes' first; words add nothing yet."""
    count, width = len(codes), codes.shape[1] + words.shape[1]
    places, ranks = np.full((count, width), -1, np.int64), np.zeros((count, width), np.int64)
    scores, word_ranks = np.full((count, width), -np.inf, np.float32), np.zeros((count, width), np.int64)
    for row in range(count):
        there = int(np.count_nonzero(codes[row] >= 0))
        asked = words[row][words[row] >= 0]
        new = np.flatnonzero(~np.isin(asked, codes[row, :there]))
        end = there + len(new)
        places[row, :there], places[row, there:end] = codes[row, :there], asked[new]
        ranks[row, :there] = np.arange(1, there + 1)
        scores[row, :there] = code_scores[row, :there]
        scores[row, there:end] = code_scores[row, there - 1] if there else 0.0
        word_ranks[row, there:end] = new + 1
        _, own, at = np.intersect1d(places[row, :there], asked, assume_unique=True, return_indices=True)
        word_ranks[row, own] = at + 1
    return CandidateUnion(places, ranks, scores, word_ranks, np.zeros((count, width), np.float32))
