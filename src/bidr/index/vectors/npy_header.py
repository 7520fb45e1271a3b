"""Headers of .npy files: write them before streaming rows, parse them without trusting them."""

import math
import os
import re
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bidr.errors import REBUILD, IndexFolderError
from bidr.utils.files import open_to_read

BLOCK, ALIGN = 4_096, 16
MAGIC = b"\x93NUMPY\x01\x00"
NPY_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': (?P<descr>'[<>|]\w+'|\[[^\]]{1,200}\]), "
    rb"'fortran_order': False, 'shape': \((?P<shape>\d+(, \d+)*,?)\), \} *\n",
    re.DOTALL,
)


class BinaryWriter(Protocol):
    """A writable binary file."""

    def write(self, content: bytes | memoryview) -> int: ...


def write_npy_header(out: BinaryWriter, dtype: np.dtype[Any], shape: tuple[int, ...], align: int = 64) -> None:
    """Write the header of an .npy file of known shape; rows follow at a multiple of `align` bytes."""
    out.write(format_npy_header(dtype, shape, align))


def format_npy_header(dtype: np.dtype[Any], shape: tuple[int, ...], align: int = 64) -> bytes:
    """Format the header of an .npy file, padded to a multiple of `align` bytes."""
    text = f"{{'descr': {_format_dtype(dtype)}, 'fortran_order': False, 'shape': {shape!r}, }}"
    prefix = len(MAGIC) + 2
    length = -(-(prefix + len(text) + 1) // align) * align - prefix
    return MAGIC + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n"


def read_npy_header(path: Path, dtype: np.dtype[Any], dimensions: int) -> tuple[tuple[int, ...], int]:
    """Read shape and data offset of an .npy file; verify type, order and size.

    Not with numpy: its parser evaluates the header as Python and fails in many ways on a damaged one.
    """
    try:
        with open_to_read(path) as opened:
            head, size = opened.read(BLOCK), os.fstat(opened.fileno()).st_size
    except OSError as error:
        raise IndexFolderError(f"{path}: cannot be read ({error.strerror}); {REBUILD}") from error
    match = NPY_HEADER.match(head)
    if match is None or match["descr"].decode("latin-1") != _format_dtype(dtype):
        raise IndexFolderError(f"{path}: not an .npy file of {dtype} rows; it begins with {head[:70]!r}; {REBUILD}")
    shape = tuple(int(number) for number in match["shape"].split(b",") if number.strip())
    if (
        match.end() % ALIGN
        or int.from_bytes(head[len(MAGIC) : len(MAGIC) + 2], "little") + len(MAGIC) + 2 != match.end()
    ):
        raise IndexFolderError(
            f"{path}: the .npy header of {match.end()} bytes states another length or is misaligned; {REBUILD}"
        )
    expected = match.end() + math.prod(shape) * dtype.itemsize
    if len(shape) != dimensions or 0 in shape or size != expected:
        raise IndexFolderError(f"{path}: {size:,} bytes for the shape {shape}, expected {expected:,}; {REBUILD}")
    return shape, match.end()


def _format_dtype(dtype: np.dtype[Any]) -> str:
    return repr(np.lib.format.dtype_to_descr(dtype))
