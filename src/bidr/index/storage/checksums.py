"""Checksums of the blocks of files: which files have them beside them, and writing them (`checked` reads by them)."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import numpy as np
import numpy.typing as npt

from bidr.index.storage.manifest import HasFiles
from bidr.index.vectors.npy_header import BLOCK, BinaryWriter
from bidr.index.vectors.row_layout import CHECKSUM_DTYPE, make_checksum_keys

SUFFIX = ".checks"
WHOLE = 1 << 18
"""Bytes up to which a file is compared whole when it is opened, and has no checksums of its blocks."""
# Of the files that stay on disk those of which a search takes parts; columns, of which it takes all, are compared so.
BY_BLOCK = re.compile(
    r"order\.npy|(ids|documents|attributes)\.(blob|offsets\.npy)|ids\.(hashes|rows)\.npy|words\.\w+\.npy"
)

# Those of these that nothing else in the index tells: small ones have the checksums of their blocks in the manifest.
NEEDED = re.compile(r"order\.npy|(ids|documents|attributes)\.(blob|offsets\.npy)")


def checks_of(name: str, size: int) -> dict[str, int]:
    """The file of checksums that a file of this name and size has, with its own size; empty: none."""
    return (
        {name + SUFFIX: CHECKSUM_DTYPE.itemsize * -(-size // BLOCK)}
        if BY_BLOCK.fullmatch(name) and size > WHOLE
        else {}
    )


def with_checks(files: dict[str, int]) -> dict[str, int]:
    """Sizes by name, and those of the checksums."""
    return files | {own: bytes_ for name, size in files.items() for own, bytes_ in checks_of(name, size).items()}


def unchecked(files: HasFiles) -> list[str]:
    """The files that only `verify` compares with what was written: large ones, where the index is older than this."""
    return [name for name, entry in files.files.items() if checks_of(name, entry.size).keys() - files.files.keys()]


@contextmanager
def summed(
    out: BinaryWriter, create: Callable[[], AbstractContextManager[BinaryWriter]], *, described: bool = False
) -> Iterator["SummedFile"]:
    """A file whose blocks are summed up as they are written; `create` opens the one for the sums, if it gets one.

    described: of a file that gets none, sum up its blocks nevertheless.
    """
    with ExitStack() as opened:
        passing = SummedFile(out, lambda: opened.enter_context(create()), described)
        yield passing
        passing.finish()


class SummedFile:
    """A file being written, with the checksums of its blocks.

    blocks: those of a small file, once it is finished (see `FileEntry`).
    """

    def __init__(self, out: BinaryWriter, begin: Callable[[], BinaryWriter], described: bool) -> None:
        self._out, self._begin, self._described = out, begin, described
        self.blocks = ""
        self._waiting: list[bytes] = []
        self._waits = 0
        self._sums: BinaryWriter | None = None

    def write(self, content: bytes | memoryview) -> int:
        self._waiting.append(bytes(content))
        self._waits += len(content)
        if self._waits > WHOLE:
            self._sum(last=False)
        return self._out.write(content)

    def finish(self) -> None:
        if self._sums is not None:
            self._sum(last=True)
        elif self._described and self._waits > BLOCK:  # of one block the checksum of the file says as much
            self.blocks = sum_blocks(b"".join(self._waiting)).astype(">u4").tobytes().hex()

    def _sum(self, *, last: bool) -> None:
        content = b"".join(self._waiting)
        if last:
            content += bytes(-len(content) % BLOCK)
        end = len(content) // BLOCK * BLOCK
        self._waiting, self._waits = [content[end:]], len(content) - end
        if self._sums is None:
            self._sums = self._begin()
        self._sums.write(sum_blocks(content[:end]).tobytes())


def sum_blocks(content: bytes) -> npt.NDArray[np.uint32]:
    """The checksums of blocks, the last of which is filled up with zeros."""
    from bidr.index.vectors.page_cache_io import compute_checksums

    filled = np.frombuffer(content + bytes(-len(content) % BLOCK), dtype="<u8")
    return compute_checksums(filled, np.empty(0, dtype=np.uint8), make_checksum_keys()).astype(CHECKSUM_DTYPE)
