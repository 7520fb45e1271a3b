"""Lists under a filter: how far is looked for documents that it allows.

Where blocks have means, the nearest blocks that hold an allowed document are scanned; elsewhere lists. Both are more
than without a filter, as what a filter leaves is further from the query.
"""

from typing import TYPE_CHECKING

import numpy as np

from bidr.index.engines.block_centroids import BlockBudget, BlockCentroids, BlockCounts
from bidr.index.engines.code_store import FEW_ALLOWED_SHARE
from bidr.index.engines.pshufb import BLOCK
from bidr.index.types import Words
from bidr.utils.array_types import Floats, Rows

if TYPE_CHECKING:
    from bidr.index.engines.ivf import IvfEngine

# Under a filter that leaves half or less so many times as many blocks are looked into, and lists: twice as many blocks
# find .992 of a scan's top 100 at 50 and 10 % by chance or with the query, as many .977 (docs/engines.md).
FILTERED_BLOCKS_FACTOR, FILTERED_LISTS_FACTOR = 2.0, 1.5
# Where the nearest blocks or lists hold less than this of the allowed documents that chance would put there, the filter
# goes against the query: what it allows is spread over many of them, of which scanning all takes hardly longer than
# looking into those that it takes. With .5 lists found .989 of the exact top 100 where half of the topics were allowed,
# the ones furthest from the query, with .65 to .85 .995 (30,000 documents, 60 questions).
MIN_CHANCE_SHARE = 0.75
# Looking for lists takes as long as scanning so many documents; and of 4-bit codes lists end within blocks.
MIN_SAVED_ROWS, MIN_SAVED_ROWS_8_BIT, PARTIAL_BLOCKS = 120_000, 20_000, 1.3


class FilteredSearch:
    """One filter, for all queries that it is asked with. visits: lists that would be visited without it."""

    def __init__(self, lists: "IvfEngine", words: Words, k: int, visits: int) -> None:
        self.lists, self.words, self.k, self.visits = lists, words, k, visits
        self.held = np.bitwise_count(words)
        self.there = int(self.held.sum(dtype=np.int64))
        self.share = self.there / lists.count
        self._all = np.zeros(1, dtype=np.int64), np.full(1, lists.count, dtype=np.int64)

    def search(self, query: Floats, table: Floats) -> tuple[Floats, Rows]:
        """As `Lists.search`, for one query."""
        if self.lists.means is not None:
            return self._by_blocks(self.lists.means, query, table)
        near = self._lists(query)
        if near is None:
            return self._scan(table, self._all, self.share)
        return self._scan(table, (self.lists.offsets[near], self.lists.offsets[near + 1]), self.share)

    def _by_blocks(self, means: BlockCentroids, query: Floats, table: Floats) -> tuple[Floats, Rows]:
        filled = int(np.count_nonzero(self.held))
        wanted = self._wanted(means.count, filled)
        if filled <= wanted.more:
            return self._scan(table, self._all, self.share)
        within = self.lists.within(query, round(self.visits * FILTERED_BLOCKS_FACTOR), wanted.more)
        blocks = means.nearest_held(query, self.held, wanted, within)
        if within is not None and (
            len(blocks) < wanted.more or self.held[blocks].sum(dtype=np.int64) < wanted.documents
        ):
            blocks = means.nearest_held(query, self.held, wanted)
        if not len(blocks):
            return self._scan(table, self._all, self.share)
        starts = BLOCK * blocks
        ranges = starts, np.minimum(starts + BLOCK, self.lists.count)
        return self._scan(table, ranges, self.held[blocks].mean() / BLOCK)

    def _wanted(self, blocks: int, filled: int) -> BlockBudget:
        """How many blocks are looked into. Where each holds one allowed document or little more, what is near stands in
        fewer of them."""
        usual = max(self.visits / self.lists.lists * blocks, self.k / BLOCK + 2)
        times = min(FILTERED_BLOCKS_FACTOR, 3 - 2 * self.share)
        more = 1 + (times - 1) * min(1, self.there / max(filled, 1) - 1)
        least, documents = MIN_CHANCE_SHARE * self.share, min(self.k, self.there)
        return BlockBudget(round(usual), round(more * usual), documents, least)

    def _lists(self, query: Floats) -> Rows | None:
        """The lists that are visited; None: scanning everything is as quick, or the filter goes against the query."""
        lists, visits = self.lists, min(FILTERED_LISTS_FACTOR, 3 - 2 * self.share) * self.visits
        part = visits / lists.lists / max(self.share, 1e-9) ** 0.5
        left = (1 - PARTIAL_BLOCKS * part if lists.store.blocked else self.share * (1 - part)) * lists.count
        if left < (MIN_SAVED_ROWS if lists.store.blocked else MIN_SAVED_ROWS_8_BIT):
            return None
        sizes, goal = count_bits_in_ranges(self.words, self.held, lists.offsets), max(self.k, round(part * self.there))
        near = lists.near(query, min(round(visits), lists.lists), sizes, goal, MIN_CHANCE_SHARE * self.share)
        return None if sizes[near].sum() == self.there else near

    def _scan(self, table: Floats, ranges: tuple[Rows, Rows], share: float) -> tuple[Floats, Rows]:
        """The best within ranges. share: how many are allowed of what stands in them, or in their blocks that count."""
        scan = self.lists.store.scan_few if share < FEW_ALLOWED_SHARE else self.lists.store.scan
        return scan(table, *ranges, self.k, self.words)


def count_bits_in_ranges(words: Words, held: BlockCounts, offsets: Rows) -> Rows:
    """How many bits are set in each range of rows; held: in each word."""
    before = np.zeros(len(words) + 1, dtype=np.int64)
    np.cumsum(held, out=before[1:])
    place = offsets >> 5
    beneath = (np.uint32(1) << (offsets & 31).astype(np.uint32)) - np.uint32(1)
    there = words[np.minimum(place, len(words) - 1)] & beneath  # the last offset may be a word too far, with no bits
    found: Rows = np.diff(before[place] + np.bitwise_count(there))
    return found
