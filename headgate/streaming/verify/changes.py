"""The rows that a table should hold, and the dead letters, as fingerprints, from the records of its topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.connectors.kafka.options import ConsumerConfig
from headgate.connectors.kafka.reading import read_range
from headgate.shards.rows.schema import TOMBSTONE
from headgate.shards.sharding import ByPartition, single
from headgate.streaming.decode.metadata import WithMetadata
from headgate.streaming.verify.compare import Prints, newest
from headgate.streaming.verify.history import CommittedRange, Era
from headgate.streaming.verify.streams import StreamLog
from headgate.streaming.write.ordering import ORDER
from headgate.streaming.write.rows import RowMaker
from headgate.table.table import Table

ReadProgress = Callable[[str, int, int], None]
"""Called with the name of what is read, the amount read, and the total (0 if unknown)."""

_COLUMNS = ("key", "value", "partition", "offset")


@dataclass(frozen=True)
class Change:
    """Rows in storage form with the table's current columns, or dead letters."""

    sequence: int
    """The sequence of the commit record that lists them, as far as it matters."""
    rows: pa.RecordBatch
    dead: bool
    place: Mapping[str, Any]
    offsets: pa.Array


@dataclass
class Changes:
    """The changes that the records make, as fingerprints, in the order in which they apply."""

    table: Table
    logs: Mapping[str, StreamLog]
    parts: Sequence[tuple[CommittedRange, Sequence[Era]]]
    topics: Mapping[str, ConsumerConfig]
    progress: ReadProgress
    records: int = 0
    letters_unread: int = 0
    """Replayed dead letters that no known decoder reads."""
    dead: dict[tuple[str, str, int], list[int]] = field(default_factory=dict)
    """The offsets of records that cannot be decoded, per stream, topic and partition."""
    _prints: list[Prints] = field(default_factory=list)
    _deleted: list[np.ndarray[Any, Any]] = field(default_factory=list)
    _sequences: list[np.ndarray[Any, Any]] = field(default_factory=list)

    def read(self) -> None:
        """Read all changes once."""
        for change in self.changes():
            if change.dead:
                where = change.place
                found = self.dead.setdefault((where["stream"], where["topic"], where["partition"]), [])
                found += change.offsets.to_pylist()
            else:
                self._prints.append(Prints.of(self.table.home.schema, [change.rows]))
                self._deleted.append(np.asarray(change.rows.column(TOMBSTONE)))
                self._sequences.append(np.full(change.rows.num_rows, change.sequence, np.int64))

    def changes(self) -> Iterator[Change]:
        """Yield the changes range by range, then those of replayed dead letters."""
        self.records = self.letters_unread = 0
        for part, eras in self.parts:
            for era in eras:
                if era.made.can_judge:
                    yield from self._of_range(part, era)
        for stream, log in self.logs.items():
            yield from self._of_replays(stream, log)

    def unread(self) -> Iterator[str]:
        """Yield a sentence if there are replayed dead letters that cannot be decoded again."""
        if self.letters_unread:
            yield (
                f"The values of {self.letters_unread} replayed dead letters were not compared, because no "
                "recorded decoder reads them; they were only counted."
            )

    def _of_range(self, part: CommittedRange, era: Era) -> Iterator[Change]:
        maker = RowMaker(era.made.columns, single(), era.made.decoder, topic=part.topic)
        cuts = self._cuts(part)
        what = f"{part.topic}/{part.partition}"
        place = {"stream": part.stream, "topic": part.topic, "partition": part.partition}
        beside = era.made.decoder.reads if isinstance(era.made.decoder, WithMetadata) else ()
        columns = (*_COLUMNS, *(name for name in ("timestamp", "headers") if name in beside))
        read = read_range(self.topics[part.topic], part.topic, part.partition, era.start, era.until, columns=columns)
        for batch in read:
            for sequence, piece in _pieces(batch, cuts, part.after):
                for routed in maker.from_kafka(piece):
                    assert routed.order is not None
                    rows = routed.rows if routed.dead else self.table.home.schema.adopted(routed.rows)
                    yield Change(sequence, rows, routed.dead, place, routed.order.column(ORDER[-1]))
            self.records += batch.num_rows
            last = int(batch.column("offset")[-1].as_py())
            self.progress(what, last + 1 - part.start, part.until - part.start)

    def _of_replays(self, stream: str, log: StreamLog) -> Iterator[Change]:
        """The replayed letters, decoded by the first replay whose decoder reads them."""
        ways = [(record.sequence, made) for record, made in log.replays if made.can_judge]
        for entry in log.letters if log.replays else ():
            left = entry.rows.filter(pa.array(~entry.waiting)).combine_chunks()
            for sequence, made in ways:
                for batch in left.to_batches():
                    done = RowMaker(made.columns, single(), made.decoder, of_letters=True).make(batch)
                    for routed in done.parts:
                        assert routed.order is not None
                        rows = self.table.home.schema.adopted(routed.rows)
                        yield Change(sequence, rows, False, {"stream": stream}, routed.order.column(ORDER[-1]))
                    left = pa.Table.from_batches([batch]).take(pa.array(sorted(done.bad), pa.int64())).combine_chunks()
            self.letters_unread += left.num_rows

    def expected(self) -> Prints:
        """The rows that the table should hold."""
        prints = Prints.joined(self._prints)
        if not self.table.primary_key:
            return prints
        # In the order of the batches' records; within a batch by topic, partition and offset, as they were read here.
        order = np.argsort(np.concatenate([np.zeros(0, np.int64), *self._sequences]), kind="stable")
        deleted = np.concatenate([np.zeros(0, np.bool_), *self._deleted])
        return newest(prints.take(order), deleted[order])

    def _cuts(self, part: CommittedRange) -> list[tuple[int, int]]:
        """The end offsets of batches, with their sequences. Needed only if a key may come from several partitions, or
        from a replay. The offset at which a replay took place is known even if the records of batches are deleted.
        """
        log = self.logs[part.stream]
        if not self.table.primary_key or (isinstance(self.table.sharding, ByPartition) and not log.replays):
            return []
        # A replay's clean stop repeats its open record: the first one comes before the rows that it replayed.
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
    """Split a batch by cuts. `began` is the sequence at which the pass began; without cuts nothing more precise is
    known.
    """
    if not cuts:
        yield began, batch
        return
    # Rows after the last cut were committed by a deleted record; after a replay, if the last cut is one.
    cuts = [*cuts, (np.iinfo(np.int64).max, cuts[-1][1] + 2)]
    numbers = np.searchsorted(np.array([until for until, _ in cuts]), batch.column("offset").to_numpy(), side="right")
    edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), batch.num_rows]
    for begin, end in pairwise(edges):
        yield cuts[numbers[begin]][1], batch.slice(begin, end - begin)
