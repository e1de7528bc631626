"""What must hold in every state of a stream, and what must happen in some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headgate.errors import HeadgateError
from headgate.shards.manifest.model import Manifest
from tests.explorer.exploring import Witness
from tests.explorer.rules import Rules
from tests.explorer.slots import Slots, first_free, found, taken, there
from tests.explorer.stream_parts import (
    TOPIC,
    Log,
    Logged,
    Planned,
    Tasks,
    Wal,
    as_state,
    read_log,
    replay_after,
    rows_in,
    rows_of,
    shard_id,
    visible_entries,
)


def log_fault(log: Log, fold: bytes | None) -> str | None:
    """Every offset was committed once, and the log as it can be read knows of all of them."""
    known = read_log(log, fold)
    if known is None:
        return "invariant 5: a record is gone that no fold has"
    try:
        head = as_state(known).head
    except HeadgateError as error:
        return f"invariant 1: {error}"
    end = 0
    for planned in log.committed:
        if planned.start != end:
            return f"invariant 1: offsets are committed twice or left out: {log.committed}"
        end = planned.until
    if head.ends.get((TOPIC, 0), 0) != end:
        return f"invariant 1: everything up to {end} was committed, the log ends at {dict(head.ends)}"
    return None


def shard_fault(
    rules: Rules,
    plans: Sequence[Sequence[Planned]],
    s: int,
    wal: Wal,
    manifest: Manifest | None,
    log: Log,
    fold: bytes | None,
    in_base: Sequence[int] = (),
) -> str | None:
    """A reader that comes now finds exactly what was committed, and a driver that comes now could open the shard."""
    flushed = replay_after(manifest)
    if holes := [at for at in range(flushed + 1, len(wal)) if not there(wal, at)]:
        return f"invariant 4: position {holes[0]} of shard {s} is free, replay_after is {flushed}, the tip {len(wal)}"
    fence = 0
    for at in range(flushed + 1, len(wal)):
        entry = found(wal, at)
        if entry.task is None:
            fence = max(fence, entry.epoch)
        elif entry.epoch < fence:
            return f"invariant 3: position {at} of shard {s} was written behind a successor's barrier"
        elif manifest is not None and not manifest.sealed:
            return f"invariant 1: native would show what stands at position {at} of shard {s}"
    known = read_log(log, fold)
    assert known is not None
    state = as_state(known)
    if not rules.visible(state.shards).covers(shard_id(s), flushed):
        return f"invariant 5: the log was folded beyond what is flushed of shard {s}"
    entries = visible_entries(rules, wal, s, state.shards, flushed + 1)
    if isinstance(entries, str):
        return f"invariant 1: {entries}"
    rows = [*in_base, *rows_in(manifest), *(row for _, entry in entries for row in rows_of(plans, entry))]
    expected = committed_rows(log.committed, s)
    if sorted(rows) != expected:
        return f"invariant 1: shard {s} shows rows {sorted(rows)}, committed are {expected}"
    if first_free(wal, rules.search_start(manifest, state.head.listed.get(shard_id(s)))) is None:
        return f"invariant 5: the next driver would find a hole in shard {s}"
    return None


def committed_rows(committed: Sequence[Planned], s: int) -> list[int]:
    """The rows that a shard must show."""
    return [row for one in committed if s in one.shards for row in range(one.start, one.until)]


def witnesses(plans: Sequence[Sequence[Planned]], shards: int) -> Iterator[Witness]:
    """Each should be seen where the bounds allow it at all."""
    offsets = plans[0][-1].until
    yield Witness("everything is committed", ("log",), lambda log: _committed(log) == offsets)
    yield Witness("two drivers commit", ("log",), lambda log: len(_committers(log)) > 1)
    yield Witness("rows are flushed", ("manifest0",), lambda manifest: bool(rows_in(manifest)))
    yield Witness("a checkpoint passes a barrier", ("wal0", "manifest0"), _passes_barrier)
    yield Witness("a stream stops cleanly", ("manifest0",), lambda one: one is not None and not one.sealed)
    yield Witness("the log is folded", ("fold",), lambda fold: fold is not None)
    yield Witness("an entry is collected", ("wal0",), lambda wal: not all(there(wal, at) for at in range(1, len(wal))))
    yield Witness("a record is collected", ("log",), lambda log: len(taken(log.slots)) < len(log.slots))
    parts = ("log", *(f"tasks0.{s}" for s in range(shards)))
    yield Witness("a predecessor's task is late", parts, _is_late)


def _committed(log: Log) -> int:
    return log.committed[-1].until if log.committed else 0


def _committers(log: Log) -> set[int]:
    slots: Slots[Logged] = log.slots
    return {record.driver for record in slots if record is not None and record.batch is not None}


def _passes_barrier(wal: Wal, manifest: Manifest | None) -> bool:
    at = replay_after(manifest)
    return at > 0 and there(wal, at) and wal[at].task is None  # type: ignore[union-attr]


def _is_late(log: Log, *tasks: Tasks) -> bool:
    return 1 in _committers(log) and any(not task.done for of_shard in tasks for task in of_shard)
