"""Many reads at once, their results in order, and never more in memory than a budget."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

WORKERS = 16
"""Reads under way at once: hides a store's latency."""

AHEAD = 64
"""Results that wait for their turn at most."""

BUDGET = 256 << 20
"""Bytes under way at once. One object that is larger goes alone."""


def in_order(
    pool: ThreadPoolExecutor,
    read: Callable[[T], R],
    items: Iterable[T],
    weight: Callable[[T], int] = lambda item: 0,
) -> Iterator[R]:
    """`map` over the pool, with AHEAD calls and BUDGET bytes (by `weight`) submitted at most."""
    waiting: deque[tuple[int, Future[R]]] = deque()
    held = 0
    for item in items:
        size = weight(item)
        while waiting and (len(waiting) >= AHEAD or held + size > BUDGET):
            first, future = waiting.popleft()
            held -= first
            yield future.result()
        waiting.append((size, pool.submit(read, item)))
        held += size
    while waiting:
        yield waiting.popleft()[1].result()
