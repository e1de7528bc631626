"""Which shards a batch touches, and which task does what. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from headgate.errors import InvalidInput
from headgate.shards.sharding import ByPartition, Sharding
from headgate.shards.wal.entry import SourceRange

Ranges: TypeAlias = tuple[SourceRange, ...]

ROWS_PER_TASK = 10_000
"""Below this a further task costs more than it saves: about what one core decodes and writes in 50 ms."""


def shards_of(sharding: Sharding, ranges: Iterable[SourceRange]) -> dict[str, Ranges]:
    """The shards that rows of these ranges may go to, with the ranges that each may hold rows of."""
    full = [part for part in ranges if part.until > part.start]
    return shards_of_made_rows(sharding, full) if full else {}


def shards_of_made_rows(sharding: Sharding, ranges: Iterable[SourceRange]) -> dict[str, Ranges]:
    """The same for rows that Spark made: a window that closes, or a state that times out, gives rows of
    partitions that this batch reads nothing of, and in a batch that reads nothing at all.
    """
    whole = tuple(ranges)
    if not isinstance(sharding, ByPartition):
        return dict.fromkeys(sharding.known_names(), whole)
    shards: dict[str, list[SourceRange]] = {}
    for part in whole:
        shards.setdefault(sharding.shard_name(part.topic, part.partition), []).append(part)
    return {name: tuple(parts) for name, parts in shards.items()}


def task_count(rows: int, cores: int, groups: int) -> int:
    """About one task per core, fewer where the batch is small, never more than there are groups."""
    return max(1, min(groups, cores, -(-rows // ROWS_PER_TASK)))


def balance(groups: Mapping[str, Ranges], tasks: int) -> tuple[Ranges, ...]:
    """The groups over tasks, whole, the largest first to the task that has least."""
    loads = [0] * tasks
    shares: list[list[SourceRange]] = [[] for _ in range(tasks)]
    for parts in sorted(groups.values(), key=size, reverse=True):
        least = loads.index(min(loads))
        loads[least] += size(parts)
        shares[least].extend(parts)
    return tuple(tuple(share) for share in shares if share)


def size(ranges: Iterable[SourceRange]) -> int:
    """Offsets in the ranges: rows, where the topic has no holes."""
    return sum(part.until - part.start for part in ranges)


def check_routing(
    sharding: Sharding, keyed: bool, known: Iterable[tuple[str, int]], now: Iterable[tuple[str, int]]
) -> None:
    """R17: on a table with a key, a topic that has grown moves keys to other partitions, hence to other shards.

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
