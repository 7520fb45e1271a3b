"""Counts of the disk reads of a search."""

from typing import NamedTuple


class ReadStats(NamedTuple):
    """What ranking candidates by their vectors took.

    rows:  vectors that were scored,
    hits:  of them in memory: in the row cache, or in mapped blocks that were read before.
    reads: reads requested from the system, which may find blocks in the page cache.
    bytes: their bytes.
    """

    rows: int = 0
    hits: int = 0
    reads: int = 0
    bytes: int = 0

    def plus(self, other: "ReadStats") -> "ReadStats":
        """Add counts."""
        return ReadStats(
            self.rows + other.rows, self.hits + other.hits, self.reads + other.reads, self.bytes + other.bytes
        )
