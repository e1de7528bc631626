"""What a check of a table may find: every kind of damage by a code of its own. Values only.

A finding says where it is, what is wrong, what is lost by it and what is not, and what to do. Two severities:
an *error* is something durable that is missing or damaged, so that rows are gone, or a reader or writer will stop;
a *warning* costs no row and stops nobody of ours, and should be looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning"]

RESTORE = "restore this object from a backup, or go on with a clone or a table checkpoint from before"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of damage: what it costs and what to do, where a finding does not know better."""

    severity: Severity
    lost: str
    do: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it must be."""

    code: str
    place: str
    """The object, relative to the table, or the shard and position."""
    what: str
    lost: str
    do: str

    @property
    def severity(self) -> Severity:
        """By its code."""
        return KINDS[self.code].severity

    @property
    def is_error(self) -> bool:
        """Whether something durable is missing or damaged."""
        return self.severity == "error"

    def value(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "code": self.code,
            "severity": self.severity,
            "place": self.place,
            "what": self.what,
            "lost": self.lost,
            "do": self.do,
        }


def finding(code: str, place: str, what: str, *, lost: str | None = None, do: str | None = None) -> Finding:
    """A finding of that code, with the code's own words for what is not given."""
    kind = KINDS[code]
    return Finding(code, place, what, lost or kind.lost, do or kind.do)


def confirmed(first: Iterable[Finding], again: Iterable[Finding]) -> list[Finding]:
    """What two looks have both found, as the second one tells it.

    A living stream flushes, folds and collects between two reads of one look; nothing of that is found twice.
    """
    seen = {(one.code, one.place) for one in first}
    return [one for one in again if (one.code, one.place) in seen]


_NO_ROW = "no row"
_UPGRADE = "use the release of headgate that wrote it, or a later one"

KINDS: Mapping[str, Kind] = {
    # -- the table ------------------------------------------------------------
    "base-missing": Kind(
        "error", "the rows of the base, those that were compacted; the shards still hold the rest", RESTORE
    ),
    "base-damaged": Kind("error", "the rows in that file of the base; every other row is there", RESTORE),
    "base-not-a-table": Kind(
        "error",
        "nothing yet: shards and commit logs are there, but nobody opens them through this base",
        "restore the base's version from before it was overwritten, or create the table again (its base rows stay)",
    ),
    "base-version-unreadable": Kind(
        "warning",
        "no row: a power cut took the manifest of a version that nothing relied on; readers use the one before",
        "`headgate recover TABLE --apply`, or the next writer's open, sets it aside",
    ),
    "base-version-torn": Kind(
        "error",
        "no row that was acknowledged: a power cut took files of a version that nothing relied on; readers of it stop",
        "`headgate recover TABLE --apply`, or the next writer's open, sets it aside",
    ),
    "base-tag-unreadable": Kind(
        "warning",
        "no row: a power cut took a tag that nothing relied on; until then Lance reads no tag at all",
        "`headgate recover TABLE --apply`, or the next writer's open, sets it aside",
    ),
    "base-index-missing": Kind("warning", "no row; searches of that index fail", "build the index again"),
    "table-record-missing": Kind(
        "error",
        "no row; sharding, key and the place of the WALs are not known any more",
        "restore table.json from a backup; it never changes, so any copy will do",
    ),
    "table-record-damaged": Kind(
        "error",
        "no row; sharding, key and the place of the WALs are not known any more",
        "restore table.json from a backup; it never changes, so any copy will do",
    ),
    "wal-choice-damaged": Kind(
        "error",
        "no row; where the WALs of this clone lie is not known any more, and nobody can open it",
        "restore wal_store.json from a backup; it never changes, so any copy will do",
    ),
    "record-damaged": Kind(
        "warning", "no row; only what this record told people", "restore it from a backup if you want to know"
    ),
    "record-newer": Kind("error", "nothing; this release cannot read it", _UPGRADE),
    # -- commit logs -----------------------------------------------------------
    "log-unreadable": Kind("error", "which batches of this stream count; their rows are hidden", RESTORE),
    "log-hole": Kind("error", "whether the batch with that number counts; its rows are hidden", RESTORE),
    "log-record-damaged": Kind("error", "whether the batch with that number counts; its rows are hidden", RESTORE),
    "log-record-misplaced": Kind("error", "the record that belongs there; the batch is hidden", RESTORE),
    "log-fenced-batch": Kind(
        "error",
        "nothing yet: readers refuse a log with a batch of a driver that was fenced",
        "find out who wrote past the fence (a store without conditional puts?), and restore the log from a backup",
    ),
    "log-position-twice": Kind(
        "error",
        "nothing yet: readers refuse a log that lists a position twice",
        "find out who wrote the record, and restore the log from a backup",
    ),
    "log-position-fenced": Kind(
        "error",
        "the rows at that position may be a fenced driver's, and be there twice",
        "compare the batch with Kafka by `headgate verify`, and restore the log from a backup",
    ),
    "log-offsets-jump": Kind(
        "error",
        "the rows between the two offsets, or they are there twice",
        "compare the table with Kafka by `headgate verify`; a clone from before the jump streams on from there",
    ),
    "log-begins-late": Kind(
        "error",
        "the rows of the query's earlier batches: they went into another table, such as one that was dropped here",
        "read them again with `headgate rewind`, or accept that they are missing with `headgate rewind --adopt`",
    ),
    "log-fence-missing": Kind(
        "error",
        "no row; a stalled driver may now commit where its successor's open record stood",
        "stop every old driver of the stream, then start the stream again: it puts a new open record",
    ),
    "log-old-damaged": Kind(
        "warning", "nothing: a fold has summed it up, and its name still fences", "leave it where it is"
    ),
    "log-stray": Kind("warning", _NO_ROW, "delete it once no copy or backup tool is at work there"),
    "fold-damaged": Kind(
        "error",
        "which batches up to that number count, unless all their records are still there",
        "delete the fold if every record up to its number is there (it is only a sum); otherwise restore it",
    ),
    "fold-differs": Kind(
        "error",
        "readers believe the fold: rows that it leaves out are hidden, rows that it adds are shown",
        "delete the fold, if the records it sums up are all there; otherwise restore it from a backup",
    ),
    # -- archives of commit logs ---------------------------------------------------
    "archive-damaged": Kind(
        "error",
        "no row of the table; a ledger that is made anew, or has not caught up yet, stops there",
        "restore it from a backup; or delete it: a ledger then tells the batches that were in it as `folded`",
    ),
    "archive-hole": Kind(
        "warning",
        "no row of the table; a ledger that is made anew tells these batches as `folded`",
        "restore the objects of the archive from a backup; without one a ledger that has the rows is their only place",
    ),
    # -- manifests ---------------------------------------------------------------
    "manifest-missing": Kind(
        "error",
        "what was flushed of this shard; the WAL entries are there",
        "restore the latest manifest from a backup; do not open the shard before, it would start anew",
    ),
    "manifest-damaged": Kind(
        "error",
        "no row: WAL entries and SSTables are there, but nobody can open or read the shard",
        "restore this version from a backup, or the table from a table checkpoint; do not delete it",
    ),
    "manifest-old-damaged": Kind(
        "warning", "no row; a later version is in force", "leave it to garbage collection, or delete it"
    ),
    "manifest-gap": Kind(
        "warning",
        "no row: headgate takes the highest version; native Lance may stop at the gap and see an old one",
        "put a copy of the next lower version there, or keep native Lance out until the older ones are collected",
    ),
    "manifest-latest-lost": Kind(
        "error",
        "what the lost manifest said: a claim (an old writer may think it still owns the shard) or a flush (its rows "
        "may be shown twice, or be missing where their WAL entries were collected)",
        "stop every writer of the shard and restore the lost version from a backup before anything opens it",
    ),
    "manifest-goes-back": Kind(
        "error",
        "what only grows has gone back: a claim or a flush was undone",
        "stop every writer of the shard, and restore the later manifest from a backup",
    ),
    "manifest-stray": Kind("warning", _NO_ROW, "`headgate gc TABLE --apply` removes it"),
    "owner-without-log": Kind(
        "error", "which entries of the shard count: the log of the stream that owns it is gone", RESTORE
    ),
    # -- WALs ------------------------------------------------------------------------
    "wal-hole": Kind(
        "error", "the rows of the missing entries; readers stop there", f"{RESTORE}; never let a writer fill the slot"
    ),
    "wal-tip-missing": Kind(
        "error",
        "no row: all of them are in SSTables; the fence of a writer that stalled is gone",
        "stop every old writer of the shard, then open it once (a stream: start it): that puts a new fence",
    ),
    "manifest-replay-after": Kind(
        "error",
        "every row that is in no SSTable, if replay_after is wrong; no row, if the last entries were deleted. "
        "Readers and writers stop there",
        "restore the manifest, or the last entries, from a backup",
    ),
    "wal-stray": Kind(
        "warning",
        "no row; native Lance counts it as a position and may lose a stalled writer's row because of it",
        "`headgate gc TABLE --apply` removes it",
    ),
    "entry-empty": Kind("error", "the rows of this entry; readers stop there", RESTORE),
    "entry-damaged": Kind("error", "the rows of this entry; readers stop there", RESTORE),
    "entry-old-damaged": Kind(
        "warning",
        "no row: SSTables cover this position",
        "leave it where it is: a name that is taken still fences",
    ),
    "entry-schema": Kind("error", "the rows of this entry cannot be read as rows of the table", RESTORE),
    "entry-twice": Kind(
        "error", "no row; those of this entry are shown twice", "find out who copied it; do not delete either of them"
    ),
    "entry-after-fence": Kind(
        "error",
        "rows that a fenced writer put may be there twice",
        "find out who wrote past the fence (a store without conditional puts?); compare with the source of the rows",
    ),
    "fence-missing": Kind(
        "error",
        "no row; a writer that stalled may now write where its successor's barrier stood",
        "stop every old writer of the shard, then open it once (a stream: start it): that puts a new fence",
    ),
    "fence-replaced": Kind(
        "error",
        "a fenced writer wrote where its successor's barrier stood; rows may be there twice",
        "stop every writer of the shard; compare with the source of the rows, and restore the barrier",
    ),
    "key-in-wrong-shard": Kind(
        "error",
        "no row; a key that is in two shards is shown twice, and a delete of it hides one of the rows only",
        "stop every writer, `headgate compact TABLE --flush --apply`: the base has one row of a key, which may be the "
        "older one. Then write the right rows of these keys by table.upsert",
    ),
    # -- what commit records list ----------------------------------------------------
    "commit-entry-missing": Kind("error", "the rows of a committed batch in this shard", RESTORE),
    "commit-entry-other": Kind("error", "the rows of a committed batch: another attempt's entry stands there", RESTORE),
    "commit-rows-differ": Kind(
        "error",
        "rows of a committed batch: the entries hold another number than was committed",
        "compare the batch with Kafka by `headgate verify`",
    ),
    "dead-letters-missing": Kind("error", "dead letters of a committed batch; rows are not touched", RESTORE),
    "dead-letters-damaged": Kind("error", "the dead letters of this entry; rows are not touched", RESTORE),
    "dead-letters-stray": Kind("warning", "nothing", "delete it once no copy or backup tool is at work there"),
    # -- SSTables --------------------------------------------------------------------
    "sstable-missing": Kind("error", "the rows of that flush", RESTORE),
    "sstable-damaged": Kind("error", "the rows of that flush, in part or whole", RESTORE),
    "sstable-rows-differ": Kind("error", "rows of that flush: it holds another number than was flushed", RESTORE),
    "sstable-key-index": Kind(
        "warning",
        "no row; native Lance cannot scan the shard",
        "compact the table: the SSTable then goes into the base",
    ),
    "sstable-index-missing": Kind("warning", "no row; searches of the shard fail", "compact the table"),
    # -- table checkpoints --------------------------------------------------------------
    "checkpoint-damaged": Kind(
        "error",
        "the checkpoint; the table itself is not touched, but garbage collection stops: it may pin anything",
        "restore the record, or delete it if nobody needs that instant",
    ),
    "checkpoint-broken": Kind(
        "error",
        "rows of that instant; the table as it is now is not touched",
        "restore what is missing, or drop the checkpoint and take a new one",
    ),
    "checkpoint-unpinned": Kind(
        "warning",
        "nothing yet: whoever took it died half-way, or the tag was deleted, and a clean-up of old versions by native "
        "Lance may remove the checkpoint's base",
        "take a new checkpoint and drop this one",
    ),
    # -- consumers of the commit logs ------------------------------------------------------
    "consumer-damaged": Kind(
        "error",
        "how far a consumer of the commit log is; no row, but garbage collection stops: it may hold anything",
        "restore the record, or delete it if that consumer is gone or starts anew",
    ),
    "consumer-broken": Kind(
        "error",
        "no row of the table; that consumer cannot go on, and is told a checkpoint to start from",
        "let the consumer start anew from a checkpoint, or restore what is missing",
    ),
}
