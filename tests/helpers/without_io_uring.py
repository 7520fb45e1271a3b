"""Read a vector file where the kernel refuses io_uring, or io_setup too; run by tests/index/vectors/test_reads.py.

python without_io_uring.py VECTORS        print the read mode, the row count, and whether io_uring mode is refused
python without_io_uring.py VECTORS all    also without io_setup
"""

import ctypes
import struct
import sys
from pathlib import Path

import numpy as np

from bidr.errors import ConfigError
from bidr.index.vectors import VectorFile
from bidr.index.vectors.direct_io import IO_SETUP

NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2
LOAD_NUMBER, IS_EQUAL, RETURN = 0x20, 0x15, 0x06
IO_URING_SETUP, REFUSE, ALLOW = 425, 0x00050001, 0x7FFF0000


def forbid(call: int) -> None:
    """Make a system call fail with EPERM, as the default profile of container runtimes does."""
    steps = ((LOAD_NUMBER, 0, 0, 0), (IS_EQUAL, 0, 1, call), (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW))
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(SECCOMP, FILTER, head, 0, 0):
        raise SystemExit("seccomp is not available")


if __name__ == "__main__":
    for number in (IO_URING_SETUP, IO_SETUP)[: len(sys.argv) - 1]:
        forbid(number)
    path = Path(sys.argv[1])
    with VectorFile.open(path) as file:
        print(file.reads, len(file.read(np.arange(file.count))))
    with VectorFile.open(path, reads="io_uring") as file:
        try:
            file.fetch(np.array([0]), np.ones(file.dim, dtype=np.float32))
        except ConfigError:
            print("refused")
