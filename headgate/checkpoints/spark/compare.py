"""Compares Spark's checkpoint directory with the commit log. Reading it does not raise for damage; pure functions
compare.

Five states, and what Spark would do at its next start:
- *aligned*: Spark committed exactly what the table has.
- *log ahead*: the table has one batch that Spark has not recorded as done. Spark sends it again, and it is skipped.
- *Spark ahead*: Spark planned a batch that the table does not have. Spark sends it again, and it is written.
- *lost*: the directory is missing, damaged, from another query, or older or newer than the table. It must be rebuilt.
- *foreign*: the directory belongs to another table, such as one dropped at this URI (R23): Spark has batches that this
  table never had, so its next batch is refused; or an older release accepted it, and rows are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeVar

from headgate.checkpoints.log.decisions import BatchSources, Refusal, Skip, decide_batch
from headgate.checkpoints.log.records import is_dead_letters
from headgate.checkpoints.log.state import Head
from headgate.checkpoints.spark.directory import SourceOffsets, SparkCheckpoint
from headgate.errors import Corrupt, HeadgateError, InvalidInput, NotFound

T = TypeVar("T")

State = Literal["aligned", "log ahead", "spark ahead", "lost", "foreign"]

_STATEFUL = "state"
"""Spark's folder for the state of a stateful query."""


@dataclass(frozen=True)
class SparkLook:
    """Readable content of the directory."""

    uri: str
    names: tuple[str, ...] = ()
    """Names right below it; empty if it is empty or missing."""
    query_id: str | None = None
    planned: int | None = None
    """The last batch that Spark has logged."""
    done: int | None = None
    """The last batch that Spark has finished."""
    ends: tuple[SourceOffsets, ...] = ()
    """Where the sources end in the last finished batch."""
    upcoming: BatchSources | None = None
    """What the logged but unfinished batch reads."""
    layout: tuple[SourceOffsets, ...] = ()
    """The sources of the newest readable batch: which topics belong to which source."""
    begun: Mapping[str, bytes] = field(default_factory=dict)
    """Readable files that say where its Kafka sources began."""
    faults: tuple[str, ...] = ()
    """Faults that would stop Spark from reading the directory, or from writing to it."""
    is_foreign: bool = False
    """True if a fault is a newer Spark's format: then nothing is broken."""

    @property
    def is_there(self) -> bool:
        """True if the directory has any content."""
        return bool(self.names)

    @property
    def is_stateful(self) -> bool:
        """True if the query has state of its own, which no commit log has."""
        return _STATEFUL in self.names

    def next_starts(self) -> dict[tuple[str, int], int]:
        """Where the partitions continue: at the starts of the logged but unfinished batch, otherwise after the last
        one.
        """
        if self.upcoming is not None:
            return {(one.topic, one.partition): one.start for one in self.upcoming.ranges}
        return self.kafka_ends()

    def kafka_ends(self) -> dict[tuple[str, int], int]:
        """Where Spark's next batch starts, for Kafka sources."""
        return {place: end for one in self.ends for place, end in (one.kafka or {}).items()}


@dataclass(frozen=True)
class Standing:
    """Result of the comparison."""

    state: State
    why: str
    """A sentence for people."""
    needs_rebuild: bool = False
    is_damaged: bool = False
    """True if Spark would fail with an error of its own, before it calls any sink."""
    is_mendable: bool = False
    """True if a crash or a power cut leaves such a directory, and it is this stream's: a start may rebuild it without
    asking.
    """
    upcoming: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """By topic and partition, the offsets of a batch that Spark has logged and not finished."""


def look_at_spark(checkpoint: SparkCheckpoint) -> SparkLook:
    """Read what Spark would read at a start. Damage is reported, not raised; an unreachable store raises Transient."""
    names = checkpoint.names()
    if not names:
        return SparkLook(checkpoint.uri)
    faults: list[HeadgateError] = []
    query_id = _readable(checkpoint.query_id, faults)
    # Offsets before commits: beside a running query, no batch is then finished without having been seen as planned.
    planned, done = checkpoint.planned(), checkpoint.commits()
    last_planned, last_done = (numbers[-1] if numbers else None for numbers in (planned, done))
    if last_done is not None:
        _readable(lambda: checkpoint.check_commit(last_done), faults)
    ends: tuple[SourceOffsets, ...] = ()
    upcoming = None
    if last_done is not None:
        ends = _readable(lambda: checkpoint.offsets(last_done), faults) or ()
    if last_planned is not None and last_planned != last_done:
        upcoming = _readable(lambda: checkpoint.sources(last_planned), faults)
    if last_planned is not None and last_planned > 0:
        _readable(lambda: checkpoint.offsets(last_planned - 1), faults)
    if last_planned is None:
        for source in checkpoint.names("sources"):
            _readable(partial(checkpoint.check_begun, source), faults)
    if last_done is not None and (last_planned is None or last_done > last_planned):
        faults.append(Corrupt(f"Spark committed batch {last_done}, but planned batches only up to {last_planned}."))
    for name in checkpoint.stray_checksums():
        faults.append(Corrupt(f"Spark's {name} is the checksum of a missing file."))
    return SparkLook(
        uri=checkpoint.uri,
        names=names,
        query_id=query_id,
        planned=last_planned,
        done=last_done,
        ends=ends,
        upcoming=upcoming,
        layout=_layout(checkpoint, planned),
        begun=checkpoint.begun(),
        faults=tuple(dict.fromkeys(fault.what for fault in faults)),
        is_foreign=any(isinstance(fault, InvalidInput) for fault in faults),
    )


def standing(head: Head, spark: SparkLook) -> Standing:
    """Which of the states it is, and what a start of the query would do. (*foreign* only as far as the head shows it.)

    A batch that Spark has logged and not finished is judged as the sink would judge it; otherwise only the start of
    Spark's next batch counts. The query's id does not: a new one is accepted if it continues exactly.
    """
    if not spark.is_there:
        if head.last is None:
            return Standing("aligned", "No Spark checkpoint found, and the table has no batch of this stream.")
        return Standing("lost", "No Spark checkpoint found.", needs_rebuild=True, is_mendable=True)
    own = _is_own(head, spark)
    if spark.faults or spark.query_id is None:
        what = " ".join(spark.faults) or "It has no query id."
        mendable = own and not spark.is_foreign
        return Standing("lost", f"The Spark checkpoint is damaged. {what}", True, not spark.is_foreign, mendable)
    if spark.upcoming is not None:
        return _with_upcoming(head, spark, spark.query_id, spark.upcoming)
    if spark.done is None:
        if head.last is None:
            return Standing("aligned", "Neither Spark nor the table has any batch yet.")
        why = "The Spark checkpoint is new: it has no batch, but the table has some."
        return Standing("lost", why, True, is_mendable=own)
    return _between_batches(head, spark, spark.done)


def _with_upcoming(head: Head, spark: SparkLook, query_id: str, upcoming: BatchSources) -> Standing:
    assert spark.planned is not None
    ranges = {(r.topic, r.partition): (r.start, r.until) for r in upcoming.resolved(_from_zero)}
    if (old := _old_copy(head, query_id, spark.planned, ranges)) is not None:
        return old
    decision = decide_batch(head, query_id, spark.planned, upcoming, _from_zero)
    if isinstance(decision, Skip):
        if head.last is None or decision.record.record_id != head.last.record_id:
            why = f"The Spark checkpoint is an old copy: the stream continued without it after batch {spark.planned}."
            return Standing("lost", why, True, upcoming=ranges)
        why = (
            f"The table has batch {spark.planned}, but Spark has not recorded it yet: Spark will send it again, and "
            "the sink will skip it."
        )
        return Standing("log ahead", why, upcoming=ranges)
    if isinstance(decision, Refusal) and head.last is None and head.rewound is None:
        why = f"The Spark checkpoint belongs to another table. {decision.error.what}"
        return Standing("foreign", why, upcoming=ranges)
    if isinstance(decision, Refusal):
        why = f"The Spark checkpoint does not match the table. {decision.error.what}"
        return Standing("lost", why, True, upcoming=ranges)
    why = (
        f"Spark planned batch {spark.planned}, but the table has not committed it: Spark will send it again, and "
        "the sink will write it."
    )
    return Standing("spark ahead", why, upcoming=ranges)


def _between_batches(head: Head, spark: SparkLook, done: int) -> Standing:
    """Every logged batch is finished: the next one starts where the last one ended."""
    if head.last is None and head.rewound is None:
        why = f"Spark committed batch {done}, but the table has no batch of this stream: it was re-created, or is "
        return Standing("foreign", f"{why}not the checkpoint's table. The next batch will be refused.")
    ours = head.next_starts()
    theirs = spark.kafka_ends()
    opaque = {one.source: one.text for one in spark.ends if one.kafka is None and one.text is not None}
    known = {source: end for source, end in head.opaque_ends.items() if not is_dead_letters(source)}
    if (old := _old_copy(head, spark.query_id, done)) is not None:
        return old
    if theirs == ours and (opaque == known or head.last is None):
        return Standing("aligned", f"Spark committed batch {done}, and the table has everything up to it.")
    differing = sorted(place for place in {*ours, *theirs} if ours.get(place) != theirs.get(place))
    told = ", ".join(f"{t}/{p}: Spark {theirs.get((t, p))}, table {ours.get((t, p))}" for t, p in differing[:5])
    if differing and head.is_rewound and head.rewound is not None:
        record = f"record {head.rewound.sequence} ({head.rewound.rewound_at})"
        return Standing("lost", f"{record} rewound the stream; the Spark checkpoint is older ({told}).", True)
    if differing and all(theirs.get(place, 0) >= ours.get(place, 0) for place in differing):
        return Standing("spark ahead", f"Spark committed offsets that the table does not have ({told}).", True)
    if differing and all(theirs.get(place, 0) <= ours.get(place, 0) for place in differing):
        return Standing("lost", f"The Spark checkpoint is an old copy: the table is ahead of it ({told}).", True)
    what = told or "it has other sources"
    return Standing("lost", f"The Spark checkpoint does not match the table ({what}).", True)


def _old_copy(
    head: Head, query_id: str | None, batch: int, upcoming: Mapping[tuple[str, int], tuple[int, int]] | None = None
) -> Standing | None:
    """The result if the table has later batches of the same query, else None. A power cut also loses the last files of
    Spark.
    """
    if head.last is None or head.last.query_id != query_id or batch >= head.last.batch_id:
        return None
    why = f"The Spark checkpoint is an old copy: it ends at batch {batch}, the table at {head.last.batch_id}."
    return Standing("lost", why, needs_rebuild=True, is_mendable=True, upcoming=upcoming or {})


def _is_own(head: Head, spark: SparkLook) -> bool:
    """True if the readable content belongs to this stream, and Spark finished nothing that the table does not have."""
    known = {record.query_id for record in (head.last, head.opened) if record is not None}
    if spark.query_id is not None and known and spark.query_id not in known:
        return False
    if spark.done is not None and (head.last is None or spark.done > head.last.batch_id):
        return False
    ours = head.next_starts()
    return all(end <= ours.get(place, -1) for place, end in spark.kafka_ends().items())


def _from_zero(topic: str, partition: int) -> int:
    """Start of a partition that is new to Spark. Does not ask Kafka."""
    return 0


def _readable(read: Callable[[], T], faults: list[HeadgateError]) -> T | None:
    try:
        return read()
    except (NotFound, Corrupt, InvalidInput) as error:
        faults.append(error)
        return None


def _layout(checkpoint: SparkCheckpoint, planned: Iterable[int]) -> tuple[SourceOffsets, ...]:
    for batch_id in reversed(tuple(planned)):
        try:
            return checkpoint.offsets(batch_id)
        except HeadgateError:
            continue
    return ()
