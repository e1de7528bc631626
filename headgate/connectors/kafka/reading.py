"""Offsets and records of topics, see `reader`, and of several ranges. The first call imports Kafka's client.

Code that imports this module therefore does not need `headgate[kafka]`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, closing

import pyarrow as pa

from headgate import parallel
from headgate.connectors.extras import needs
from headgate.connectors.kafka.options import ConsumerConfig

AHEAD = 2
"""Ranges that are being fetched while one is read: the first fetch of a range takes milliseconds. Each has a consumer
of its own."""

FEW_ROWS, FEW_BYTES = 1_000, 256 << 10
"""Up to so many rows a range gets smaller fetches: the usual megabyte would be mostly rows after its end."""


def offsets(
    config: ConsumerConfig, topic: str, *, deadline: float | None = None, is_over: Callable[[], bool] = lambda: False
) -> dict[int, tuple[int, int]]:
    """The offsets [first, end) of every partition; see `reader.offsets`. Raises MissingExtra as well."""
    with needs():
        from headgate.connectors.kafka import reader
    return reader.offsets(config, topic, deadline=reader.DEADLINE if deadline is None else deadline, is_over=is_over)


def read_range(
    config: ConsumerConfig,
    topic: str,
    partition: int,
    start: int,
    until: int,
    *,
    columns: Sequence[str],
    seen: Callable[[list[int]], object] = lambda times: None,
) -> Generator[pa.RecordBatch]:
    """The rows of [start, until) in offset order; see `reader.read_range`. Raises MissingExtra as well."""
    with needs():
        from headgate.connectors.kafka import reader
    return reader.read_range(config, topic, partition, start, until, columns=columns, seen=seen)


def read_ranges(
    config: ConsumerConfig,
    ranges: Iterable[tuple[str, int, int, int]],
    *,
    columns: Sequence[str],
    seen: Callable[[list[int]], object] = lambda times: None,
) -> Generator[pa.RecordBatch]:
    """The rows of several ranges (topic, partition, start, until), one range after the other. Raises as `read_range`.

    Whoever stops early must close it, or drop it: it holds consumers.
    """
    with ExitStack() as begun:

        def begin(place: tuple[str, int, int, int]) -> Generator[pa.RecordBatch]:
            *_, start, until = place
            fitting = config if until - start > FEW_ROWS else config.fetching_at_most(FEW_BYTES)
            return begun.enter_context(closing(read_range(fitting, *place, columns=columns, seen=seen)))

        for batches in parallel.window(begin, ranges, 1 + AHEAD):
            yield from batches
