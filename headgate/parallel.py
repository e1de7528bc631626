"""Threads. No other module starts one.

Each thread runs in a copy of its starter's context, so that a test's clock and step watcher reach it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

WORKERS = 16
"""Concurrent store calls, to hide latency."""

WIDE = 256
"""The same where each call is one of a thousand, such as the claims of a stream's shards: how many there are decides
how long it takes, and 16 at once would be a minute of round trips."""

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
    with Pool(name, min(workers, len(calls) - 1)) as pool:
        others = [pool.submit(call, *one) for one in calls[1:]]
        first = pool.submit(call, *calls[0]) if len(calls) > workers else _done(call, calls[0])
        return [future.result() for future in (first, *others)]


class Begin(Protocol):
    """Begins a call; what it returns gives the result."""

    def __call__(self, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Callable[[], R]: ...


@contextmanager
def beside(name: str, *, near: bool, workers: int = WORKERS) -> Iterator[Begin]:
    """For calls whose results are needed later: each begins now, in a thread. `near` (a store that answers at once):
    each is made when its result is asked for.
    """
    if near:

        def later(call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Callable[[], R]:
            return partial(call, *args, **kwargs)

        yield later
        return
    with Pool(name, workers) as pool:

        def now(call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Callable[[], R]:
            return pool.submit(call, *args, **kwargs).result

        yield now


def first_of(begin: Begin, items: Iterator[T]) -> Iterator[T]:
    """The items, of which the first is asked for now."""
    first = begin(next, items, None)

    def rest() -> Iterator[T]:
        if (one := first()) is not None:
            yield one
            yield from items

    return rest()


def window(begin: Callable[[T], R], items: Iterable[T], size: int) -> Iterator[R]:
    """`map`, so many items ahead of whoever takes the results."""
    waiting: deque[R] = deque()
    for item in items:
        waiting.append(begin(item))
        if len(waiting) >= size:
            yield waiting.popleft()
    yield from waiting


def _done(call: Callable[..., R], arguments: Iterable[Any]) -> Future[R]:
    """A call that this thread makes by itself: it would only wait."""
    done: Future[R] = Future()
    try:
        done.set_result(call(*arguments))
    except BaseException as error:
        done.set_exception(error)
    return done


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
