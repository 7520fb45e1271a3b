"""Memory-bounded LRU cache of arrays."""

import hashlib
import threading
from collections import OrderedDict
from typing import Any

import numpy.typing as npt

# Bytes of an entry beside the data of its array: key, array object, dictionary entry.
OVERHEAD = 512


class LruCache:
    """Least-recently-used cache of arrays by string; thread-safe. The last entry stays, however large it is."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.bytes = max_bytes, 0
        self._entries: OrderedDict[bytes, npt.NDArray[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str) -> npt.NDArray[Any] | None:
        key = _hash_key(name)
        with self._lock:
            if (array := self._entries.get(key)) is not None:
                self._entries.move_to_end(key)
            return array

    def put(self, name: str, array: npt.NDArray[Any]) -> None:
        key = _hash_key(name)
        with self._lock:
            self._release(self._entries.pop(key, None))
            self._entries[key] = array
            self.bytes += array.nbytes + OVERHEAD
            while self.bytes > self.max_bytes and len(self._entries) > 1:
                self._release(self._entries.popitem(last=False)[1])

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self.bytes = 0

    def _release(self, array: npt.NDArray[Any] | None) -> None:
        if array is not None:
            self.bytes -= array.nbytes + OVERHEAD


def _hash_key(name: str) -> bytes:
    """Cryptographic, since a filter may be megabytes long and comes from untrusted clients: no crafted collisions."""
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=32).digest()
