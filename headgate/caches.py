"""Values that are costly to make and never change, kept by identity up to a number of bytes; least used go first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class ByteCache(Generic[V]):
    """Thread-safe. Two threads that miss the same value may both make it; one of the two is kept."""

    def __init__(self, limit: int, size: Callable[[V], int]) -> None:
        self._limit = limit
        self._size = size
        self._lock = threading.Lock()
        self._held: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._nbytes = 0

    def get(self, key: Hashable) -> V | None:
        """The value, None where it is not held."""
        with self._lock:
            found = self._held.get(key)
            if found is None:
                return None
            self._held.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: V) -> None:
        """Hold it, and let go of others; the newest is held even where it alone is above the limit."""
        size = self._size(value)
        with self._lock:
            self._drop(key)
            self._held[key] = value, size
            self._nbytes += size
            while self._nbytes > self._limit and len(self._held) > 1:
                self._drop(next(iter(self._held)))

    def get_or_make(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value that is held, or a new one."""
        found = self.get(key)
        if found is None:
            found = make()
            self.put(key, found)
        return found

    def __len__(self) -> int:
        with self._lock:
            return len(self._held)

    def _drop(self, key: Hashable) -> None:
        _, size = self._held.pop(key, (None, 0))
        self._nbytes -= size
