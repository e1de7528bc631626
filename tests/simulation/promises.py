"""The promises, one function each, over the bytes that the store holds. Raises Violation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from uuid import UUID

import pyarrow as pa

from tests.simulation.codec import TOPIC_ROWS, TableBytes
from tests.simulation.scheduler import Violation

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


def rows(schema: pa.Schema, *ids: int) -> pa.RecordBatch:
    """A batch with these ids; in other columns too."""
    return pa.record_batch([pa.array(ids, pa.int64())] * len(schema), schema=schema)


BATCH_ROWS = 500_000
"""From here to the topic's, ids are those of batch writes."""


def batch_rows(number: int) -> tuple[int, ...]:
    """The rows of the batch write with this id."""
    return tuple(range(BATCH_ROWS + 10 * number, BATCH_ROWS + 10 * number + 2))


@dataclass
class Ledger:
    """What the parties were told, and what they tried."""

    attempted: set[int] = field(default_factory=set)
    acknowledged: set[int] = field(default_factory=set)
    not_durable: set[int] = field(default_factory=set)
    """Named so by a writer that failed: safe to put again (R24)."""
    barriers: set[tuple[UUID, int]] = field(default_factory=set)
    opens: set[tuple[str, int]] = field(default_factory=set)
    """Open records by stream and sequence, that were seen."""


def exactly_once(table: TableBytes, ledger: Ledger) -> None:
    """Invariants 1 and 2: acknowledged rows, rows of batches as often as they were committed, others once at most."""
    if table.faults:
        raise Violation(table.faults[0])
    try:
        rows = Counter(table.visible())
    except LookupError as error:
        raise Violation(f"invariant 1: what a record or manifest lists is missing: {error}") from error
    _none("invariant 2: acknowledged rows are lost", ledger.acknowledged - rows.keys() - table.expired)
    direct = [(row, count) for row, count in rows.items() if row < TOPIC_ROWS]
    _none("invariant 1: rows are there twice", (row for row, count in direct if count > 1))
    _none("invariant 1: rows that nobody put", {row for row, _ in direct} - ledger.attempted)
    if len(rows) - len(direct) != len(table.committed) or any(
        rows[row] != count for row, count in table.committed.items()
    ):
        topic = Counter({row: count for row, count in rows.items() if row >= TOPIC_ROWS})
        _none("invariant 1: rows of committed batches are lost", (table.committed - topic).elements())
        _none(
            "invariant 1: rows are there twice, or of batches that no record has", (topic - table.committed).elements()
        )


def batches_are_whole(table: TableBytes, ledger: Ledger) -> None:
    """Of a batch write all rows are there, or none."""
    found = {row for row in table.visible() if BATCH_ROWS <= row < TOPIC_ROWS}
    for number in {(row - BATCH_ROWS) // 10 for row in found}:
        _none("a batch write is there in part: it lacks", set(batch_rows(number)) - found)


def nothing_after_not_durable(table: TableBytes, ledger: Ledger) -> None:
    """R24: rows that were named not durable are not visible."""
    if ledger.not_durable:
        _none("R24: rows were named not durable and are visible", ledger.not_durable & set(table.visible()))


def fenced(table: TableBytes, ledger: Ledger) -> None:
    """Invariant 3: no rows of a lower epoch stand above an entry of a higher one. (A barrier may: its opener is told so
    by the re-read, and stops.)
    """
    for shard_id, shard in table.shards.items():
        highest = -1
        for position, entry in sorted(shard.entries.items()):
            if shard.manifest is not None and position > shard.manifest.replay_after:
                if entry.epoch < highest and not entry.barrier:
                    raise Violation(
                        f"invariant 3: entry {position} of shard {str(shard_id)[:4]} has epoch {entry.epoch}, and "
                        f"epoch {highest} stands below it"
                    )
                highest = max(highest, entry.epoch)


def no_gap(table: TableBytes, ledger: Ledger) -> None:
    """Invariant 4: every position below the tip exists or is at or below replay_after."""
    for shard_id, shard in table.shards.items():
        if shard.manifest is not None and shard.entries:
            first = max(shard.manifest.replay_after + 1, 1)
            missing = [at for at in range(first, max(shard.entries)) if at not in shard.entries]
            _none(f"invariant 4: a gap in shard {str(shard_id)[:4]}", missing)


def kept(table: TableBytes, ledger: Ledger) -> None:
    """Invariant 5: fences stay (R5), and what a pin names."""
    there = {(shard_id, at) for shard_id, shard in table.shards.items() for at, e in shard.entries.items() if e.barrier}
    _none("invariant 5: barriers were deleted", (at for _, at in ledger.barriers - there))
    ledger.barriers |= there
    opens = {(name, at) for name, log in table.logs.items() for at, r in log.records.items() if r["kind"] == "open"}
    _none("invariant 5: open records were deleted", (at for _, at in ledger.opens - opens))
    # The log's next slot is above every fold. What comes into one below, where a batch was collected, counts for nobody
    # (R6; its opener puts it again), and the late delete of that batch may take it.
    ledger.opens |= {(name, at) for name, at in opens if at > max(table.logs[name].folds, default=0)}


PROMISES: tuple[Callable[[TableBytes, Ledger], None], ...] = (
    exactly_once,
    batches_are_whole,
    nothing_after_not_durable,
    fenced,
    no_gap,
    kept,
)


def _none(what: str, found: Iterable[int]) -> None:
    if bad := sorted(found):
        raise Violation(f"{what}: {bad[:10]}")
