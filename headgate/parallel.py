"""Threads. Nothing else in the package starts one.

Each runs in a copy of its starter's context: a test's clock and the watcher of steps reach it.
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
"""Calls of a store under way at once: hides its latency."""

AHEAD = 64
"""Results that wait for their turn at most."""

BUDGET = 256 << 20
"""Bytes under way at once. One object that is larger goes alone."""


class Pool(ThreadPoolExecutor):
    """Threads that wait for a store. `name` is what a stack dump shows."""

    def __init__(self, name: str, workers: int = WORKERS) -> None:
        super().__init__(workers, thread_name_prefix=f"headgate-{name}")

    def submit(self, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        return super().submit(copy_context().run, partial(call, *args, **kwargs))


def each(name: str, call: Callable[..., R], *items: Iterable[Any], workers: int = WORKERS) -> list[R]:
    """`list(map(call, *items))`, with many calls at once. Raises the first error in order, after all have ended; with
    one worker at once, and the rest is not called.
    """
    calls = list(zip(*items, strict=True))
    if len(calls) < 2 or workers == 1:
        return [call(*one) for one in calls]
    with Pool(name, min(workers, len(calls))) as pool:
        return list(pool.map(lambda one: call(*one), calls))


def in_order(
    pool: Pool, read: Callable[[T], R], items: Iterable[T], weight: Callable[[T], int] = lambda item: 0
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


def thread(name: str, call: Callable[..., object], *args: Any) -> threading.Thread:
    """A daemon thread, not started yet."""
    return threading.Thread(target=copy_context().run, args=(call, *args), name=f"headgate-{name}", daemon=True)


def timer(seconds: float, call: Callable[[], object]) -> threading.Timer:
    """A thread that calls after so many seconds, unless it is cancelled. Not started yet."""
    return threading.Timer(seconds, copy_context().run, (call,))
