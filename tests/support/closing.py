"""What every fault test starts from and ends with: one shard of integer rows, and the promises about it.

`visible` reads the shard as any reader would, from the store alone: the rows of the SSTables that the
latest manifest names, then those of the WAL above replay_after. `flush` and `collect` are the product's, without
Lance: they work in a store in memory.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from contextvars import copy_context
from dataclasses import replace
from functools import lru_cache
from typing import Generic, TypeVar

import pyarrow as pa

from headgate.checkpoints.gc.rules import collectable_wal, without_claims
from headgate.connectors.objects import ObjectStore
from headgate.errors import Fenced, HeadgateError
from headgate.retry import Retry
from headgate.shards import names
from headgate.shards.config import WriterConfig
from headgate.shards.manifest.commit import commit_generation
from headgate.shards.manifest.model import Manifest, SsTable
from headgate.shards.memtable.memtable import MemTable
from headgate.shards.memtable.replay import uncovered
from headgate.shards.rows.schema import RowSchema
from headgate.shards.shard import Shard, TableHome
from headgate.shards.wal.decoder import decode_entry
from headgate.shards.wal.entry import Entry
from headgate.shards.wal.tailer import WalTailer
from headgate.shards.writer import ShardWriter
from tests.support.stores import PATIENCE, Crash

T = TypeVar("T")

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())])
ROWS = RowSchema.of(SCHEMA)
AT_ONCE = Retry(attempts=3, base=0)
WAL_ONLY = WriterConfig(enable_memtable=False, retry=AT_ONCE)
ASYNC = replace(WAL_ONLY, durable_write=False, max_wal_flush_interval=3600.0)


def home_of(store: ObjectStore) -> TableHome:
    """A table of integers in that store, with retries that do not wait."""
    return TableHome.in_store(store.retrying(AT_ONCE), ROWS)


def rows(*ids: int, note: str = "n") -> pa.RecordBatch:
    """A batch with these ids."""
    return pa.record_batch({"id": list(ids), "note": [note] * len(ids)}, schema=SCHEMA)


def open_writer(store: ObjectStore, shard: uuid.UUID, config: WriterConfig = WAL_ONLY) -> ShardWriter:
    """A writer that reaches the shard through `store`."""
    return ShardWriter.open(home_of(store), shard, config)


@lru_cache(maxsize=100_000)
def _decoded(data: bytes) -> Entry:
    return decode_entry(memoryview(data))


def entry_at(shard: Shard, position: int) -> Entry:
    """The entry there. Raises NotFound, Corrupt."""
    return _decoded(bytes(shard.wal.get(shard.wal_key(position))))


def wal_positions(shard: Shard) -> list[int]:
    """Every position that is there."""
    found = (names.wal_position(info.key) for info in shard.wal.list(names.wal_folder(shard.id) + "/"))
    return sorted(position for position in found if position is not None)


def ids_of(entry: Entry) -> list[int]:
    """The ids that an entry holds."""
    return [row for batch in entry.batches for row in batch.column("id").to_pylist()]


def visible(shard: Shard) -> list[int]:
    """Every row a reader sees now. Raises AssertionError for a gap."""
    manifest = shard.manifests.latest()
    if manifest is None:
        return []
    seen = [row for table in manifest.sstables for row in _sstable_rows(shard, table)]
    above = [position for position in wal_positions(shard) if position > manifest.replay_after]
    expected = list(range(manifest.replay_after + 1, manifest.replay_after + 1 + len(above)))
    assert above == expected, f"a gap: replay_after {manifest.replay_after}, then {above}"
    return seen + [row for position in above for row in ids_of(entry_at(shard, position))]


def flush(writer: ShardWriter) -> Manifest:
    """The product's flush, with an SSTable that needs no Lance: its rows are ids in JSON.

    Raises Fenced, Transient, or Abandoned where another flush under the same claim was quicker.
    """
    shard, claim = writer.shard, writer.claim
    manifests = shard.manifests
    start = manifests.check_fenced(claim.epoch, claim.claim_id)
    assert start is not None
    table = MemTable(ROWS, start.generation, start.replay_after)
    entries = WalTailer(shard).read(start.replay_after + 1, claim.next_position)
    for part in uncovered(shard, start, entries):
        table.add(part.batches, part.position)
    if not table.rows:
        return start
    sstable = SsTable(start.generation, names.new_sstable(start.generation, claim.epoch))
    ids = table.table().column("id").to_pylist()
    shard.home.store.put_overwrite(_sstable_key(shard, sstable), json.dumps(ids).encode())
    try:
        return commit_generation(
            manifests, claim, sstable, started_from=start.replay_after, last_position=table.last_position
        )
    except Fenced as error:
        stored = shard.manifests.latest()
        if stored is not None and stored.held_by(claim.epoch, claim.claim_id):
            raise Abandoned(error.what) from error
        raise


class Abandoned(HeadgateError):
    """A flush that started from an older manifest."""


def collect(shard: Shard) -> list[int]:
    """Delete what the product's rules let go of a WAL (R5): no barrier, and never the tip."""
    manifest = shard.manifests.latest()
    covered = collectable_wal(wal_positions(shard), [manifest] if manifest else [])
    dead = [position for position in covered if not entry_at(shard, position).header.barrier]
    for position in dead:
        shard.wal.delete(shard.wal_key(position))
    return dead


def collect_manifests(shard: Shard) -> None:
    """Delete replaced manifests as the product's rules let them go, oldest first (R7): claims stay."""
    for version in without_claims(map(shard.manifests.read, shard.manifests.versions()[:-1])):
        shard.home.store.delete(names.manifest_key(shard.id, version))


def _sstable_key(shard: Shard, table: SsTable) -> str:
    return f"{names.shard_folder(shard.id)}/{table.path}/rows.json"


def _sstable_rows(shard: Shard, table: SsTable) -> list[int]:
    found: list[int] = json.loads(bytes(shard.home.store.get(_sstable_key(shard, table))))
    return found


def check_rows(shard: Shard, acked: Iterable[int], attempted: Iterable[int]) -> None:
    """Every acknowledged row exactly once, no other twice, nothing that nobody put."""
    counts = Counter(visible(shard))
    lost = sorted(row for row in acked if counts[row] == 0)
    twice = sorted(row for row, count in counts.items() if count > 1)
    unknown = sorted(set(counts) - set(attempted))
    assert not lost, f"acknowledged rows are lost: {lost}"
    assert not twice, f"rows are there twice: {twice}"
    assert not unknown, f"rows that nobody put: {unknown}"


def closing_checks(
    store: ObjectStore,
    shard_id: uuid.UUID,
    acked: Iterable[int],
    attempted: Iterable[int],
    predecessors: Iterable[ShardWriter] = (),
) -> None:
    """The same end for every fault test; `store` is one that works.

    1. rows: acknowledged ones exactly once, the others at most once; no gap.
    2. a fresh writer opens and writes, and its row is there.
    3. every predecessor is stopped, and nothing it tries becomes visible.
    4. the manifest names no position that is not durable; rows stand in the order of their epochs.
    """
    shard = home_of(store).shard(shard_id)
    acked, attempted = set(acked), set(attempted)
    check_rows(shard, acked, attempted)
    fresh, more, refused = 10**9, 10**9 + 1, 10**9 + 2
    successor = open_writer(store, shard_id)
    position = successor.put(rows(fresh)).positions[0]
    assert position == successor.stats().next_position - 1
    for predecessor in predecessors:
        try:
            predecessor.put(rows(refused)).wait()
        except (HeadgateError, Crash):  # a lone putter's own thread meets the death of its process
            pass
        else:
            raise AssertionError("a predecessor wrote after its successor had opened")
    successor.put(rows(more))
    successor.close()
    check_rows(shard, acked | {fresh, more}, attempted | {fresh, more})
    manifest = shard.manifests.latest()
    assert manifest is not None
    tip = wal_positions(shard)[-1] + 1
    assert manifest.last_seen < tip, "the manifest names an entry that is not there"
    assert manifest.replay_after < tip
    headers = [entry_at(shard, at).header for at in wal_positions(shard) if at > manifest.replay_after]
    epochs = [header.epoch for header in headers if not header.barrier]
    assert epochs == sorted(epochs), f"rows of an older epoch stand above those of a newer one: {epochs}"


class Background(Generic[T]):
    """A call in a thread of its own, for callers that stall. Whoever watches steps here watches those of the call."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=copy_context().run, args=(self._run,), daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result.append(self._call())
        except BaseException as error:
            self._error = error

    @property
    def running(self) -> bool:
        """Whether it has not come back yet."""
        return self._thread.is_alive()

    def result(self) -> T:
        """What it returned or raised."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the call did not come back"
        if self._error is not None:
            raise self._error
        return self._result[0]


class Steps:
    """Pause points for an opener: stops at one named step until released, and notes all of them.

    A driver takes the steps of its shards in a thread for each: where others must find it standing, all of them have
    to stand (`threads`). One that is still on its way would claim its shard at any moment.
    """

    def __init__(self, stop_at: str | None = None, *, threads: int = 1) -> None:
        self.stop_at = stop_at
        self.seen: list[str] = []
        self._standing = threading.Semaphore(0)
        self._threads = threads
        self._released = threading.Event()

    def __call__(self, step: str) -> None:
        self.seen.append(step)
        if step == self.stop_at:
            self._standing.release()
            assert self._released.wait(PATIENCE), "nobody released the step"

    def wait(self) -> None:
        """Until the opener stands at its step, with each of its threads."""
        for _ in range(self._threads):
            came = self._standing.acquire(timeout=PATIENCE)
            assert came, f"the opener never came to {self.stop_at!r}, only to {self.seen}"

    def release(self) -> None:
        """Let it go on."""
        self._released.set()


def fenced(call: Callable[[], object]) -> Fenced:
    """The Fenced that the call raises."""
    try:
        call()
    except Fenced as error:
        return error
    raise AssertionError("the call was not fenced")
