"""What a check of a table may find: every kind of damage has its own code. Values only.

A finding says where it is, what is wrong, what is lost and what is not, and what to do. Two severities: an *error*
means that something durable is missing or damaged: rows are lost, or a reader or writer will stop. A *warning* costs no
row and stops no reader or writer of headgate, but someone should look at it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning"]

RESTORE = "restore this object from a backup, or continue with an earlier clone or table checkpoint"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of damage: what it costs and what to do, unless a finding says something more specific."""

    severity: Severity
    lost: str
    do: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem."""

    code: str
    place: str
    """The object, relative to the table, or the shard and position."""
    what: str
    lost: str
    do: str

    @property
    def severity(self) -> Severity:
        """Severity of its code."""
        return KINDS[self.code].severity

    @property
    def is_error(self) -> bool:
        """True if something durable is missing or damaged."""
        return self.severity == "error"

    def value(self) -> dict[str, Any]:
        """The finding as plain values."""
        return {
            "code": self.code,
            "severity": self.severity,
            "place": self.place,
            "what": self.what,
            "lost": self.lost,
            "do": self.do,
        }


def finding(code: str, place: str, what: str, *, lost: str | None = None, do: str | None = None) -> Finding:
    """A finding with that code; parts that are not given come from the code's texts."""
    kind = KINDS[code]
    return Finding(code, place, what, lost or kind.lost, do or kind.do)


def confirmed(first: Iterable[Finding], again: Iterable[Finding]) -> list[Finding]:
    """Findings of both looks, as the second one reports them.

    A running stream flushes, folds and collects between two reads of one look; such a finding does not appear twice.
    """
    seen = {(one.code, one.place) for one in first}
    return [one for one in again if (one.code, one.place) in seen]


_NO_ROW = "no row"
_UPGRADE = "use the release of headgate that wrote it, or a later one"

KINDS: Mapping[str, Kind] = {
    # -- the table ------------------------------------------------------------
    "base-missing": Kind("error", "the compacted rows in the base; the shards still hold the rest", RESTORE),
    "base-damaged": Kind("error", "the rows in that file of the base; all other rows are intact", RESTORE),
    "base-not-a-table": Kind(
        "error",
        "nothing yet: shards and commit logs exist, but this base does not lead to them",
        "restore the base's version from before it was overwritten, or create the table again (its base rows stay)",
    ),
    "base-version-unreadable": Kind(
        "warning",
        "no row: a power cut destroyed the manifest of a base version that nothing relied on; readers use the "
        "version before it",
        "`headgate recover TABLE --apply`, or the start of the next writer, sets it aside",
    ),
    "base-version-torn": Kind(
        "error",
        "no acknowledged row: a power cut destroyed files of a base version that nothing relied on; readers of "
        "that version fail",
        "`headgate recover TABLE --apply`, or the start of the next writer, sets it aside",
    ),
    "base-tag-unreadable": Kind(
        "warning",
        "no row: a power cut destroyed a tag that nothing relied on; until it is repaired, Lance cannot read any tag",
        "`headgate recover TABLE --apply`, or the start of the next writer, sets it aside",
    ),
    "base-index-missing": Kind(
        "warning",
        "no row; searches of that index fail",
        "rebuild the index: `headgate index build TABLE --column COLUMN --rebuild`",
    ),
    "table-record-missing": Kind(
        "error",
        "no row; but sharding, key and the location of the WALs are lost",
        "restore table.json from a backup; it never changes, so any copy is good",
    ),
    "table-record-damaged": Kind(
        "error",
        "no row; but sharding, key and the location of the WALs are lost",
        "restore table.json from a backup; it never changes, so any copy is good",
    ),
    "wal-choice-damaged": Kind(
        "error",
        "no row; but the location of this clone's WALs is lost, so the clone cannot be opened",
        "restore wal_store.json from a backup; it never changes, so any copy is good",
    ),
    "record-damaged": Kind(
        "warning", "no row; only the information in this record", "restore it from a backup if you need the information"
    ),
    "record-newer": Kind("error", "nothing; this release of headgate cannot read it", _UPGRADE),
    # -- commit logs -----------------------------------------------------------
    "log-unreadable": Kind("error", "which batches of this stream count; their rows are hidden", RESTORE),
    "log-hole": Kind("error", "whether the batch with that number counts; its rows are hidden", RESTORE),
    "log-record-damaged": Kind("error", "whether the batch with that number counts; its rows are hidden", RESTORE),
    "log-record-misplaced": Kind("error", "the record that should be here; its batch is hidden", RESTORE),
    "log-fenced-batch": Kind(
        "error",
        "nothing yet: readers refuse a log with a batch of a fenced driver",
        "find out who wrote past the fence (a store without conditional puts?), and restore the log from a backup",
    ),
    "log-position-twice": Kind(
        "error",
        "nothing yet: readers refuse a log that lists a position twice",
        "find out who wrote the record, and restore the log from a backup",
    ),
    "log-position-fenced": Kind(
        "error",
        "the rows at this position may come from a fenced driver and be duplicates",
        "compare the batch with Kafka: `headgate verify`, and restore the log from a backup",
    ),
    "log-offsets-jump": Kind(
        "error",
        "the rows between the two offsets are missing or duplicated",
        "compare the table with Kafka: `headgate verify`; a clone taken before the jump can continue from there",
    ),
    "log-begins-late": Kind(
        "error",
        "the rows of the query's earlier batches: they went into another table, such as one dropped at this URI",
        "read them again with `headgate rewind`, or accept the loss with `headgate rewind --adopt`",
    ),
    "log-fence-missing": Kind(
        "error",
        "no row; a stalled driver may now commit in the place of its successor's open record",
        "stop every old driver of the stream, then start the stream again: it puts a new open record",
    ),
    "log-old-damaged": Kind(
        "warning", "nothing: a fold covers it, and its name still fences old drivers", "leave it where it is"
    ),
    "log-stray": Kind("warning", _NO_ROW, "delete it when no copy or backup tool is running there"),
    "fold-damaged": Kind(
        "error",
        "which batches up to that number count, unless all their records still exist",
        "delete the fold if every record up to its number exists (a fold only sums them up); otherwise restore it",
    ),
    "fold-differs": Kind(
        "error",
        "readers trust the fold: they hide rows that it omits and show rows that it adds",
        "delete the fold if all records it sums up exist; otherwise restore it from a backup",
    ),
    # -- archives of commit logs ---------------------------------------------------
    "archive-damaged": Kind(
        "error",
        "no row of the table; a ledger that is rebuilt, or still behind, stops here",
        "restore it from a backup; or delete it: a rebuilt ledger then shows its batches as `folded`",
    ),
    "archive-hole": Kind(
        "warning",
        "no row of the table; a rebuilt ledger shows these batches as `folded`",
        "restore the objects of the archive from a backup; without a backup, an existing ledger is the only "
        "copy of these rows",
    ),
    # -- manifests ---------------------------------------------------------------
    "manifest-missing": Kind(
        "error",
        "the flushed rows of this shard; the WAL entries are intact",
        "restore the latest manifest from a backup; do not open the shard before that: it would start empty",
    ),
    "manifest-damaged": Kind(
        "error",
        "no row: WAL entries and SSTables are intact, but the shard cannot be opened or read",
        "restore this version from a backup, or the table from a table checkpoint; do not delete it",
    ),
    "manifest-old-damaged": Kind(
        "warning", "no row; a later version is in force", "delete it, or leave it to garbage collection"
    ),
    "manifest-gap": Kind(
        "warning",
        "no row: headgate takes the highest version; native Lance may stop at the gap and read an old version",
        "put a copy of the next lower version there, or do not use native Lance on this shard until garbage "
        "collection has deleted the older ones",
    ),
    "manifest-latest-lost": Kind(
        "error",
        "the change in the lost manifest: a claim (an old writer may think it still owns the shard) or a flush "
        "(its rows may be duplicated, or missing if their WAL entries were deleted)",
        "stop every writer of the shard and restore the lost version from a backup before anything opens the shard",
    ),
    "manifest-goes-back": Kind(
        "error",
        "a value that only grows went back: a claim or a flush was undone",
        "stop every writer of the shard, and restore the later manifest from a backup",
    ),
    "manifest-stray": Kind("warning", _NO_ROW, "`headgate gc TABLE --apply` removes it"),
    "owner-without-log": Kind(
        "error", "which entries of the shard count: the log of the owning stream is missing", RESTORE
    ),
    # -- WALs ------------------------------------------------------------------------
    "wal-hole": Kind(
        "error",
        "the rows of the missing entries; readers fail at this position",
        f"{RESTORE}; never let a writer fill the slot",
    ),
    "wal-tip-missing": Kind(
        "error",
        "no row: all are in SSTables; but the fence against a stalled writer is missing",
        "stop every old writer of the shard, then open the shard once (for a stream: start it): that writes a "
        "new fence",
    ),
    "manifest-replay-after": Kind(
        "error",
        "if replay_after is wrong: every row that is in no SSTable. If the last entries were deleted: no row. "
        "Readers and writers fail at this shard",
        "restore the manifest, or the last entries, from a backup",
    ),
    "wal-stray": Kind(
        "warning",
        "no row; but native Lance takes it for an entry and may lose a stalled writer's row because of it",
        "`headgate gc TABLE --apply` removes it",
    ),
    "entry-empty": Kind("error", "the rows of this entry; readers fail at this position", RESTORE),
    "entry-damaged": Kind("error", "the rows of this entry; readers fail at this position", RESTORE),
    "entry-old-damaged": Kind(
        "warning",
        "no row: SSTables cover this position",
        "leave it where it is: the taken name still fences old writers",
    ),
    "entry-schema": Kind("error", "the rows of this entry: they do not fit the table's schema", RESTORE),
    "entry-twice": Kind(
        "error",
        "no row; but the rows of this entry are duplicated",
        "find out who copied it; do not delete either of them",
    ),
    "entry-after-fence": Kind(
        "error",
        "none; but rows of a fenced writer may be duplicates",
        "find out who wrote past the fence (a store without conditional puts?); compare the rows with their source",
    ),
    "fence-missing": Kind(
        "error",
        "no row; a stalled writer may now write in the place of its successor's barrier",
        "stop every old writer of the shard, then open the shard once (for a stream: start it): that writes a "
        "new fence",
    ),
    "fence-replaced": Kind(
        "error",
        "a fenced writer wrote in the place of its successor's barrier; rows may be duplicated",
        "stop every writer of the shard; compare the rows with their source, and restore the barrier",
    ),
    "key-in-wrong-shard": Kind(
        "error",
        "no row; a key in two shards is shown twice, and a delete removes only one of its rows",
        "stop every writer and run `headgate compact TABLE --flush --apply`: then the base has one row per "
        "key, which may be the older one. Then write the right rows of these keys with table.upsert",
    ),
    # -- what commit records list ----------------------------------------------------
    "commit-entry-missing": Kind("error", "the rows of a committed batch in this shard", RESTORE),
    "commit-entry-other": Kind(
        "error", "the rows of a committed batch: the entry here belongs to another attempt", RESTORE
    ),
    "commit-rows-differ": Kind(
        "error",
        "rows of a committed batch: the entries hold a different number than was committed",
        "compare the batch with Kafka: `headgate verify`",
    ),
    "dead-letters-missing": Kind("error", "dead letters of a committed batch; rows are not affected", RESTORE),
    "dead-letters-damaged": Kind("error", "the dead letters of this entry; rows are not affected", RESTORE),
    "dead-letters-stray": Kind("warning", "nothing", "delete it when no copy or backup tool is running there"),
    # -- SSTables --------------------------------------------------------------------
    "sstable-missing": Kind("error", "the rows of that flush", RESTORE),
    "sstable-damaged": Kind("error", "the rows of that flush, some or all of them", RESTORE),
    "sstable-rows-differ": Kind("error", "rows of that flush: it holds a different number than was flushed", RESTORE),
    "sstable-key-index": Kind(
        "warning",
        "no row; native Lance cannot scan the shard",
        "compact the table: that merges the SSTable into the base",
    ),
    "sstable-index-missing": Kind("warning", "no row; full-text searches of the shard fail", "compact the table"),
    # -- table checkpoints --------------------------------------------------------------
    "checkpoint-damaged": Kind(
        "error",
        "the checkpoint; the table itself is not affected, but garbage collection stops, since the checkpoint "
        "may pin any file",
        "restore the record, or delete it if nobody needs that checkpoint",
    ),
    "checkpoint-broken": Kind(
        "error",
        "rows of that checkpoint; the current table is not affected",
        "restore what is missing, or drop the checkpoint and take a new one",
    ),
    "checkpoint-unpinned": Kind(
        "warning",
        "nothing yet: the process that took it died half-way, or is still at it, or the tag was deleted. A cleanup "
        "of old versions by native Lance may now remove the checkpoint's base",
        "check again; if it stays so, take a new checkpoint and drop this one: `headgate checkpoint drop`",
    ),
    # -- consumers of the commit logs ------------------------------------------------------
    "consumer-damaged": Kind(
        "error",
        "the progress of a consumer of the commit log; no row, but garbage collection stops, since the "
        "consumer may need any file",
        "restore the record, or delete it if that consumer no longer exists or starts over",
    ),
    "consumer-broken": Kind(
        "error",
        "no row of the table; that consumer cannot continue, and gets an error that names a checkpoint to start from",
        "let the consumer start over from a checkpoint, or restore what is missing",
    ),
}
