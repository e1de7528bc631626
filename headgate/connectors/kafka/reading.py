"""Offsets and records of topics, see `reader`. The first call imports Kafka's client.

Code that imports this module therefore does not need `headgate[kafka]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from headgate.connectors.extras import needs
from headgate.connectors.kafka.options import ConsumerConfig


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
) -> Iterator[pa.RecordBatch]:
    """The rows of [start, until) in offset order; see `reader.read_range`. Raises MissingExtra as well."""
    with needs():
        from headgate.connectors.kafka import reader
    return reader.read_range(config, topic, partition, start, until, columns=columns, seen=seen)
