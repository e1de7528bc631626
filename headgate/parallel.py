"""Threads. No other module starts one.

Each thread runs in a copy of its starter's context, so that a test's clock and step watcher reach it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

WORKERS = 16
"""Concurrent store calls, to hide latency."""

AHEAD = 64
"""Maximum results that wait for their turn."""

BUDGET = 256 << 20
"""Maximum bytes in flight. A larger object is read alone."""


class Pool(ThreadPoolExecutor):
    """Threads for store calls. A stack dump shows `name`."""

    def __init__(self, name: str, workers: int = WORKERS) -> None:
        super().__init__(workers, thread_name_prefix=f"headgate-{name}")

    def submit(self, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        return super().submit(copy_context().run, partial(call, *args, **kwargs))


def each(name: str, call: Callable[..., R], *items: Iterable[Any], workers: int = WORKERS) -> list[R]:
    """`list(map(call, *items))`, run concurrently. Raises the first error in order after all calls have ended; with one
    worker it raises at once, without the remaining calls.
    """
    calls = list(zip(*items, strict=True))
    if len(calls) < 2 or workers == 1:
        return [call(*one) for one in calls]
    with Pool(name, min(workers, len(calls))) as pool:
        return list(pool.map(lambda one: call(*one), calls))


def in_order(
    pool: Pool, read: Callable[[T], R], items: Iterable[T], weight: Callable[[T], int] = lambda item: 0
) -> Iterator[R]:
    """`map` over the pool, with at most AHEAD calls and BUDGET bytes (by `weight`) in flight."""
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


def thread(name: str, call: Callable[..., object], *args: Any) -> threading.Thread:
    """A daemon thread, not started yet."""
    return threading.Thread(target=copy_context().run, args=(call, *args), name=f"headgate-{name}", daemon=True)


def timer(seconds: float, call: Callable[[], object]) -> threading.Timer:
    """A daemon thread that makes the call after this many seconds unless cancelled. Not started yet."""
    return threading.Timer(seconds, copy_context().run, (call,))
