"""Which shards a batch may write to, and how its ranges are split over tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from headgate.errors import InvalidInput
from headgate.shards.sharding import ByPartition, Sharding
from headgate.shards.wal.entry import SourceRange

Ranges: TypeAlias = tuple[SourceRange, ...]

ROWS_PER_TASK = 10_000
"""Rows that justify one more task: about what a core decodes and writes in 50 ms."""


def shards_of(sharding: Sharding, ranges: Iterable[SourceRange]) -> dict[str, Ranges]:
    """The shards that rows of these ranges may go to, with the ranges that feed each."""
    full = [part for part in ranges if part.until > part.start]
    return shards_of_made_rows(sharding, full) if full else {}


def shards_of_made_rows(sharding: Sharding, ranges: Iterable[SourceRange]) -> dict[str, Ranges]:
    """The same for rows that Spark computed. A closing window or an expiring state yields rows of partitions that this
    batch does not read, even in a batch that reads nothing.
    """
    whole = tuple(ranges)
    if not isinstance(sharding, ByPartition):
        return dict.fromkeys(sharding.known_names(), whole)
    shards: dict[str, list[SourceRange]] = {}
    for part in whole:
        shards.setdefault(sharding.shard_name(part.topic, part.partition), []).append(part)
    return {name: tuple(parts) for name, parts in shards.items()}


def task_count(rows: int, cores: int, groups: int) -> int:
    """About one task per core; fewer if the batch is small; never more than `groups`."""
    return max(1, min(groups, cores, -(-rows // ROWS_PER_TASK)))


def balance(groups: Mapping[str, Ranges], tasks: int) -> tuple[Ranges, ...]:
    """Spread whole groups over tasks: the largest group first, to the task with the least load."""
    loads = [0] * tasks
    shares: list[list[SourceRange]] = [[] for _ in range(tasks)]
    for parts in sorted(groups.values(), key=size, reverse=True):
        least = loads.index(min(loads))
        loads[least] += size(parts)
        shares[least].extend(parts)
    return tuple(tuple(share) for share in shares if share)


def size(ranges: Iterable[SourceRange]) -> int:
    """Number of offsets in the ranges. This is the number of rows if the topic has no gaps."""
    return sum(part.until - part.start for part in ranges)


def check_routing(
    sharding: Sharding, keyed: bool, known: Iterable[tuple[str, int]], now: Iterable[tuple[str, int]]
) -> None:
    """Check R17: if a topic gets new partitions, keys move to other partitions and so to other shards of a keyed table.

    Raises InvalidInput that names the new partitions.
    """
    if not keyed or not isinstance(sharding, ByPartition):
        return
    before = set(known)
    topics = {topic for topic, _ in before}
    grown = sorted((topic, p) for topic, p in now if topic in topics and (topic, p) not in before)
    if grown:
        names = ", ".join(f"{topic}/{p}" for topic, p in grown[:5])
        raise InvalidInput(
            f"The topic has new partitions ({names}), so rows with the same key would go to two shards.",
            advice="stream the topic from its start into a table with bucket() sharding, which supports topics that "
            "grow",
        )
