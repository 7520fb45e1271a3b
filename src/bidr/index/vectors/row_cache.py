"""Set-associative cache of rows that were read with O_DIRECT, in RAM of a fixed size, shared by threads.

Rows, not blocks: a block holds rows that no query asked for. A full set replaces a row only by one that was read twice
within a while (an admission filter, as in S3-FIFO), and then by CLOCK, so that rows read once do not evict hot ones.
"""

import ctypes
import mmap
import os
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
from numba import types

from bidr.utils.jit import njit_cached

Array = npt.NDArray[Any]

WAYS = 16  # a set's keys fill two cache lines
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
LOCKS, LOCK_BYTES = 256, 64  # pthread_mutex_t takes 40 bytes on Linux, 64 on macOS
MAX_FREQUENCY = 3
EMPTY = np.int64(-1)
FILE_SHIFT = 40  # keys: number of the file above, row below
MIX = np.uint64(0x9E3779B97F4A7C15)
METADATA_BYTES = 8 + 4 + 1  # of a row: key, fingerprint, frequency

_lock = types.ExternalFunction("pthread_mutex_lock", types.int32(types.intp))
_unlock = types.ExternalFunction("pthread_mutex_unlock", types.int32(types.intp))


class CacheMemory(NamedTuple):
    """A cache as arrays for kernels; of no sets: no cache."""

    values: Array  # uint8 (sets * WAYS * row bytes)
    stored: Array  # the same memory with the dtype of the file's values, read-only
    keys: Array  # int64 (sets, WAYS)
    frequencies: Array  # uint8 (sets, WAYS)
    fingerprints: Array  # uint32 (sets, WAYS): rows that were read once and not admitted
    hands: Array  # uint8 (sets, 2): CLOCK hand, oldest fingerprint
    locks: Array  # uint8 (LOCKS, LOCK_BYTES)


class RowCache:
    """Rows of the files of an index; takes its memory when a row is first read past the page cache.

    Args:
        choose_capacity: Returns the maximum bytes, those for finding rows included.
    """

    def __init__(self, choose_capacity: Callable[[], int]) -> None:
        self.choose_capacity = choose_capacity
        self._files, self._row_bytes, self._dtype = 0, 0, np.dtype("u1")
        self._memory: CacheMemory | None = None
        self._creation = threading.Lock()
        _caches.add(self)

    def add_file(self) -> int:
        """Return a number for a file, under which its rows are stored."""
        self._files += 1
        return self._files - 1

    def get_memory(self, row_bytes: int, dtype: Any) -> CacheMemory:
        """Return the arrays of the cache for rows of this kind; no sets if other rows came first."""
        memory = self._memory
        if memory is None:
            with self._creation:
                memory = self._memory
                if memory is None:
                    self._row_bytes, self._dtype = row_bytes, np.dtype(dtype)
                    memory = self._memory = _allocate(self.choose_capacity(), row_bytes, self._dtype)
        return memory if (row_bytes, dtype) == (self._row_bytes, self._dtype) else get_empty_cache(np.dtype(dtype))

    @property
    def ram_bytes(self) -> int:
        """Bytes that the cache takes now."""
        memory = self._memory
        return sum(array.nbytes for array in memory) - memory.stored.nbytes if memory and len(memory.keys) else 0

    def clear(self) -> None:
        """Give the memory back; readers that use it keep it until they are done.

        A forked child starts anew, as its parent may have been writing a row at that moment.
        """
        self._memory, self._creation = None, threading.Lock()


def _allocate(capacity: int, row_bytes: int, dtype: np.dtype[Any]) -> CacheMemory:
    sets = max(capacity - LOCKS * LOCK_BYTES, 0) // (WAYS * (row_bytes + METADATA_BYTES) + 2)
    # A map of its own: pages that hold no row yet take no RAM.
    values = np.frombuffer(mmap.mmap(-1, max(sets * WAYS * row_bytes, mmap.PAGESIZE), flags=PRIVATE), dtype=np.uint8)
    values = values[: sets * WAYS * row_bytes]
    stored = values.view(dtype)
    stored.flags.writeable = False  # like mapped files, so that kernels are compiled for one type only
    return CacheMemory(
        values,
        stored,
        np.full((sets, WAYS), EMPTY),
        np.zeros((sets, WAYS), dtype=np.uint8),
        np.zeros((sets, WAYS), dtype=np.uint32),
        np.zeros((sets, 2), dtype=np.uint8),
        _make_locks(),
    )


def _make_locks() -> Array:
    locks = np.zeros((LOCKS, LOCK_BYTES), dtype=np.uint8)
    libc = ctypes.CDLL(None)
    for lock in locks:
        libc.pthread_mutex_init(ctypes.c_void_p(lock.ctypes.data), None)
    return locks


@cache
def get_empty_cache(dtype: np.dtype[Any]) -> CacheMemory:
    """Return a cache of no rows."""
    return _allocate(0, dtype.itemsize, dtype)


_caches: "WeakSet[RowCache]" = WeakSet()


def _clear_in_child() -> None:
    for rows in list(_caches):
        rows.clear()


os.register_at_fork(after_in_child=_clear_in_child)


@njit_cached()
def hash_row(file: Any, row: Any) -> Any:
    """Return the key of a row and its hash."""
    key = np.int64((np.int64(file) << FILE_SHIFT) | np.int64(row))
    hashed = np.uint64(key) * MIX
    return key, hashed ^ (hashed >> np.uint64(29))


@njit_cached()
def lock_set(memory: CacheMemory, number: Any) -> Any:
    """Lock a set; returns the number of the lock."""
    lock = np.int64(number) % LOCKS
    _lock(memory.locks.ctypes.data + lock * LOCK_BYTES)
    return lock


@njit_cached()
def unlock_set(memory: CacheMemory, lock: Any) -> None:
    """Release a lock of `lock_set`."""
    _unlock(memory.locks.ctypes.data + lock * LOCK_BYTES)


@njit_cached()
def get_set(memory: CacheMemory, hashed: Any) -> Any:
    """Return the set of a row."""
    return np.int64((hashed >> np.uint64(32)) * np.uint64(len(memory.keys)) >> np.uint64(32))


@njit_cached()
def find_row(memory: CacheMemory, number: Any, key: Any) -> Any:
    """Return the slot of a row in its set, which must be locked, and count the use; -1: not there."""
    for way in range(WAYS):
        if memory.keys[number, way] == key:
            memory.frequencies[number, way] = min(memory.frequencies[number, way] + 1, MAX_FREQUENCY)
            return number * WAYS + way
    return -1


@njit_cached()
def insert_row(memory: CacheMemory, key: Any, hashed: Any, source: Array, start: Any, row_bytes: Any) -> None:
    """Store a row that was read from disk, if there is room or it was read before."""
    number = get_set(memory, hashed)
    lock = lock_set(memory, number)
    way = _choose_way(memory, number, key, np.uint32(hashed) | np.uint32(1))
    if way >= 0:
        memory.keys[number, way], memory.frequencies[number, way] = key, 0
        at = (number * WAYS + way) * row_bytes
        for place in range(row_bytes):
            memory.values[at + place] = source[start + place]
    unlock_set(memory, lock)


@njit_cached()
def _choose_way(memory: CacheMemory, number: Any, key: Any, fingerprint: Any) -> Any:
    """Choose the way that a row is stored in; -1: not to be stored."""
    empty = -1
    for way in range(WAYS):
        if memory.keys[number, way] == key:
            return -1  # another thread was faster
        if memory.keys[number, way] == EMPTY and empty < 0:
            empty = way
    if empty >= 0:
        return empty
    for way in range(WAYS):
        if memory.fingerprints[number, way] == fingerprint:
            memory.fingerprints[number, way] = np.uint32(0)
            break
    else:
        oldest = memory.hands[number, 1]
        memory.fingerprints[number, oldest] = fingerprint
        memory.hands[number, 1] = (oldest + 1) % WAYS
        return -1
    hand = memory.hands[number, 0]
    while memory.frequencies[number, hand]:
        memory.frequencies[number, hand] -= np.uint8(1)
        hand = (hand + 1) % WAYS
    memory.hands[number, 0] = (hand + 1) % WAYS
    return np.int64(hand)
