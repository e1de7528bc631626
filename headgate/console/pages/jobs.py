"""Maintenance jobs as the drivers last reported them, and what checkpoints, clones and readers of the log pin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from headgate import clock
from headgate.checkpoints.jobs.state import MaintenanceState
from headgate.checkpoints.log.pins import PinStore
from headgate.checkpoints.snapshots.checkpoint import TAG_PREFIX, StoredCheckpoint
from headgate.checkpoints.snapshots.take import OWN_PREFIX, READ_PREFIX
from headgate.connectors.lance.base.tags import held_versions
from headgate.console.watch.watcher import WatchedTable
from headgate.errors import HeadgateError
from headgate.table.table import Table

SHOWN = 50
"""Maximum number of checkpoints, the newest ones."""


@dataclass(frozen=True)
class JobLine:
    """One kind of job of a stream."""

    name: str
    state: str
    """running, failed or done."""
    done: int | None
    """How often since the driver started; None if not counted."""
    unit: str
    error: str = ""
    times: int = 0
    since: str = ""
    next_try: str = ""


@dataclass(frozen=True)
class PinLine:
    """A checkpoint, a clone or a reader, and what it holds."""

    name: str
    kind: str
    taken: datetime | None
    expires: datetime | None
    expired: bool
    base_version: int | None
    shards: int
    entries: int
    """WAL entries above `replay_after`, which SSTables do not cover."""
    note: str


def jobs_page(table: WatchedTable, *, live: bool) -> dict[str, Any]:
    """The values of the page. Checkpoints are read when the page is opened, not when it updates itself."""
    streams = [
        {
            "name": name,
            "state": stream.maintenance,
            "jobs": jobs_of(stream.maintenance),
            "live": stream.live is not None,
        }
        for name, stream in sorted(table.now.streams.items())
    ]
    values: dict[str, Any] = {"jobs": streams, "pins": [], "total": 0, "readers": [], "wrong": None}
    if live:
        return values
    with table.reading() as reader:
        try:
            stored = reader.checkpoints()
            values["readers"] = _readers(reader)
            pins = [_pin(one) for one in reversed(stored[-SHOWN:])] + _clones(reader, stored)
            values |= {"pins": pins, "total": len(stored)}
        except HeadgateError as error:
            values["wrong"] = f"{type(error).__name__}: {error.what}"
    return values


def jobs_of(state: MaintenanceState | None) -> list[JobLine]:
    """Each kind of job: if it runs, how it failed, how often it was done."""
    if state is None:
        return []
    counts: Mapping[str, tuple[int | None, str]] = {
        "flush": (state.flushes, "flush|flushes"),
        "compaction": (state.compactions, "compaction"),
        "indexing": (state.indexed, "index segment"),
        "checkpoint": (state.checkpoints, "checkpoint"),
        "garbage collection": (None, ""),
    }
    failures = {one.job: one for one in state.failures}
    names = dict.fromkeys([*counts, *state.running, *failures])
    lines = []
    for name in names:
        done, unit = counts.get(name, (None, ""))
        failed = failures.get(name)
        word = "failed" if failed is not None else "running" if name in state.running else "done"
        if failed is None:
            lines.append(JobLine(name, word, done, unit))
        else:
            told = (failed.error, failed.times, failed.since, failed.next_try)
            lines.append(JobLine(name, word, done, unit, *told))
    return lines


def _pin(stored: StoredCheckpoint) -> PinLine:
    one = stored.checkpoint
    kind = "stream" if one.name.startswith(OWN_PREFIX) else "reader" if one.name.startswith(READ_PREFIX) else "named"
    entries = sum(max(0, shard.end - shard.manifest.replay_after - 1) for shard in one.shards.values())
    return PinLine(
        one.name,
        kind,
        stored.taken_at,
        stored.expires_at,
        stored.expired(clock.now()),
        one.base_version,
        len(one.shards),
        entries,
        one.note,
    )


def _clones(table: Table, stored: list[StoredCheckpoint]) -> list[PinLine]:
    """Tags of the base without a checkpoint: those of shallow clones, or tags that a person has set."""
    known = {one.checkpoint.tag for one in stored}
    tags = held_versions(table.home.store)
    return [
        PinLine(name.removeprefix(TAG_PREFIX), "clone", None, None, False, version, 0, 0, "a version of the base")
        for name, version in sorted(tags.items())
        if name not in known
    ]


def _readers(table: Table) -> list[dict[str, Any]]:
    return [
        {"name": one.pin.consumer, "taken": one.taken_at, "until": one.expires_at, "note": one.pin.note}
        for one in PinStore(table.home.records, table.uri).list()
    ]
