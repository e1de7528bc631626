"""Checks that a table has exactly the rows that its streams committed: every row once, with the right values.

The topic is read again, up to the committed offsets, decoded as the stream decoded it and compared with the table row
by row; dead letters are compared by offset. Reads only, fences nobody, and needs 16 bytes of memory per row. Streams
may keep running: the table is read at one instant.

How a record was decoded is in the stream's open records: the decoder, and the columns that the table had then. A column
that was added later is null in such rows, one that was renamed has its new name, one that was dropped is not compared.

Not everything can be compared; the report says what was not:
1. Rows computed in Spark, or by a custom decoder: their values are not in the topic. Their offsets are compared, and
   their number as far as the log still has every record. On a table with a key, each may have replaced any other row:
   then only duplicate keys and surplus rows are found.
2. Rows removed by `headgate wal expire` are in the topic, but not in the table.
3. If the log does not record the decoder (an older stream) or the query's changes to the frame (`format("headgate")`),
   that may explain a difference.

The topic must still have the records that the streams read; otherwise the error names the missing offsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headgate.checkpoints.log.names import no_stream
from headgate.checkpoints.log.records import RewindRecord
from headgate.checkpoints.log.state import Head
from headgate.checkpoints.offline.retention import read_expired
from headgate.checkpoints.spark.rewind_plan import rewind_value
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.connectors.kafka.reading import offsets
from headgate.errors import InvalidInput, Transient
from headgate.progress import Progress, shown
from headgate.results import Result
from headgate.shards.home.stores import Place
from headgate.streaming.decode.contract import Decoder
from headgate.streaming.kafka.source import Topics, source
from headgate.streaming.verify.changes import Changes, ReadProgress
from headgate.streaming.verify.compare import Difference, Prints, beside, compare
from headgate.streaming.verify.differences import Differences
from headgate.streaming.verify.history import (
    CommittedRange,
    Era,
    committed_ranges,
)
from headgate.streaming.verify.streams import StreamLog
from headgate.table.status import heads_of
from headgate.table.table import Table, as_table

TRIES = 10
"""Maximum tries: if a stream commits while the table is read, both are read again."""


@dataclass(frozen=True, repr=False)
class Verification(Result):
    """What was compared, and the differences."""

    ranges: tuple[CommittedRange, ...]
    eras: tuple[tuple[Era, ...], ...]
    """For each offset range, how its records were decoded."""
    records: int
    """Read from the topic."""
    expected: int
    """Expected rows: after updates and deletes, if the table has a key."""
    rows: int
    """Rows in the table."""
    dead_letters: int
    """Records that cannot be decoded."""
    difference: Difference
    dead_letters_lost: int
    dead_letters_extra: int
    """Duplicate or unexpected dead letters."""
    examples: tuple[dict[str, Any], ...] = ()
    expired: int = 0
    """Entries removed by `headgate wal expire`: their rows count as lost, since they cannot be distinguished."""
    rewinds: tuple[RewindRecord, ...] = ()
    """The last rewind of each stream: records read twice are expected twice, skipped records are not expected."""
    late: tuple[str, ...] = ()
    """Streams whose log begins with a later batch than the first of its query, as sentences: rows are missing (R23)."""
    unjudged: tuple[str, ...] = ()
    """What was not compared, and why: a sentence each."""
    doubts: tuple[str, ...] = ()
    """Why a difference may not be a loss: a sentence each."""

    @property
    def may_be_expired(self) -> bool:
        """True if the only differences are missing rows, and entries were expired."""
        off = self.difference
        return bool(off.lost and self.expired) and not (
            off.duplicates or off.wrong or self.dead_letters_lost or self.dead_letters_extra or self.late
        )

    @property
    def holds(self) -> bool:
        """True if table and topic agree in everything that was compared."""
        return not (self.difference or self.dead_letters_lost or self.dead_letters_extra or self.late)

    def to_dict(self) -> dict[str, Any]:
        return {
            "holds": self.holds,
            "unjudged": list(self.unjudged),
            "doubts": list(self.doubts),
            "records": self.records,
            "expected_rows": self.expected,
            "rows": self.rows,
            "duplicates": self.difference.duplicates,
            "lost": self.difference.lost,
            "wrong": self.difference.wrong,
            "expired_entries": self.expired,
            "dead_letters": self.dead_letters,
            "dead_letters_lost": self.dead_letters_lost,
            "dead_letters_extra": self.dead_letters_extra,
            "ranges": [part.value(eras) for part, eras in zip(self.ranges, self.eras, strict=True)],
            "begins_late": list(self.late),
            "rewinds": [rewind_value(one) for one in self.rewinds],
            "examples": list(self.examples),
        }


def verify(
    table: Table | Place,
    *,
    servers: str,
    topic: Topics,
    decode: Decoder | None = None,
    registry_auth: str | None = None,
    kafka_options: Mapping[str, str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Read the topics of a table's streams again, and compare them with the table row by row: `if not
    headgate.verify(table, servers=…, topic=…).holds: …`. Reads only, fences nobody; streams may keep running.

    `topic` names all topics that its streams read. `decode` is used for streams that did not record their decoder,
    `registry_auth` for a schema registry; `kafka_options` are options of Spark's Kafka source. See `verify_table`.
    """
    table = as_table(table, storage_options)
    options = kafka_options or {}
    names = [name.strip() for name in topic.split(",")] if isinstance(topic, str) else topic
    topics = {name: source(servers, name, max_offsets_per_trigger=None, **options).consumer for name in names}
    with shown(progress) as report:
        return verify_table(table, topics, decode, report, registry_auth)


def verify_table(
    table: Table,
    topics: Mapping[str, ConsumerConfig],
    decode: Decoder | None = None,
    progress: ReadProgress = lambda what, done, total: None,
    registry_auth: str | None = None,
) -> Verification:
    """Compare the table with the topics.

    1. read, at one instant, the head of every stream and all rows of the table.
    2. read the committed ranges and decoders from the logs; `topics` must contain all their topics. `decode` is used if
       the logs do not record it, `registry_auth` for a recorded registry.
    3. read and decode the records of those ranges; keep the newest of each key.
    4. compare rows with rows, dead letters with records that cannot be decoded. Rows computed in Spark are counted.

    Raises InvalidInput for a topic that is missing or holds too little, DataLoss, Transient, PermissionDenied.
    """
    heads, found = _at_one_instant(table, progress)
    logs = {head.stream: StreamLog.of(table, head, decode, registry_auth) for head in heads}
    ranges = committed_ranges(heads, topics)
    eras = tuple(logs[part.stream].eras(part) for part in ranges)
    _check_topics(table, ranges, eras, topics)
    reading = Changes(table, logs, list(zip(ranges, eras, strict=True)), topics, progress)
    reading.read()
    expected = reading.expected()
    keyed = bool(table.primary_key)
    difference = compare(expected, found, keyed=keyed)
    unjudged = [*_unjudged(logs, ranges, eras), *reading.unread()]
    if unjudged:
        others = [log.others() for log in logs.values()]
        known = None if None in others else sum(filter(None, others)) + reading.letters_unread
        difference = beside(difference, len(expected), len(found), known, keyed=keyed)
    lost, extra = _dead_letters(logs, ranges, eras, reading.dead)
    off = bool(difference or lost or extra)
    return Verification(
        ranges=ranges,
        eras=eras,
        records=reading.records,
        expected=len(expected),
        rows=len(found),
        dead_letters=sum(map(len, reading.dead.values())),
        difference=difference,
        dead_letters_lost=lost,
        dead_letters_extra=extra,
        examples=tuple(_examples(table, difference, reading)) if difference else (),
        expired=sum(one["entries"] for shard_id in table.shard_ids() for one in read_expired(table.home, shard_id)),
        rewinds=tuple(head.rewound for head in heads if head.rewound is not None),
        late=tuple(
            f"Stream {name!r}: {log.history.late}" for name, log in logs.items() if log.history.late is not None
        ),
        unjudged=tuple(unjudged),
        doubts=tuple(_doubts(ranges, eras)) if off else (),
    )


# -- reading the table ---------------------------------------------------------------


def _at_one_instant(table: Table, progress: ReadProgress) -> tuple[tuple[Head, ...], Prints]:
    for _ in range(TRIES):
        before = heads_of(table)
        rows = table.scan()
        if [head.sequence for head in heads_of(table)] == [head.sequence for head in before]:
            return before, Prints.of(table.home.schema, _counted(rows, progress))
    raise Transient(
        f"The table changed during each of {TRIES} reads.",
        table=table.uri,
        advice="try again when the stream has fewer batches, or stop it for a moment",
    )


def _counted(batches: Iterable[pa.RecordBatch], progress: ReadProgress) -> Iterator[pa.RecordBatch]:
    done = 0
    for batch in batches:
        yield batch
        done += batch.num_rows
        progress("table", done, 0)


def _check_topics(
    table: Table,
    ranges: Sequence[CommittedRange],
    eras: Sequence[Sequence[Era]],
    topics: Mapping[str, ConsumerConfig],
) -> None:
    if not ranges:
        raise no_stream(None, (), table.uri)
    committed = {part.topic for part in ranges}
    if unknown := sorted(set(topics) - committed):
        raise InvalidInput(f"No stream has read the topic {unknown[0]!r} into this table.", known=sorted(committed))
    if missing := sorted(committed - set(topics)):
        raise InvalidInput(
            f"The table also has rows of the topic {missing[0]!r}.",
            table=table.uri,
            advice=f"verify all of its topics together: {' '.join(f'--topic {topic}' for topic in sorted(committed))}",
        )
    there = {topic: offsets(consumer, topic) for topic, consumer in topics.items()}
    for part, decoded in zip(ranges, eras, strict=True):
        first, end = there[part.topic].get(part.partition, (0, 0))
        start = min((era.start for era in decoded if era.made.can_judge), default=part.until)
        if part.until > part.start and ((first > start and start < part.until) or end < part.until):
            raise InvalidInput(
                f"The topic no longer has all records of {part.topic}/{part.partition}: committed is "
                f"[{part.start}, {part.until}), Kafka has [{first}, {end}).",
                advice="verify compares with the topic, so run it within the topic's retention",
            )


# -- what was not compared -------------------------------------------------------------


def _unjudged(
    logs: Mapping[str, StreamLog], ranges: Sequence[CommittedRange], eras: Sequence[Sequence[Era]]
) -> Iterator[str]:
    for stream, log in logs.items():
        mine = [era for part, decoded in zip(ranges, eras, strict=True) if part.stream == stream for era in decoded]
        why = {era.made.why_not: None for era in mine if not era.made.can_judge}
        if any(batch.opaque and not batch.is_replay for batch in log.history.batches):
            why["it has a source other than Kafka"] = None
        counted = "offsets and row counts were compared"
        if log.others() is None:
            counted = "only offsets were compared: its log no longer has every record, so rows cannot be counted"
        for reason in why:
            yield f"The values of stream {stream!r} were not compared, because {reason}; {counted}."


def _doubts(ranges: Sequence[CommittedRange], eras: Sequence[Sequence[Era]]) -> Iterator[str]:
    judged = [
        (part.stream, era) for part, decoded in zip(ranges, eras, strict=True) for era in decoded if era.made.can_judge
    ]
    for stream, kind in sorted({(stream, era.made.kind) for stream, era in judged if era.assumed}):
        yield f"Stream {stream!r} did not record its decoder, so {kind} was used: name the right one with --decode."
    for stream in sorted({stream for stream, era in judged if era.made.changed is None}):
        yield (
            f'Stream {stream!r} was written by format("headgate"), whose query may filter or change records '
            "before decoding: that could explain the difference."
        )


# -- dead letters, and examples --------------------------------------------------------


def _dead_letters(
    logs: Mapping[str, StreamLog],
    ranges: Sequence[CommittedRange],
    eras: Sequence[Sequence[Era]],
    expected: Mapping[tuple[str, str, int], Sequence[int]],
) -> tuple[int, int]:
    """The numbers of lost and of surplus dead letters, among those that were committed and can be judged.

    Letters that a replay turned into rows count as letters too; the rows are compared as rows. If the log does not say
    how they became rows, the decoder must be able to read them at once.
    """
    judged: dict[tuple[str, str, int], list[Era]] = {}
    for part, decoded in zip(ranges, eras, strict=True):
        found_eras = judged.setdefault((part.stream, part.topic, part.partition), [])
        found_eras += [era for era in decoded if era.made.can_judge]
    found: dict[tuple[str, str, int], Counter[int]] = {}
    for stream, log in logs.items():
        for entry in log.letters:
            rows = entry.rows if log.replays else entry.rows.filter(pa.array(entry.waiting))
            columns = (rows.column(name).to_pylist() for name in ("topic", "partition", "offset"))
            for topic, partition, offset in zip(*columns, strict=True):
                place = (stream, topic, partition)
                if any(era.start <= offset < era.until for era in judged.get(place, ())):
                    found.setdefault(place, Counter())[offset] += 1
    lost = extra = 0
    for place in {*found, *expected}:
        there, wanted = found.get(place, Counter()), Counter(expected.get(place, ()))
        lost += (wanted - there).total()
        extra += (there - wanted).total()
    return lost, extra


def _examples(table: Table, difference: Difference, reading: Changes) -> Iterator[dict[str, Any]]:
    """The first differences. Reads everything again, but only if there are differences."""
    shown = Differences(table.home.schema, difference)
    for batch in table.scan():
        shown.found(batch)
    for change in reading.changes() if shown.wants_expected else ():
        if not change.dead:
            shown.expected(change.sequence, change.rows, change.offsets, change.place)
    yield from shown.examples()
