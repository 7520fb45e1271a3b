"""Union of the candidates of the codes and of BM25."""

from typing import NamedTuple

import numpy as np

from bidr.utils.array_types import Floats, Rows


class CandidateUnion(NamedTuple):
    """Candidates of queries as arrays (queries, n), padded at the end with positions of -1.

    ranks:       rank among the candidates of the codes, from 1; 0: found by BM25 alone.
    code_scores: for candidates of BM25 alone the score of the last candidate of the codes, an upper bound of theirs.
    word_ranks:  rank in BM25, from 1; 0: not among its best.
    added:       what BM25 adds to the score.
    """

    positions: Rows
    ranks: Rows
    code_scores: Floats
    word_ranks: Rows
    added: Floats


def unite_candidates(code_scores: Floats, by_codes: Rows, by_terms: Rows) -> CandidateUnion:
    """Unite the candidates of each query, those of the codes first; `added` is 0."""
    count, width = len(by_codes), by_codes.shape[1] + by_terms.shape[1]
    positions, ranks = np.full((count, width), -1, np.int64), np.zeros((count, width), np.int64)
    scores, word_ranks = np.full((count, width), -np.inf, np.float32), np.zeros((count, width), np.int64)
    for row in range(count):
        size = int(np.count_nonzero(by_codes[row] >= 0))
        hits = by_terms[row][by_terms[row] >= 0]
        new = np.flatnonzero(~np.isin(hits, by_codes[row, :size]))
        end = size + len(new)
        positions[row, :size], positions[row, size:end] = by_codes[row, :size], hits[new]
        ranks[row, :size] = np.arange(1, size + 1)
        scores[row, :size] = code_scores[row, :size]
        scores[row, size:end] = code_scores[row, size - 1] if size else 0.0
        word_ranks[row, size:end] = new + 1
        _, shared, at = np.intersect1d(positions[row, :size], hits, assume_unique=True, return_indices=True)
        word_ranks[row, shared] = at + 1
    return CandidateUnion(positions, ranks, scores, word_ranks, np.zeros((count, width), np.float32))
