"""Whether a table holds what its streams committed: every row once, with the right values, and nothing else.

The topic is read again, up to where the commit logs say, decoded as the stream decoded it and compared with the table
row by row; dead letters are compared by their offsets. Reads only, fences nobody, and keeps 16 bytes per row. A stream
may go on meanwhile: the table is looked at as it was at one instant.

How a record was decoded is in the stream's open records: the decoder, and the columns that the table had then. A column
that was added later is null in such rows, one that was renamed has its new name, one that was dropped is not compared.

Not everything can be judged, and the report says in words what was not:
1. Rows that Spark made, or a decoder that is not headgate's: their values are not in the topic. Their offsets are
   compared, and how many rows there are as far as the log still has every record. On a table with a key each of them
   may have replaced any other row: then only keys that are there twice are found, and too many rows.
2. Rows that were let go by `headgate wal expire` are in the topic and not in the table.
3. Where the log does not say the decoder (an older stream) or what was done to the frame (`format("headgate")`), a
   difference may come from that.

The topic must still hold what the streams read; offsets that retention has removed are named and refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.dead_letters import DeadEntry, dead_entries, dead_letter_home
from headgate.checkpoints.log.names import no_stream
from headgate.checkpoints.log.records import OpenRecord, RewindRecord
from headgate.checkpoints.log.state import Head
from headgate.checkpoints.offline.retention import read_expired
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.connectors.kafka.reading import offsets, read_range
from headgate.errors import InvalidInput, Transient
from headgate.shards.rows.schema import TOMBSTONE
from headgate.shards.sharding import ByPartition, single
from headgate.streaming.dead_letter_replay import REPLAY
from headgate.streaming.decode.contract import Decoder
from headgate.streaming.decode.kinds import DEFAULT
from headgate.streaming.decode.provenance import Provenance, provenance_of
from headgate.streaming.verify.compare import Difference, Prints, beside, compare, newest
from headgate.streaming.verify.differences import Differences
from headgate.streaming.verify.history import (
    CommittedRange,
    Era,
    History,
    committed_ranges,
    eras_of,
    heads_of,
    history_of,
)
from headgate.streaming.write.ordering import ORDER
from headgate.streaming.write.rows import RowMaker
from headgate.table.table import Table

Progress = Callable[[str, int, int], None]
"""Called with what is read, how much of it was, and how much there is (0: not known)."""

TRIES = 10
"""A commit between the two readings of the logs means once more."""

_COLUMNS = ("key", "value", "partition", "offset")


@dataclass(frozen=True)
class Report:
    """What was compared, and what is off."""

    ranges: tuple[CommittedRange, ...]
    eras: tuple[tuple[Era, ...], ...]
    """Per range, how its records were decoded."""
    records: int
    """Read from the topic."""
    expected: int
    """Rows that the records come to: after updates and deletes, where the table has a key."""
    rows: int
    """Rows in the table."""
    dead_letters: int
    """Records that cannot become rows."""
    difference: Difference
    dead_letters_lost: int
    dead_letters_extra: int
    """Kept twice, or without a reason."""
    examples: tuple[dict[str, Any], ...] = ()
    expired: int = 0
    """Entries that were let go by `headgate wal expire`: their rows count as lost, and nobody can tell these apart."""
    rewinds: tuple[RewindRecord, ...] = ()
    """Of each stream the last one: what was read twice for it is expected twice, what it skipped is not expected."""
    late: tuple[str, ...] = ()
    """Streams whose log begins with a later batch than the first of its query, in words: rows are missing (R23)."""
    unjudged: tuple[str, ...] = ()
    """What could not be judged, and why: a sentence each."""
    doubts: tuple[str, ...] = ()
    """Why a difference may be no fault of the table: a sentence each."""

    @property
    def may_be_expired(self) -> bool:
        """Whether all that is off are rows that are not there, and entries were let go."""
        off = self.difference
        return bool(off.lost and self.expired) and not (
            off.duplicates or off.wrong or self.dead_letters_lost or self.dead_letters_extra or self.late
        )

    @property
    def holds(self) -> bool:
        """True if nothing that can be judged is off."""
        return not (self.difference or self.dead_letters_lost or self.dead_letters_extra or self.late)


def verify_table(
    table: Table,
    topics: Mapping[str, ConsumerConfig],
    decode: Decoder | None = None,
    progress: Progress = lambda what, done, total: None,
    registry_auth: str | None = None,
) -> Report:
    """Compare the table with the topics.

    1. at one instant: where every stream stands, and all rows of the table.
    2. what the streams have committed and how they decoded it, from the logs; every topic of them must be among
       `topics`. `decode` is for what the logs do not say, `registry_auth` for a registry that they name.
    3. the records of those ranges, decoded as the stream decoded them, the newest of each key.
    4. rows against rows, dead letters against records that cannot be rows. Made rows are counted.

    Raises InvalidInput for a topic that is missing or holds too little, DataLoss, Transient, PermissionDenied.
    """
    heads, found = _at_one_instant(table, progress)
    logs = {head.stream: _Log.of(table, head, decode, registry_auth) for head in heads}
    ranges = committed_ranges(heads, topics)
    eras = tuple(logs[part.stream].eras(part) for part in ranges)
    _check_topics(table, ranges, eras, topics)
    reading = _Reading(table, logs, list(zip(ranges, eras, strict=True)), topics, progress)
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
    return Report(
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


# -- what the table says -------------------------------------------------------------


def _at_one_instant(table: Table, progress: Progress) -> tuple[tuple[Head, ...], Prints]:
    for _ in range(TRIES):
        before = heads_of(table)
        rows = table.scan()
        if [head.sequence for head in heads_of(table)] == [head.sequence for head in before]:
            return before, Prints.of(table.home.schema, _counted(rows, progress))
    raise Transient(
        f"The table moved on during each of {TRIES} reads.",
        table=table.uri,
        advice="try again when fewer batches come, or stop the stream for a moment",
    )


def _counted(batches: Iterable[pa.RecordBatch], progress: Progress) -> Iterator[pa.RecordBatch]:
    done = 0
    for batch in batches:
        yield batch
        done += batch.num_rows
        progress("table", done, 0)


@dataclass(frozen=True)
class _Log:
    """One stream as its log tells it."""

    head: Head
    history: History
    said: tuple[tuple[OpenRecord, Provenance], ...]
    """Of its query's starts, the decoders."""
    replays: tuple[tuple[OpenRecord, Provenance], ...]
    """Of replays of its dead letters."""
    otherwise: Era
    """Where no record says how."""
    letters: tuple[DeadEntry, ...]
    """Committed when it was looked at."""

    @classmethod
    def of(cls, table: Table, head: Head, decode: Decoder | None, registry_auth: str | None) -> _Log:
        home = table.home
        history = history_of(table, head)
        said: list[tuple[OpenRecord, Provenance]] = []
        for record in history.said:
            made = provenance_of(record.decoder or {}, registry_auth)
            said.append((record, replace(made, decoder=made.decoder or decode)))
        replays = tuple(one for one in said if one[0].query_id.startswith(REPLAY))
        said = [one for one in said if one not in replays]
        if decode is not None:
            otherwise = Era(0, 0, Provenance("as told", home.schema, decode), False)
        elif said:
            otherwise = Era(0, 0, said[0][1], True)
        else:
            otherwise = Era(0, 0, _json_of(table), True)
        logs = dead_letter_home(home, head.stream)
        letters = tuple(
            entry
            for entry in dead_entries(home, CommitLog(home.records, head.stream, home.uri).read())
            if entry.position <= head.listed.get(logs.shard(f"{entry.log} of {head.stream}").id, -1)
        )
        return cls(head, history, tuple(said), replays, otherwise, letters)

    def eras(self, part: CommittedRange) -> tuple[Era, ...]:
        """How the records of a range were decoded."""
        return eras_of(part, self.said, self.otherwise)

    def others(self) -> int | None:
        """Rows that it wrote and that cannot be made again; None where its log does not say how many."""
        rows = 0
        for batch in self.history.batches:
            earlier = [made for record, made in self.said if record.sequence < batch.sequence]
            made = earlier[-1] if earlier else self.otherwise.made
            if not batch.is_replay and (batch.opaque or not made.can_judge):
                rows += batch.rows
        cannot = any(not made.can_judge for made in (self.otherwise.made, *(made for _, made in self.said)))
        return rows if self.history.complete or not cannot else None


def _json_of(table: Table) -> Provenance:
    try:
        return Provenance(DEFAULT.name, table.home.schema, DEFAULT.for_table(table, None, None))
    except InvalidInput:
        return Provenance("(not recorded)", table.home.schema, None)


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
                f"The topic no longer holds what was read of {part.topic}/{part.partition}: committed is "
                f"[{part.start}, {part.until}), there is [{first}, {end}).",
                advice="only what the topic still holds can be compared; verify within its retention",
            )


# -- what cannot be judged -------------------------------------------------------------


def _unjudged(
    logs: Mapping[str, _Log], ranges: Sequence[CommittedRange], eras: Sequence[Sequence[Era]]
) -> Iterator[str]:
    for stream, log in logs.items():
        mine = [era for part, decoded in zip(ranges, eras, strict=True) if part.stream == stream for era in decoded]
        why = {era.made.why_not: None for era in mine if not era.made.can_judge}
        if any(batch.opaque and not batch.is_replay for batch in log.history.batches):
            why["it has a source that is not Kafka"] = None
        counted = "offsets and row counts were compared"
        if log.others() is None:
            counted = "offsets alone were compared: its log no longer has every record, so rows cannot be counted"
        for reason in why:
            yield f"The values of stream {stream!r} cannot be judged, because {reason}; {counted}."


def _doubts(ranges: Sequence[CommittedRange], eras: Sequence[Sequence[Era]]) -> Iterator[str]:
    judged = [
        (part.stream, era) for part, decoded in zip(ranges, eras, strict=True) for era in decoded if era.made.can_judge
    ]
    for stream, kind in sorted({(stream, era.made.kind) for stream, era in judged if era.assumed}):
        yield f"Stream {stream!r} did not record its decoder, and {kind} was taken: name the right one by --decode."
    for stream in sorted({stream for stream, era in judged if era.made.changed is None}):
        yield (
            f'Stream {stream!r} was written by format("headgate"), which does not know whether its query filters or '
            "changes records before they are decoded: if it does, that is the difference."
        )


# -- what the topic says -------------------------------------------------------------


@dataclass(frozen=True)
class _Change:
    """Rows in storage form and today's columns, or dead letters."""

    sequence: int
    """Of the commit record that lists them, as far as that matters."""
    rows: pa.RecordBatch
    dead: bool
    place: Mapping[str, Any]
    offsets: pa.Array


@dataclass
class _Reading:
    """The changes that the records come to, as fingerprints, in the order in which they count."""

    table: Table
    logs: Mapping[str, _Log]
    parts: Sequence[tuple[CommittedRange, Sequence[Era]]]
    topics: Mapping[str, ConsumerConfig]
    progress: Progress
    records: int = 0
    letters_unread: int = 0
    """Replayed dead letters that no decoder that is known here reads."""
    dead: dict[tuple[str, str, int], list[int]] = field(default_factory=dict)
    """Per stream, topic and partition, the offsets of the records that cannot be rows."""
    _prints: list[Prints] = field(default_factory=list)
    _deleted: list[np.ndarray[Any, Any]] = field(default_factory=list)
    _sequences: list[np.ndarray[Any, Any]] = field(default_factory=list)

    def read(self) -> None:
        """Everything, once."""
        for change in self.changes():
            if change.dead:
                where = change.place
                found = self.dead.setdefault((where["stream"], where["topic"], where["partition"]), [])
                found += change.offsets.to_pylist()
            else:
                self._prints.append(Prints.of(self.table.home.schema, [change.rows]))
                self._deleted.append(np.asarray(change.rows.column(TOMBSTONE)))
                self._sequences.append(np.full(change.rows.num_rows, change.sequence, np.int64))

    def changes(self) -> Iterator[_Change]:
        """Range by range, then what replays made of dead letters."""
        self.records = self.letters_unread = 0
        for part, eras in self.parts:
            for era in eras:
                if era.made.can_judge:
                    yield from self._of_range(part, era)
        for stream, log in self.logs.items():
            yield from self._of_replays(stream, log)

    def unread(self) -> Iterator[str]:
        """What replays made of dead letters and nobody can make again, as a sentence."""
        if self.letters_unread:
            yield (
                f"The values of {self.letters_unread} replayed dead letters cannot be judged, because no decoder that "
                "the log records reads them; they were counted."
            )

    def _of_range(self, part: CommittedRange, era: Era) -> Iterator[_Change]:
        maker = RowMaker(era.made.columns, single(), era.made.decoder, topic=part.topic)
        cuts = self._cuts(part)
        what = f"{part.topic}/{part.partition}"
        place = {"stream": part.stream, "topic": part.topic, "partition": part.partition}
        read = read_range(self.topics[part.topic], part.topic, part.partition, era.start, era.until, columns=_COLUMNS)
        for batch in read:
            for sequence, piece in _pieces(batch, cuts, part.after):
                for routed in maker.from_kafka(piece):
                    assert routed.order is not None
                    rows = routed.rows if routed.dead else self.table.home.schema.adopted(routed.rows)
                    yield _Change(sequence, rows, routed.dead, place, routed.order.column(ORDER[-1]))
            self.records += batch.num_rows
            last = int(batch.column("offset")[-1].as_py())
            self.progress(what, last + 1 - part.start, part.until - part.start)

    def _of_replays(self, stream: str, log: _Log) -> Iterator[_Change]:
        """The letters that are rows by now, by the first replay whose decoder reads them."""
        ways = [(record.sequence, made) for record, made in log.replays if made.can_judge]
        for entry in log.letters if log.replays else ():
            left = entry.rows.filter(pa.array(~entry.waiting)).combine_chunks()
            for sequence, made in ways:
                for batch in left.to_batches():
                    done = RowMaker(made.columns, single(), made.decoder).made(batch)
                    for routed in done.parts:
                        assert routed.order is not None
                        rows = self.table.home.schema.adopted(routed.rows)
                        yield _Change(sequence, rows, False, {"stream": stream}, routed.order.column(ORDER[-1]))
                    left = pa.Table.from_batches([batch]).take(pa.array(sorted(done.bad), pa.int64())).combine_chunks()
            self.letters_unread += left.num_rows

    def expected(self) -> Prints:
        """What the table should hold."""
        prints = Prints.joined(self._prints)
        if not self.table.primary_key:
            return prints
        # Batches in the order of their records; within one by topic, partition and offset, as they were read here.
        order = np.argsort(np.concatenate([np.zeros(0, np.int64), *self._sequences]), kind="stable")
        deleted = np.concatenate([np.zeros(0, np.bool_), *self._deleted])
        return newest(prints.take(order), deleted[order])

    def _cuts(self, part: CommittedRange) -> list[tuple[int, int]]:
        """Where batches end, with their sequences. It matters only where a key may come from several partitions, or
        from a replay; what replays followed is known even where the batches' records are gone.
        """
        log = self.logs[part.stream]
        if not self.table.primary_key or (isinstance(self.table.sharding, ByPartition) and not log.replays):
            return []
        # A replay's clean stop repeats its open record: the first of them comes before the rows that it replayed.
        found = {
            end: record.sequence - 1
            for record, _ in reversed(log.replays)
            if part.is_of(record.sequence)
            for topic, partition, end in record.ends
            if (topic, partition) == (part.topic, part.partition) and end > part.start
        }
        for batch in log.history.batches:
            for one in batch.sources if part.is_of(batch.sequence) else ():
                if (one.topic, one.partition) == (part.topic, part.partition) and one.until > one.start:
                    found[one.until] = batch.sequence
        return sorted(found.items())


def _pieces(batch: pa.RecordBatch, cuts: Sequence[tuple[int, int]], began: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """`began` is the sequence that the pass began with: of more than that nothing is known without cuts."""
    if not cuts:
        yield began, batch
        return
    # What follows the last one was committed by a record that is gone since, after a replay if that was the last one.
    cuts = [*cuts, (np.iinfo(np.int64).max, cuts[-1][1] + 2)]
    numbers = np.searchsorted(np.array([until for until, _ in cuts]), batch.column("offset").to_numpy(), side="right")
    edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), batch.num_rows]
    for begin, end in pairwise(edges):
        yield cuts[numbers[begin]][1], batch.slice(begin, end - begin)


# -- dead letters, and examples --------------------------------------------------------


def _dead_letters(
    logs: Mapping[str, _Log],
    ranges: Sequence[CommittedRange],
    eras: Sequence[Sequence[Era]],
    expected: Mapping[tuple[str, str, int], Sequence[int]],
) -> tuple[int, int]:
    """How many are lost, and how many there are too many, of what was committed by then and can be judged. Those that
    a replay made rows of were letters as well, and what they became is compared as rows. Where the log does not say
    how they became rows, the decoder must read them at once.
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


def _examples(table: Table, difference: Difference, reading: _Reading) -> Iterator[dict[str, Any]]:
    """The first differences. Reads everything once more, which only a broken table pays."""
    shown = Differences(table.home.schema, difference)
    for batch in table.scan():
        shown.found(batch)
    for change in reading.changes() if shown.wants_expected else ():
        if not change.dead:
            shown.expected(change.sequence, change.rows, change.offsets, change.place)
    yield from shown.examples()
