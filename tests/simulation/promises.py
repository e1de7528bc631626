"""The promises, one function each, over the bytes that the store holds. Raises Violation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from uuid import UUID

from tests.simulation.codec import TableBytes
from tests.simulation.scheduler import Violation

TOPIC_ROWS = 1_000_000
"""Ids from here on are the topic's, those below direct writers'."""


def row_id(partition: int, offset: int) -> int:
    """The id of the row that stands in the topic there."""
    return TOPIC_ROWS * (partition + 1) + offset


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
    """Invariants 1 and 2: acknowledged rows once, others of direct writers once at most, of the topic what was read."""
    try:
        rows = Counter(table.visible())
    except LookupError as error:
        raise Violation(f"invariant 1: what a record or manifest lists is missing: {error}") from error
    twice = sorted(row for row, count in rows.items() if count > 1)
    _none("invariant 1: rows are there twice", twice)
    _none("invariant 2: acknowledged rows are lost", ledger.acknowledged - rows.keys())
    direct = {row for row in rows if row < TOPIC_ROWS}
    _none("invariant 1: rows that nobody put", direct - ledger.attempted)
    read = rows.keys() - direct
    committed = _committed(table)
    _none("invariant 1: rows of batches that no record has", read - committed)
    _none("invariant 1: rows of committed batches are lost", committed - read)


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
    ledger.opens |= opens


PROMISES: tuple[Callable[[TableBytes, Ledger], None], ...] = (
    exactly_once,
    nothing_after_not_durable,
    fenced,
    no_gap,
    kept,
)


def _committed(table: TableBytes) -> set[int]:
    """The rows of the topic from its start to where the log stands. A batch that does not continue is a violation."""
    found = set()
    for stream, log in table.logs.items():
        newest = max(log.folds, default=0)
        ends = {partition: end for _, partition, end in log.folds[newest]["ends"]} if newest else {}
        for sequence, record in sorted(log.records.items()):
            if sequence > newest and record["kind"] == "batch":
                for _, partition, start, until in record["sources"]:
                    if start != ends.get(partition, 0):
                        raise Violation(
                            f"invariant 1: record {sequence} of {stream} reads partition {partition} from {start}, and "
                            f"the log ends at {ends.get(partition, 0)}"
                        )
                    ends[partition] = until
        found |= {row_id(partition, at) for partition, end in ends.items() for at in range(end)}
    return found


def _none(what: str, found: Iterable[int]) -> None:
    if bad := sorted(found):
        raise Violation(f"{what}: {bad[:10]}")
