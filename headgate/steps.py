"""Named steps of the protocols. A test can watch them, to stop, fail or change something at a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

Watcher: TypeAlias = Callable[[str], object]

_watcher: ContextVar[Watcher | None] = ContextVar("headgate-watcher", default=None)


def step(name: str) -> None:
    """Called by a protocol right before it takes this step. Steps inside the watcher itself are not watched."""
    if (watcher := _watcher.get()) is not None:
        with watching(None):
            watcher(name)


@contextmanager
def watching(watcher: Watcher | None) -> Iterator[None]:
    """Call `watcher` with each step's name, in the block and in threads started in it."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)
