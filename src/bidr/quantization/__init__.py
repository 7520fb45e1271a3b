"""Codes on plain arrays: fit, encode, decode, score, search exactly. Training, mining and index stand on it."""

from bidr.quantization.codebooks import Codebooks, check_shape
from bidr.quantization.codeword_usage import Usage, usage

__all__ = ["Codebooks", "Usage", "check_shape", "usage"]
