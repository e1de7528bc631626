"""Maintenance jobs as the drivers last reported them, and what checkpoints, clones and readers of the log pin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from headgate import clock
from headgate.checkpoints.jobs.state import JobProgress, MaintenanceState
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
    """running, failed or idle."""
    done: int | None
    """How often since the driver started; None if not counted."""
    unit: str
    error: str = ""
    times: int = 0
    since: str = ""
    next_try: str = ""
    progress: JobProgress | None = None
    piece: str = ""
    """What its progress counts."""

    @property
    def part(self) -> float | None:
        """The share that is done; None if unknown."""
        one = self.progress
        return None if one is None or one.total < 2 else min(1.0, one.done / one.total)


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
    counts: Mapping[str, tuple[int | None, str, str]] = {
        "flush": (state.flushes, "flush|flushes", "shard"),
        "compaction": (state.compactions, "compaction", "shard"),
        "indexing": (state.indexed, "index segment", "segment"),
        "checkpoint": (state.checkpoints, "checkpoint", "shard"),
        "garbage collection": (None, "", "object"),
    }
    failures = {one.job: one for one in state.failures}
    progress = {one.job: one for one in state.progress}
    names = dict.fromkeys([*counts, *state.running, *failures])
    lines = []
    for name in names:
        done, unit, piece = counts.get(name, (None, "", "piece"))
        failed = failures.get(name)
        word = "failed" if failed is not None else "running" if name in state.running else "idle"
        line = JobLine(name, word, done, unit, progress=progress.get(name), piece=piece)
        if failed is not None:
            line = replace(line, error=failed.error, times=failed.times, since=failed.since, next_try=failed.next_try)
        lines.append(line)
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
