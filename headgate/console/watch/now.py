"""What the console knows about a table at one moment, and its verdict. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from headgate.checkpoints.jobs.state import MaintenanceState, seconds_since
from headgate.console.watch.kafka import TopicEnds
from headgate.console.watch.live import LiveStream
from headgate.console.watch.log import Place, StreamLog
from headgate.console.watch.places import TablePlace
from headgate.console.watch.verdict import StreamFacts, Verdict, stream_verdict, table_verdict
from headgate.errors import HeadgateError
from headgate.table.look import ShardLook
from headgate.table.table import Table


@dataclass(frozen=True)
class ShardNow:
    """One shard as it was last read."""

    look: ShardLook
    at: float
    """By the monotonic clock."""

    @property
    def sealed(self) -> bool:
        """True if a stream owns it, so that native Lance refuses to write to it."""
        return self.look.manifest is not None and self.look.manifest.sealed


@dataclass(frozen=True)
class StreamNow:
    """One stream as it was last read."""

    log: StreamLog
    at: float | None = None
    error: str | None = None
    maintenance: MaintenanceState | None = None
    live: LiveStream | None = None

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.log.stream


@dataclass(frozen=True)
class TableNow:
    """One table as it was last read."""

    key: str
    place: TablePlace
    table: Table | None = None
    error: str | None = None
    streams: Mapping[str, StreamNow] = field(default_factory=dict)
    shards: Mapping[UUID, ShardNow] = field(default_factory=dict)
    shard_ids: tuple[UUID, ...] = ()
    """All shards, ordered by name and id."""
    names: Mapping[UUID, str] = field(default_factory=dict)
    ends: TopicEnds | None = None
    looked: bool = False

    def shards_of(self, stream: StreamNow) -> list[ShardNow]:
        """The shards of a stream that were read."""
        claims = () if stream.log.opened is None else stream.log.opened.shards.values()
        wanted = [claim.shard_id for claim in claims]
        return [self.shards[one] for one in wanted if one in self.shards]

    def lag(self, stream: StreamNow) -> Mapping[Place, int]:
        """Per partition how many offsets are in Kafka and not in the table; empty if unknown."""
        if stream.live is not None and (told := stream.live.lag()):
            return told
        if self.ends is None:
            return {}
        return self.ends.lag(stream.log.ends)

    def why_no_lag(self, stream: StreamNow) -> str:
        """Why the lag is unknown."""
        if stream.live is not None:
            return "not reported yet"
        return "needs --servers" if self.ends is None else "not known yet"

    def lag_seconds(self, stream: StreamNow, now: float) -> float | None:
        """For how many seconds the oldest row has been waiting in Kafka; None if unknown."""
        if stream.live is not None:
            return stream.live.lag_seconds()
        return None if self.ends is None else self.ends.waiting(stream.log.ends, now)

    def unflushed_bytes(self, stream: StreamNow) -> int | None:
        """Bytes in the WALs and in no SSTable; None if unknown."""
        if stream.live is not None:
            return sum(one.unflushed_bytes for one in stream.live.held())
        seen = self.shards_of(stream)
        claims = {} if stream.log.opened is None else stream.log.opened.shards
        if seen and len(seen) == len(claims):
            return sum(one.look.wal.nbytes for one in seen)
        return None if stream.maintenance is None else stream.maintenance.unflushed_bytes

    def problems(self) -> list[str]:
        """What is missing or damaged in the shards that were read."""
        found = []
        for shard in self.shards.values():
            name = shard.look.name or str(shard.look.shard.id)
            found += [f"shard {name}: {problem.what}" for problem in shard.look.problems]
        return found

    def facts(self, stream: StreamNow, now: datetime, monotonic: float) -> StreamFacts:
        """The facts for the stream's verdict."""
        log, state, live = stream.log, stream.maintenance, stream.live
        recent = [one.record for one in log.batches if one.record is not None]
        lag = self.lag(stream)
        # A driver that has just taken over is there, although it has neither committed nor reported yet.
        said = ([] if state is None else [state.at]) + ([] if log.opened is None else [log.opened.opened_at])
        heard = [seconds_since(one) for one in said]
        return StreamFacts(
            error=stream.error,
            seen_ago=0.0 if live is not None else None if stream.at is None else monotonic - stream.at,
            batches=len(log.batches),
            committed_ago=None if log.last_at is None else max(0.0, (now - log.last_at).total_seconds()),
            heard_ago=min((one for one in heard if one is not None), default=None),
            is_here=live is not None,
            failure=None if live is None else live.failure(),
            lag_rows=sum(lag.values()) if lag else None,
            lag_seconds=self.lag_seconds(stream, monotonic),
            kafka_error=None if self.ends is None else self.ends.error(topic for topic, _ in log.ends),
            taken_over=self._taken_over(stream),
            released=self._is_released(stream),
            failing=() if state is None else tuple(f"{one.job} ({one.error})" for one in state.failures),
            delayed=None if state is None or state.delayed is None else state.delayed.detail,
            notes=() if state is None else state.notes,
            records=sum(one.rows for one in recent),
            dead_letters=sum(one.dead_letters for one in log.batches),
        )

    def verdict(self, stream: StreamNow, now: datetime, monotonic: float) -> Verdict:
        """The verdict of one stream."""
        return stream_verdict(self.facts(stream, now, monotonic))

    def verdicts(self, now: datetime, monotonic: float) -> tuple[Verdict, dict[str, Verdict]]:
        """The verdict of the table, and of each stream."""
        streams = {name: self.verdict(one, now, monotonic) for name, one in self.streams.items()}
        return table_verdict([*streams.values()], self.problems(), self.error, looked=self.looked), streams

    def _taken_over(self, stream: StreamNow) -> str | None:
        """Names a shard that another driver has claimed since: the stream's driver is fenced, even if it does not
        know it yet."""
        opened = stream.log.opened
        for name, claim in {} if opened is None else opened.shards.items():
            seen = self.shards.get(claim.shard_id)
            manifest = None if seen is None else seen.look.manifest
            if manifest is not None and manifest.sealed and manifest.epoch > claim.epoch:
                return f"shard {name} is at epoch {manifest.epoch}, and the stream's driver claimed epoch {claim.epoch}"
        return None

    def _is_released(self, stream: StreamNow) -> bool:
        seen = self.shards_of(stream)
        return bool(seen) and not any(one.sealed for one in seen)


def first_error(error: HeadgateError) -> str:
    """The error's class and sentence, without paths and credentials."""
    return f"{type(error).__name__}: {error.what}"


def stale_first(ids: Sequence[UUID], shards: Mapping[UUID, ShardNow]) -> list[UUID]:
    """Shards that were never read first, then those that were read longest ago."""
    return sorted(ids, key=lambda one: shards[one].at if one in shards else float("-inf"))
