"""One memory budget for all caches of this process. They hold immutable values that are costly to make.

Promises:
1. All caches together hold at most `cache_bytes()`; the least recently used value is evicted first, whichever cache has
   it. A value larger than the budget is not cached.
2. An object that several values share counts once, and is freed with the last of them.
3. Thread-safe. Two threads that miss the same value may both compute it; one result is kept. A forked process starts
   with empty caches.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Generic, TypeVar

from headgate.errors import InvalidInput
from headgate.sizes import ALLOWED, bytes_of

V = TypeVar("V")

VARIABLE = "HEADGATE_CACHE_BYTES"
"""Environment variable: the budget of commands and of Spark's Python workers."""

MOST = 1 << 30
"""Upper bound of the default; a quarter of the memory may be less."""

_names: list[str] = []


@dataclass(frozen=True)
class CacheUsage:
    """What the caches of this process hold now."""

    limit: int
    nbytes: Mapping[str, int]
    """Bytes per cache. A shared object counts for the cache that had it first."""

    @property
    def total(self) -> int:
        return sum(self.nbytes.values())


def cache_bytes() -> int:
    """The budget in bytes: as set by `set_cache_bytes`, else HEADGATE_CACHE_BYTES, else 1 GiB or a quarter of the
    machine's memory, whichever is less.
    """
    return _budget.limit


def set_cache_bytes(nbytes: int | str) -> None:
    """Limit all caches of this process together to this many bytes (`256 << 20` or `"256m"`); 0 turns them off."""
    if isinstance(nbytes, str):
        try:
            nbytes = bytes_of(nbytes)
        except ValueError:
            raise InvalidInput(f"cache_bytes must be {ALLOWED}, got {nbytes!r}.") from None
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
        raise InvalidInput(f"cache_bytes must be 0 or a number of bytes, got {nbytes!r}.")
    _budget.resize(nbytes)


def cache_usage() -> CacheUsage:
    return _budget.usage()


class Cache(Generic[V]):
    """Values of one kind by key, within the budget of the process."""

    def __init__(
        self,
        name: str,
        size: Callable[[V], int],
        shares: Callable[[V], Iterable[tuple[object, int]]] = lambda value: (),
    ) -> None:
        """`size` counts the bytes of a value alone; `shares` lists objects that other values may share, with their
        sizes.
        """
        self._name = name
        self._size = size
        self._shares = shares
        _names.append(name)

    def get(self, key: Hashable) -> V | None:
        """The cached value, or None."""
        found: V | None = _budget.get((self._name, key))
        return found

    def put(self, key: Hashable, value: V) -> None:
        """Cache the value; evict the least recently used ones."""
        _budget.put((self._name, key), value, [(value, self._size(value)), *self._shares(value)])

    def drop(self, key: Hashable) -> None:
        """Remove the value from the cache."""
        _budget.drop((self._name, key))

    def get_or_make(self, key: Hashable, make: Callable[[], V]) -> V:
        """The cached value, or a new one from `make`, which is then cached."""
        found = self.get(key)
        if found is None:
            found = make()
            self.put(key, found)
        return found


@dataclass(slots=True)
class _Thing:
    """An object in memory, and how many values share it."""

    thing: object
    cache: str
    nbytes: int
    holders: int = 0

    @property
    def is_freed(self) -> bool:
        """True if evicting one value would free the object."""
        return self.holders == 1 and self.nbytes > 0


class _Budget:
    """All values of all caches, the least recently used first."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        # Letting go of a value may end in here again, by the finalizer of what it held.
        self._lock = threading.RLock()
        self._values: OrderedDict[tuple[str, Hashable], tuple[Any, list[_Thing]]] = OrderedDict()
        self._things: dict[int, _Thing] = {}
        self._nbytes: Counter[str] = Counter()
        self._total = 0

    @property
    def limit(self) -> int:
        if self._limit is None:
            self._limit = _default_limit()
        return self._limit

    def resize(self, limit: int) -> None:
        with self._lock:
            self._limit = limit
            self._trim()

    def usage(self) -> CacheUsage:
        with self._lock:
            return CacheUsage(self.limit, {name: self._nbytes[name] for name in sorted(_names)})

    def get(self, key: tuple[str, Hashable]) -> Any:
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: tuple[str, Hashable], value: Any, things: Iterable[tuple[object, int]]) -> None:
        with self._lock:
            self.drop(key)
            apart = {id(thing): (thing, nbytes) for thing, nbytes in things}
            if sum(nbytes for _, nbytes in apart.values()) > self.limit:
                return
            self._values[key] = value, [self._hold(key[0], *one) for one in apart.values()]
            self._trim()

    def drop(self, key: tuple[str, Hashable]) -> None:
        with self._lock:
            _, things = self._values.pop(key, (None, []))
            for one in things:
                one.holders -= 1
                if not one.holders:
                    del self._things[id(one.thing)]
                    self._nbytes[one.cache] -= one.nbytes
                    self._total -= one.nbytes

    def _hold(self, cache: str, thing: object, nbytes: int) -> _Thing:
        one = self._things.get(id(thing))
        if one is None:
            one = self._things[id(thing)] = _Thing(thing, cache, nbytes)
            self._nbytes[cache] += nbytes
            self._total += nbytes
        one.holders += 1
        return one

    def _trim(self) -> None:
        while self._values and self._total > self.limit:
            # To drop a value whose parts all have other holders frees nothing, and loses its name.
            freeing = (key for key, (_, things) in self._values.items() if any(one.is_freed for one in things))
            self.drop(next(freeing, next(iter(self._values))))


def _default_limit() -> int:
    given = os.environ.get(VARIABLE)
    if given is None:
        return min(MOST, machine_memory() // 4)
    try:
        return bytes_of(given)
    except ValueError:
        raise InvalidInput(f"The environment variable {VARIABLE} must be {ALLOWED}, got {given!r}.") from None


def machine_memory(cgroups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of memory that this process may use: the machine's memory, or its cgroup limit if that is lower."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with suppress(OSError):
        for file in _limit_files(cgroups.read_text(), root):
            # A group without a limit says "max", or has no such file.
            with suppress(OSError, ValueError):
                found.append(int(file.read_text()))
    return min(found)


def _limit_files(cgroups: str, root: Path) -> Iterator[Path]:
    """Files with the memory limits of this process's cgroups and their parents."""
    for line in cgroups.splitlines():
        number, controllers, group = line.split(":", 2)
        if number == "0":
            folder, file = root, "memory.max"
        elif "memory" in controllers.split(","):
            folder, file = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        inner = PurePosixPath(group.lstrip("/"))
        for one in (inner, *inner.parents):
            yield folder / one / file


_budget = _Budget()
_before_forks: list[_Budget] = []
"""Never used and never freed: a forked child must not touch the native objects in it."""


def _begin_anew() -> None:
    global _budget
    _before_forks.append(_budget)
    _budget = _Budget(_budget._limit)


os.register_at_fork(after_in_child=_begin_anew)
