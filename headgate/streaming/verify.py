"""Whether a table holds what its streams committed: every row once, with the right values, and nothing else.

The topic is read again, up to where the commit logs say, decoded anew and compared with the table row by row;
dead letters are compared by their offsets. Reads only, fences nobody, and keeps 16 bytes per row. A stream may
go on meanwhile: the table is looked at as it was at one instant.

The topic must still hold what the streams read; offsets that retention has removed are named and refused. Rows that
were let go by `headgate wal expire` are in the topic and not in the table: the report says that there are such.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.checkpoints.commit_log import CommitLog
from headgate.checkpoints.expiring import read_expired
from headgate.checkpoints.log_state import Head
from headgate.checkpoints.records import RewindRecord
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.connectors.kafka.reading import offsets, read_range
from headgate.errors import InvalidInput, Transient
from headgate.shards.schema import TOMBSTONE
from headgate.shards.sharding import ByPartition, single
from headgate.streaming.committed import CommittedRange, History, committed_ranges, heads_of, history_of
from headgate.streaming.compare import Difference, Prints, compare, newest
from headgate.streaming.dead_letters import dead_entries, dead_letter_home
from headgate.streaming.decoded import Decoder
from headgate.streaming.rows import RowMaker
from headgate.table import Table

Progress = Callable[[str, int, int], None]
"""Called with what is read, how much of it was, and how much there is (0: not known)."""

EXAMPLES = 5
"""Rows shown of each kind of fault: enough to see a pattern."""

TRIES = 10
"""A commit between the two readings of the logs means once more."""

_COLUMNS = ("key", "value", "partition", "offset")


@dataclass(frozen=True)
class Report:
    """What was compared, and what is off."""

    ranges: tuple[CommittedRange, ...]
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

    @property
    def may_be_expired(self) -> bool:
        """Whether all that is off are rows that are not there, and entries were let go."""
        off = self.difference
        return bool(off.lost and self.expired) and not (
            off.duplicates or off.wrong or self.dead_letters_lost or self.dead_letters_extra or self.late
        )

    @property
    def holds(self) -> bool:
        """Whether the promise does."""
        return not (self.difference or self.dead_letters_lost or self.dead_letters_extra or self.late)


def verify_table(
    table: Table,
    topics: Mapping[str, ConsumerConfig],
    decode: Decoder,
    progress: Progress = lambda what, done, total: None,
) -> Report:
    """Compare the table with the topics.

    1. at one instant: where every stream stands, and all rows of the table.
    2. what the streams have committed, from the logs; every topic of them must be among `topics`.
    3. the records of those ranges, decoded as the stream decodes them, the newest of each key.
    4. rows against rows, dead letters against records that cannot be rows.

    Raises InvalidInput for a topic that is missing or holds too little, DataLoss, Transient, PermissionDenied.
    """
    heads, found = _at_one_instant(table, progress)
    histories = {head.stream: history_of(table, head) for head in heads}
    ranges = committed_ranges(heads, topics)
    _check_topics(table, ranges, topics)
    reading = _Reading(table, decode, histories, progress)
    for part in ranges:
        reading.read(part, topics[part.topic])
    records, expected = reading.records, reading.expected()
    difference = compare(expected, found, keyed=bool(table.primary_key))
    lost, extra = _dead_letters(table, heads, reading.dead)
    examples: tuple[dict[str, Any], ...] = ()
    if difference:
        examples = tuple(_examples(table, difference, ranges, topics, reading))
    return Report(
        ranges=ranges,
        records=records,
        expected=len(expected),
        rows=len(found),
        dead_letters=sum(map(len, reading.dead.values())),
        difference=difference,
        dead_letters_lost=lost,
        dead_letters_extra=extra,
        examples=examples,
        expired=sum(one["entries"] for shard_id in table.shard_ids() for one in read_expired(table.home, shard_id)),
        rewinds=tuple(head.rewound for head in heads if head.rewound is not None),
        late=tuple(f"Stream {name!r}: {one.late}" for name, one in histories.items() if one.late is not None),
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


def _check_topics(table: Table, ranges: Sequence[CommittedRange], topics: Mapping[str, ConsumerConfig]) -> None:
    if not ranges:
        raise InvalidInput(
            "No stream has committed anything to this table.", table=table.uri, advice="run `headgate ingest` first"
        )
    committed = {part.topic for part in ranges}
    if unknown := sorted(set(topics) - committed):
        raise InvalidInput(f"No stream has read the topic {unknown[0]!r} into this table.", known=sorted(committed))
    if missing := sorted(committed - set(topics)):
        raise InvalidInput(
            f"The table also has rows of the topic {missing[0]!r}.",
            table=table.uri,
            advice=f"verify all of its topics together: {' '.join(f'--topic {topic}' for topic in sorted(committed))}",
        )
    for topic, consumer in topics.items():
        there = offsets(consumer, topic)
        for part in ranges:
            first, end = there.get(part.partition, (0, 0)) if part.topic == topic else (part.start, part.until)
            if part.until > part.start and (first > part.start or end < part.until):
                raise InvalidInput(
                    f"The topic no longer holds what was read of {topic}/{part.partition}: committed is "
                    f"[{part.start}, {part.until}), there is [{first}, {end}).",
                    advice="only what the topic still holds can be compared; verify within its retention",
                )


# -- what the topic says -------------------------------------------------------------


@dataclass
class _Reading:
    """The changes that the records come to, as fingerprints, in the order in which they count."""

    table: Table
    decode: Decoder
    histories: Mapping[str, History]
    progress: Progress
    records: int = 0
    dead: dict[tuple[str, str, int], list[int]] = field(default_factory=dict)
    """Per stream, topic and partition, the offsets of the records that cannot be rows."""
    _prints: list[Prints] = field(default_factory=list)
    _deleted: list[np.ndarray[Any, Any]] = field(default_factory=list)
    _sequences: list[np.ndarray[Any, Any]] = field(default_factory=list)

    def read(self, part: CommittedRange, consumer: ConsumerConfig) -> None:
        """The records of a range, added."""
        schema = self.table.home.schema
        for sequence, rows, dead in self.rows_of(part, consumer):
            if dead:
                found = self.dead.setdefault((part.stream, part.topic, part.partition), [])
                found += rows.column("offset").to_pylist()
            else:
                self._prints.append(Prints.of(schema, [rows]))
                self._deleted.append(np.asarray(rows.column(TOMBSTONE)))
                self._sequences.append(np.full(rows.num_rows, sequence, np.int64))

    def rows_of(self, part: CommittedRange, consumer: ConsumerConfig) -> Iterator[tuple[int, pa.RecordBatch, bool]]:
        """Rows in storage form, or dead letters, with the sequence of the commit record that lists them."""
        maker = RowMaker(self.table.home.schema, single(), self.decode, topic=part.topic)
        cuts = self._cuts(part)
        what = f"{part.topic}/{part.partition}"
        for batch in read_range(consumer, part.topic, part.partition, part.start, part.until, columns=_COLUMNS):
            for sequence, piece in _pieces(batch, cuts, part.after):
                for routed in maker.from_kafka(piece):
                    yield sequence, routed.rows, routed.dead
            self.records += batch.num_rows
            last = int(batch.column("offset")[-1].as_py())
            self.progress(what, last + 1 - part.start, part.until - part.start)

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
        """Where batches end, with their sequences. Only where a key may come from several partitions it matters."""
        if not self.table.primary_key or isinstance(self.table.sharding, ByPartition):
            return []
        return [
            (one.until, batch.sequence)
            for batch in self.histories[part.stream].batches
            if part.is_of(batch.sequence)
            for one in batch.sources
            if (one.topic, one.partition) == (part.topic, part.partition) and one.until > one.start
        ]


def _pieces(batch: pa.RecordBatch, cuts: Sequence[tuple[int, int]], began: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """`began` is the sequence that the pass began with: of more than that nothing is known without cuts."""
    if not cuts:
        yield began, batch
        return
    # What follows the last one was committed by a record that is gone since.
    cuts = [*cuts, (np.iinfo(np.int64).max, cuts[-1][1] + 1)]
    numbers = np.searchsorted(np.array([until for until, _ in cuts]), batch.column("offset").to_numpy(), side="right")
    edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), batch.num_rows]
    for begin, end in pairwise(edges):
        yield cuts[numbers[begin]][1], batch.slice(begin, end - begin)


# -- dead letters, and examples --------------------------------------------------------


def _dead_letters(
    table: Table, heads: Sequence[Head], expected: Mapping[tuple[str, str, int], Sequence[int]]
) -> tuple[int, int]:
    """How many are lost, and how many there are too many, of what was committed by then."""
    home = table.home
    found: dict[tuple[str, str, int], Counter[int]] = {}
    for head in heads:
        logs = dead_letter_home(home, head.stream)
        for entry in dead_entries(home, CommitLog(home.records, head.stream, home.uri).read()):
            if entry.position > head.listed.get(logs.shard(f"{entry.log} of {head.stream}").id, -1):
                continue
            # Those that a replay made rows of are rows by now.
            rows = entry.rows.filter(pa.array(entry.waiting))
            places = zip(*(rows.column(name).to_pylist() for name in ("topic", "partition", "offset")), strict=True)
            for topic, partition, offset in places:
                found.setdefault((head.stream, topic, partition), Counter())[offset] += 1
    lost = extra = 0
    for place in {*found, *expected}:
        there, wanted = found.get(place, Counter()), Counter(expected.get(place, ()))
        lost += (wanted - there).total()
        extra += (there - wanted).total()
    return lost, extra


def _examples(
    table: Table,
    difference: Difference,
    ranges: Sequence[CommittedRange],
    topics: Mapping[str, ConsumerConfig],
    reading: _Reading,
) -> Iterator[dict[str, Any]]:
    """A few rows of each kind. Reads everything once more, which only a broken table pays."""
    left = {"duplicate": EXAMPLES, "wrong": EXAMPLES, "lost": EXAMPLES}
    schema = table.home.schema
    for batch in table.scan():
        keys = Prints.of(schema, [batch]).keys
        for kind, concerned in (("duplicate", difference.duplicate_keys), ("wrong", difference.wrong_keys)):
            yield from _picked(kind, batch, np.isin(keys, concerned), left)
    for part in ranges if difference.lost else ():
        for _, rows, dead in reading.rows_of(part, topics[part.topic]):
            if not dead:
                lost = np.isin(Prints.of(schema, [rows]).keys, difference.lost_keys)
                place = {"topic": part.topic, "partition": part.partition}
                yield from _picked("lost", rows.drop_columns([TOMBSTONE]), lost, left, **place)


def _picked(
    kind: str, rows: pa.RecordBatch, which: np.ndarray[Any, Any], left: dict[str, int], **place: Any
) -> Iterator[dict[str, Any]]:
    chosen = np.flatnonzero(which)[: left[kind]]
    left[kind] -= len(chosen)
    for row in rows.take(pa.array(chosen)).to_pylist():
        yield {"fault": kind, **place, "row": row}
