"""What was asked for last, kept in so much memory and no more."""

import hashlib
import threading
from collections import OrderedDict
from typing import Any

import numpy.typing as npt

# Of an entry beside its array: the key, the array's own object, a place in the dictionary.
OVERHEAD = 512


class LruCache:
    """Arrays by long names: what was asked for longest ago goes first; the last one stays. Any thread may use it."""

    def __init__(self, most: int) -> None:
        self.most, self.bytes = most, 0
        self._kept: OrderedDict[bytes, npt.NDArray[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, name: str) -> npt.NDArray[Any] | None:
        key = _digest(name)
        with self._lock:
            if (found := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
            return found

    def put(self, name: str, array: npt.NDArray[Any]) -> None:
        key = _digest(name)
        with self._lock:
            self._forget(self._kept.pop(key, None))
            self._kept[key] = array
            self.bytes += array.nbytes + OVERHEAD
            while self.bytes > self.most and len(self._kept) > 1:
                self._forget(self._kept.popitem(last=False)[1])

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self.bytes = 0

    def _forget(self, array: npt.NDArray[Any] | None) -> None:
        if array is not None:
            self.bytes -= array.nbytes + OVERHEAD


def _digest(name: str) -> bytes:
    """A filter may be megabytes long, and comes from strangers: nobody may make two that have one digest."""
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=32).digest()
