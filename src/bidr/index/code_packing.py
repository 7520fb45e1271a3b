"""Pack codes as Faiss does, and check them against their codebooks."""

import numpy as np

from bidr.errors import ConfigError, DataError
from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Codes

ADD_ROWS = 16_384


def pack(codes: Codes, bits: int) -> Codes:
    """Pack codes as Faiss does: 8-bit codes unchanged, two 4-bit codes per byte, the first in the low bits."""
    if bits == 8:
        return np.ascontiguousarray(codes)
    even = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
    return np.ascontiguousarray(even[:, 0::2] | (even[:, 1::2] << 4))


def unpack(packed: Codes, books: int, bits: int) -> Codes:
    """Unpack to one code per byte: (n, M)."""
    if bits == 8:
        return packed
    return np.stack((packed & 15, packed >> 4), axis=2).reshape(len(packed), -1)[:, :books].copy()


def check_codes(codebooks: Codebooks, codes: Codes) -> None:
    """Raise DataError for codes that do not fit the codebooks."""
    if codebooks.words not in (16, 256):
        raise ConfigError(f"codewords per book: given {codebooks.words}, expected 256 (8 bits) or 16 (4 bits)")
    if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] != codebooks.books:
        raise DataError(
            f"codes: given {codes.dtype} of shape {codes.shape}, expected uint8 of (documents, {codebooks.books}); "
            "encode them with the same codebooks"
        )
    if len(codes) == 0:
        raise DataError("codes: given none, expected at least one document")
    for start in range(0, len(codes), ADD_ROWS):
        largest = int(codes[start : start + ADD_ROWS].max())
        if largest >= codebooks.words:
            raise DataError(f"codes: codeword number {largest} given, expected numbers below {codebooks.words}")
