"""Where the vectors of an index stay in memory: in the page cache if all of them fit, otherwise in a row cache."""

import threading
import time
from functools import partial
from typing import Any
from weakref import WeakSet

from bidr.errors import ConfigError
from bidr.index.vectors.row_cache import RowCache
from bidr.utils.byte_sizes import parse_bytes
from bidr.utils.memory_limit import read_memory_limit

# A page cache that cannot hold the vectors takes twice the CPU time of direct reads, for copies, reclaim and faults
# (docs/reports/larger-than-memory.md). Ids, texts and checksums need some of it too.
FIT_SHARE, RETURN_SHARE = 0.9, 0.8
CACHE_SHARE = 0.5
RECHECK_SECONDS = 10.0
CacheSize = int | str | None


def parse_cache_size(size: CacheSize) -> int | None:
    """Parse the size of a cache: bytes, a text such as 2GiB, 0 for none, None for the default."""
    if size is None or (isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 1 << 60):
        return size
    if isinstance(size, str):
        return 0 if size.strip() == "0" else parse_bytes("cache", size)
    raise ConfigError(f"cache: given {size!r}, expected bytes, or a text such as '2GiB'; 0: no cache")


class VectorMemory:
    """The memory that the vector files of an index share.

    Args:
        cache: Bytes for vectors in memory; 0: none. None: the page cache if it can hold the vectors of all indexes that
            this process has open, otherwise a row cache of CACHE_SHARE of the available memory.
        processes: Processes that divide the row cache, as the workers of a server do.
    """

    def __init__(self, cache: CacheSize = None, processes: int = 1) -> None:
        self.capacity = parse_cache_size(cache)
        # Not a bound method: in a reference cycle the memory would count until the next garbage collection.
        self.cache = RowCache(partial(_choose_capacity, self.capacity, processes))
        self.vector_bytes = 0
        """Size of the vector files that are searched."""
        self._in_page_cache, self._check_at, self._checking = True, 0.0, threading.Lock()
        _memories.add(self)

    def uses_page_cache(self) -> bool:
        """Tell whether vectors stay in the page cache; checked again every RECHECK_SECONDS."""
        if time.monotonic() >= self._check_at and self._checking.acquire(blocking=self._check_at == 0.0):
            try:
                in_page_cache = self._fit_in_page_cache()
                if in_page_cache and not self._in_page_cache:
                    self.cache.clear()
                self._in_page_cache = in_page_cache
                self._check_at = time.monotonic() + RECHECK_SECONDS
            finally:
                self._checking.release()
        return self._in_page_cache

    def describe(self) -> dict[str, Any]:
        """Describe the policy: where vectors stay, and the bytes of the row cache (0: none)."""
        in_page_cache = self.uses_page_cache()
        return {
            "memory": "page cache" if in_page_cache else "row cache",
            "cache_bytes": 0 if in_page_cache else self.cache.choose_capacity(),
        }

    def _fit_in_page_cache(self) -> bool:
        if self.capacity is not None and self.vector_bytes > self.capacity:
            return False
        limit = read_memory_limit()
        if limit is None:
            return True
        memories = list(_memories)
        available = limit.available + sum(memory.cache.ram_bytes for memory in memories)
        share = FIT_SHARE if self._in_page_cache else RETURN_SHARE
        return sum(memory.vector_bytes for memory in memories) <= share * available


def _choose_capacity(capacity: int | None, processes: int) -> int:
    if capacity is None:
        limit = read_memory_limit()
        capacity = int(CACHE_SHARE * limit.available) if limit else 0
    return capacity // processes


_memories: "WeakSet[VectorMemory]" = WeakSet()
