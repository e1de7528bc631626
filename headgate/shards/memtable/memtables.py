"""The MemTables of one writer: an active one that grows, frozen ones that become SSTables, oldest first.

Promises:
1. In a snapshot each row is in exactly one place: a MemTable, or the SSTable that replaced it.
2. Generations are flushed in order; if one fails, the writer stops.
3. replay_after moves only with the SSTable that covers it, in one manifest write, and only if replay_after and
   generation are what the flush started from (R9).
4. Freezing and flushing run beside puts; only the budget makes puts wait.
5. A flush never leaves an entry unflushed that notes its generation or an older one, as native's entries do: entries of
   a generation below the manifest's are skipped. See `headgate.shards.memtable.notes`.

Locks: the WAL pipeline's is taken before the one in here, never after it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headgate import parallel
from headgate.errors import Closed, Fenced, HeadgateError, Poisoned, StoreError
from headgate.shards.config import WriterConfig
from headgate.shards.manifest.commit import commit_generation
from headgate.shards.manifest.model import Manifest, SsTable
from headgate.shards.memtable.memtable import MemTable, MemTableStats
from headgate.shards.memtable.notes import GenerationNotes
from headgate.shards.memtable.replay import IsVisible, ReplayedEntry, uncovered, untagged
from headgate.shards.shard import Claim
from headgate.shards.wal.tailer import WalTailer

WriteSsTable = Callable[[MemTable], SsTable]
"""Writes the SSTable of a frozen MemTable; it is durable when this returns."""


@dataclass(frozen=True)
class MemTablesSnapshot:
    """What a reader sees at one instant, oldest first."""

    generation: int
    """Generation of the oldest MemTable."""
    sstables: tuple[SsTable, ...]
    tables: tuple[pa.Table, ...]
    last_position: int
    """The snapshot has every visible row up to this position, and no later ones."""


class MemTables:
    """Thread-safe. Its flush thread starts with the first freeze."""

    def __init__(
        self,
        claim: Claim,
        manifest: Manifest,
        config: WriterConfig,
        write: WriteSsTable,
        visible: IsVisible = untagged,
    ) -> None:
        self._claim = claim
        self._manifest = manifest
        self._config = config
        self._write = write
        self._visible = visible
        self._schema = claim.shard.home.schema
        self._changed = threading.Condition()
        self._active = MemTable(self._schema, manifest.generation, manifest.replay_after)
        self._frozen: list[MemTable] = []
        self._thread: threading.Thread | None = None
        self._closing = False
        self._abandoned = False
        self._error: HeadgateError | None = None
        self._on_change: Callable[[], None] = lambda: None

    def listen(self, on_change: Callable[[], None]) -> None:
        """Call `on_change`, without holding a lock, when bytes leave memory and when the flush fails; also now, since a
        flush that a replay started may have failed already.
        """
        self._on_change = on_change
        on_change()

    # -- filling ---------------------------------------------------------------

    def restore(self, parts: Iterable[ReplayedEntry], notes: GenerationNotes = GenerationNotes()) -> None:  # noqa: B008
        """Insert what the WAL holds, before the tables are used. Flushes as it goes, within the budget.

        `notes` are those of the entries of all parts. Raises what `parts` raises, and the stored error.
        """
        assert not self._active.rows
        assert not self._frozen
        for part in parts:
            with self._changed:
                if self._may_end_before(part, notes):
                    self._make_room()
                self._active.add(part.batches, part.position)
        with self._changed:
            self._make_room()

    def insert(self, batches: Sequence[pa.RecordBatch], position: int, puts: int = 1) -> None:
        """Insert rows that became durable at a position. Freezes the MemTable when it is full."""
        with self._changed:
            self._active.add(batches, position, puts)
            if self._active.is_full(self._config):
                self._freeze()

    def insert_skipped(self, start: int, stop: int) -> None:
        """Insert the visible rows of [start, stop), which an append stepped over: a flush will cover these positions
        too.
        """
        shard = self._claim.shard
        entries = WalTailer(shard).read(start, stop)
        counted = (found for found in entries if self._visible(found.entry.header, found.position))
        for part in uncovered(shard, self.manifest, counted):
            self.insert(part.batches, part.position)

    def freeze_early(self) -> None:
        """The budget is used up: freeze the active MemTable, unless something is being flushed already."""
        with self._changed:
            if not self._frozen:
                self._freeze()

    def flush(self) -> None:
        """Freeze the active MemTable, and wait until its rows are in SSTables. Without rows nothing is written.

        Raises the stored error, or Closed.
        """
        with self._changed:
            self._freeze()
            upto = self._active.generation
            self._changed.wait_for(lambda: self._stopped or not self._frozen or self._frozen[0].generation >= upto)
            self._raise_if_stopped()

    def close(self) -> None:
        """Flush the frozen MemTables and end the thread; the active one stays only in the WAL.

        Raises the stored error.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        """The writer has failed: start no further flush, and do not wait for a running one.

        A running flush may still land: its rows are durable, and the claim decides.
        """
        with self._changed:
            self._closing = self._abandoned = True
            self._changed.notify_all()

    @property
    def _stopped(self) -> bool:
        return self._error is not None or self._abandoned

    def _raise_if_stopped(self) -> None:
        if self._error is not None:
            raise self._error
        if self._abandoned:
            raise Closed("This writer is closed.", **self._claim.shard.where())

    def _may_end_before(self, part: ReplayedEntry, notes: GenerationNotes) -> bool:
        """True if a flush may end right before this part.

        Never while this or a later part notes the active generation or an older one. Before a younger generation is
        noted, only at an entry that notes one itself, or if the budget is used up: ending among entries that note none
        uses up a generation number, and the remaining ones become part of the noted generation; a native writer that
        finds more there than its MemTable holds refuses to open.
        """
        if part.position <= notes.reach(self._active.generation):
            return False
        return part.position > notes.reach() or part.generation is not None or not self._within_budget()

    def _make_room(self) -> None:
        """Freeze the table if it is full or the budget is used up, and wait for the budget."""
        if self._active.is_full(self._config) or not (self._frozen or self._within_budget()):
            self._freeze()
        self._changed.wait_for(lambda: self._stopped or not self._frozen or self._within_budget())
        self._raise_if_stopped()

    def _freeze(self) -> None:
        """Freeze the active MemTable. Does nothing without rows, or after an error or close: then the rows are in the
        WAL.
        """
        done = self._active
        if not done.rows or self._stopped or self._closing:
            return
        done.frozen = True
        self._frozen.append(done)
        self._active = MemTable(self._schema, done.generation + 1, done.last_position)
        if self._thread is None:
            self._thread = parallel.thread("flush", self._run)
            self._thread.start()
        self._changed.notify_all()

    def _within_budget(self) -> bool:
        return self._nbytes() <= self._config.max_unflushed_memtable_bytes

    def _nbytes(self) -> int:
        return self._active.nbytes + sum(table.nbytes for table in self._frozen)

    # -- reading ---------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Bytes that no SSTable covers yet."""
        with self._changed:
            return self._nbytes()

    @property
    def error(self) -> HeadgateError | None:
        """Why flushing stopped, None while it works."""
        return self._error

    @property
    def manifest(self) -> Manifest:
        """The manifest as this writer last read or wrote it."""
        with self._changed:
            return self._manifest

    def snapshot(self) -> MemTablesSnapshot:
        """SSTables, frozen and active MemTables at one instant."""
        with self._changed:
            held = (*self._frozen, self._active)
            return MemTablesSnapshot(
                generation=held[0].generation,
                sstables=self._manifest.sstables,
                tables=tuple(table.table() for table in held),
                last_position=self._active.last_position,
            )

    def stats(self) -> tuple[MemTableStats, ...]:
        """Stats of the frozen MemTables, oldest first, then of the active one."""
        with self._changed:
            return tuple(table.stats() for table in (*self._frozen, self._active))

    # -- the flush thread --------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._frozen or self._closing)
                if not self._frozen or self._abandoned:
                    return
                oldest = self._frozen[0]
            try:
                manifest = self._flush_one(oldest)
            except BaseException as error:
                self._fail(oldest, error)
                return
            with self._changed:
                self._manifest = manifest
                self._frozen.pop(0)
                self._changed.notify_all()
            self._on_change()

    def _flush_one(self, table: MemTable) -> Manifest:
        """Write one generation to an SSTable and commit it to the manifest:

        1. write the SSTable under a unique name; a crash leaves a folder that nothing names.
        2. compare-and-set the manifest: the SSTable, replay_after and the next generation together, if replay_after and
           generation are what this flush started from (R9).
        3. if the outcome is unknown, read the manifest: if it names the SSTable, the write landed.
        """
        started_from = self.manifest
        sstable = self._config.retry.run(lambda: self._write(table))
        return commit_generation(
            self._claim.shard.manifests,
            self._claim,
            sstable,
            started_from=started_from.replay_after,
            last_position=table.last_position,
        )

    def _fail(self, table: MemTable, error: BaseException) -> None:
        if not isinstance(error, Fenced):
            reason = f" ({error.what.rstrip('.')})" if isinstance(error, StoreError) else ""
            poisoned = Poisoned(
                f"Flushing generation {table.generation} failed{reason}; its rows are safe in the WAL.",
                **self._claim.shard.where(),
                position=table.last_position,
                epoch=self._claim.epoch,
            )
            poisoned.__cause__ = error
            error = poisoned
        with self._changed:
            self._error = error
            self._changed.notify_all()
        self._on_change()
