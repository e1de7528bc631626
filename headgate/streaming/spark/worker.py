"""What a Python worker of Spark does between two tasks, made short.

After each task Spark's worker collects garbage over everything that it has imported: with Arrow, Kafka's client and
headgate that takes a core for some 50 ms, beside the commit of the batch. Objects that are there after the first task
are there for good, so they are set apart, and later collections pass over them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def as_task(work: Callable[[Iterable[T]], Iterable[R]], items: Iterable[T]) -> Iterator[R]:
    """`work(items)` as a task of Spark, in its worker. The first one sets apart what the worker has imported."""
    yield from work(items)
    if not gc.get_freeze_count():
        # Without this, cycles of the first task would never be freed.
        gc.collect()
        gc.freeze()
