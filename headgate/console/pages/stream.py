"""One stream: its flow as a picture, its batches over time, its offsets with WAL positions, and where an offset is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headgate import clock
from headgate.checkpoints.feed.find import OffsetPlace, find_offset
from headgate.checkpoints.jobs.state import seconds_since
from headgate.console.pages import words
from headgate.console.pages.charts import PHASE_TEXT, PHASES, Stage, flow, phases_of, shares, timeline
from headgate.console.pages.overview import stream_line
from headgate.console.watch.log import Batch, Place
from headgate.console.watch.now import StreamNow, TableNow
from headgate.console.watch.verdict import span
from headgate.console.watch.watcher import WatchedTable
from headgate.errors import NotFound
from headgate.shards.sharding import ByPartition

BATCHES_SHOWN = 20
PARTITIONS_SHOWN = 50
TIMED = 20
"""The last batches whose phases are summed up."""


@dataclass(frozen=True)
class PartitionLine:
    """One partition of a topic with its place in the WAL."""

    topic: str
    partition: int
    start: int | None
    committed: int
    end: int | None
    lag: int | None
    shard: str | None
    """None if a partition's rows go to several shards."""
    position: int | None
    """The shard's last position in a commit record."""


def stream_page(table: WatchedTable, name: str | None, page: int, asked: Mapping[str, str]) -> dict[str, Any]:
    """The values of the page of the named stream, or of the first one. Raises NotFound if the stream does not exist."""
    now = table.now
    if name is None:
        name = min(now.streams, default=None)
    if name is None:
        return {"stream": None, "streams": []}
    stream = now.streams.get(name)
    if stream is None:
        raise NotFound(f"The table has no stream {words.cut(name, 80)!r}.", advice="go back to the overview")
    partitions = sorted(stream.log.ends)
    first = (page - 1) * PARTITIONS_SHOWN
    stages = _stages(now, stream)
    opened = stream.log.opened
    return {
        "stream": stream_line(now, stream, clock.now(), clock.monotonic()),
        "streams": sorted(now.streams),
        "flows": [flow(stages, tall=tall) for tall in (False, True)],
        "timed": bool(_time(stream)),
        "timeline": timeline(stream.log),
        "phase_text": PHASE_TEXT,
        "phases": PHASES,
        "batches": [_batch(one) for one in reversed(stream.log.batches[-BATCHES_SHOWN:])],
        "partitions": [_partition(now, stream, place) for place in partitions[first : first + PARTITIONS_SHOWN]],
        "partition_count": len(partitions),
        "page": page,
        "pages": max(1, -(-len(partitions) // PARTITIONS_SHOWN)),
        "opened": opened,
        "mode": None if stream.log.last is None else stream.log.last.mode,
        "rewound": stream.log.rewound,
        "asked": (question := _asked(asked, partitions)),
        "found": _found(table, name, question),
    }


# -- where an offset is --------------------------------------------------------------------


def _asked(asked: Mapping[str, str], partitions: Sequence[Place]) -> dict[str, str]:
    topic, partition = partitions[0] if partitions else ("", 0)
    return {
        "topic": asked.get("topic") or topic,
        "partition": asked.get("partition") or str(partition),
        "offset": asked.get("offset", ""),
    }


def _found(table: WatchedTable, stream: str, asked: Mapping[str, str]) -> OffsetPlace | str | None:
    """The place of an offset; a text if the request is invalid."""
    if not asked["offset"]:
        return None
    if not (_is_number(asked["offset"]) and _is_number(asked["partition"])):
        return "Partition and offset are whole numbers."
    return find_offset(table.opened().home, stream, asked["topic"], int(asked["partition"]), int(asked["offset"]))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 19


# -- lines ---------------------------------------------------------------------------------


def _batch(batch: Batch) -> dict[str, Any]:
    record, phases = batch.record, phases_of(batch)
    timing = batch.timing
    read = [] if record is None else [one for one in record.sources if one.until > one.start]
    return {
        "batch": None if record is None else record.batch_id,
        "sequence": batch.sequence,
        "at": batch.at,
        "rows": batch.rows,
        "nbytes": None if record is None else record.nbytes,
        "dead_letters": batch.dead_letters,
        "seconds": None if timing is None else timing.seconds.get("total"),
        "phases": phases,
        "retries": {} if timing is None else {what: times for what, times in timing.retries.items() if times},
        "shards": 0 if record is None else len(record.shards),
        "read": [(one.topic, one.partition, one.start, one.until) for one in read[:2]],
        "more": max(0, len(read) - 2),
        "is_replay": record is not None and record.is_replay,
    }


def _partition(now: TableNow, stream: StreamNow, place: Place) -> PartitionLine:
    topic, partition = place
    shard, lag = _shard_of(now, place), now.lag(stream).get(place)
    end = None if now.ends is None else now.ends.end(place)
    if end is None and lag is not None:
        end = stream.log.ends[place] + lag
    positions = (
        part.positions[-1]
        for one in reversed(stream.log.batches)
        if one.record is not None
        for name, part in one.record.shards.items()
        if name == shard
    )
    return PartitionLine(
        topic,
        partition,
        stream.log.starts.get(place),
        stream.log.ends[place],
        end,
        lag,
        shard,
        next(positions, None) if shard is not None else None,
    )


def _shard_of(now: TableNow, place: Place) -> str | None:
    sharding = None if now.table is None else now.table.sharding
    return sharding.shard_name(*place) if isinstance(sharding, ByPartition) else None


# -- the flow ------------------------------------------------------------------------------


def _time(stream: StreamNow) -> dict[str, float]:
    """Wall time of the last batches by phase; empty if unknown."""
    spent: dict[str, float] = {}
    for batch in stream.log.batches[-TIMED:]:
        for phase, took in phases_of(batch).items():
            spent[phase] = spent.get(phase, 0.0) + took
    return spent


def _stages(now: TableNow, stream: StreamNow) -> list[Stage]:
    """The content of each stage. The stage with the largest share of time is "busy"; one that delays is "waiting"."""
    part = shares(_time(stream))
    spark = part.get("spark", 0.0) + part.get("plan", 0.0) if part else None
    tasks, commit, wait = part.get("tasks"), part.get("commit"), part.get("wait")
    largest = max((one for one in (spark, tasks, commit, wait) if one is not None), default=2.0)

    def state(share: float | None, *, waits: bool = False) -> str:
        return "waiting" if waits else "busy" if share is not None and share == largest else "calm"

    lag = now.lag(stream)
    behind, oldest = sum(lag.values()), now.lag_seconds(stream, clock.monotonic())
    late = bool(oldest and oldest > 60)
    line = stream_line(now, stream, clock.now(), clock.monotonic())
    maintenance = stream.maintenance
    delayed = maintenance is not None and maintenance.delayed is not None
    shards = _shards(now, stream)
    sstables = sum(count for _, _, count in shards)
    base_age = None if maintenance is None or not maintenance.base_since else seconds_since(maintenance.base_since)
    unflushed = now.unflushed_bytes(stream)
    wal_only = stream.log.last is not None and stream.log.last.mode == "wal"
    most_lag, most_bytes = max(lag.values(), default=0), max((nbytes for _, nbytes, _ in shards), default=0)
    return [
        Stage(
            "Kafka",
            words.plural(len(stream.log.ends), "partition"),
            f"{behind:,} rows wait" if lag else f"lag: {now.why_no_lag(stream)}",
            tuple(
                (
                    f"{topic}/{number}",
                    f"{topic}/{number}: {words.plural(lag.get((topic, number), 0), 'row')} wait",
                    lag.get((topic, number), 0) / most_lag if most_lag else 0.0,
                    "waiting" if late and lag.get((topic, number)) else "calm",
                )
                for topic, number in sorted(stream.log.ends)
            ),
            spark,
            state(spark, waits=late),
        ),
        Stage(
            "Tasks",
            f"{words.number(line.rows_per_second)} rows/s",
            "read, decode, append",
            (("Spark tasks", "one for each shard, at most one a core", 0.0, state(tasks)),),
            tasks,
            state(tasks),
        ),
        Stage(
            "Shards",
            words.size(unflushed),
            "in write-ahead logs alone",
            tuple(
                (
                    name,
                    f"{name}: {words.size(nbytes)} unflushed, {words.plural(count, 'SSTable')}",
                    nbytes / most_bytes if most_bytes else 0.0,
                    "calm",
                )
                for name, nbytes, count in shards
            ),
            commit,
            state(commit),
        ),
        Stage(
            "SSTables",
            words.plural(sstables, "SSTable"),
            "wait for the base" if sstables else "nothing waits for the base",
            (("SSTables", f"{words.plural(sstables, 'SSTable')} that the base has not taken in", 0.0, "calm"),),
            wait,
            state(wait, waits=delayed),
        ),
        Stage(
            "Base",
            "not written"
            if wal_only
            else f"{span(base_age)} behind"
            if base_age
            else "behind"
            if sstables or unflushed
            else "up to date",
            "rows stay in the logs: WAL only" if wal_only else "what plain Lance reads",
            (("Lance dataset", now.place.shown, 0.0, "calm"),),
        ),
    ]


def _shards(now: TableNow, stream: StreamNow) -> list[tuple[str, int, int]]:
    """Name, unflushed bytes and SSTables of each shard; 0 for those that were not read yet."""
    if stream.live is not None:
        return [(one.name, one.unflushed_bytes, one.sstables) for one in stream.live.held()]
    seen = {one.look.shard.id: one.look for one in now.shards_of(stream)}
    found = []
    for name, claim in {} if stream.log.opened is None else stream.log.opened.shards.items():
        look = seen.get(claim.shard_id)
        sstables = 0 if look is None or look.manifest is None else len(look.manifest.sstables)
        found.append((name, 0 if look is None else look.wal.nbytes, sstables))
    return found
