"""Codes on plain arrays: fit, encode, decode, score, search exactly. Training, mining and index stand on it."""

from bidr.codes.codebooks import Codebooks, check_shape

__all__ = ["Codebooks", "check_shape"]
