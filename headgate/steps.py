"""Named steps of the protocols. A test that watches them stops, fails or changes something at a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

Watcher: TypeAlias = Callable[[str], object]

_watcher: ContextVar[Watcher | None] = ContextVar("headgate-watcher", default=None)


def step(name: str) -> None:
    """Called by a protocol right before it takes this step. What the watcher itself does is not watched."""
    if (watcher := _watcher.get()) is not None:
        with watching(None):
            watcher(name)


@contextmanager
def watching(watcher: Watcher | None) -> Iterator[None]:
    """Call `watcher` with each step's name, here and in the threads that are started here."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)
