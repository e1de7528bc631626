"""Real Lance tables for the tests of MemTable mode, and what they hold as plain Python values."""

from __future__ import annotations

import contextlib
import io
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from headgate.connectors.objects import ObjectStore, open_store
from headgate.retry import Retry
from headgate.shards.config import WriterConfig
from headgate.shards.home.home import home_at
from headgate.shards.rows.schema import PRIMARY_KEY
from headgate.shards.shard import TableHome
from headgate.shards.writer import ShardWriter
from tests.support.stores import FaultyStore

KEY = {PRIMARY_KEY: b"true"}
KEYED = pa.schema([pa.field("id", pa.int64(), False, KEY), pa.field("note", pa.string())])
PLAIN = pa.schema([pa.field("id", pa.int64(), False), pa.field("note", pa.string())])
AT_ONCE = Retry(attempts=3, base=0)
NO_RETRY = Retry(attempts=0)
MEMTABLE = WriterConfig(retry=AT_ONCE)
ASYNC = replace(MEMTABLE, durable_write=False, max_wal_flush_interval=3600.0)

Pairs = list[tuple[int, str]]


class LanceFaultyStore(FaultyStore):
    """Faults for us, while pylance reaches the same place directly."""

    def locate(self, key: str = "") -> tuple[str, dict[str, str]]:
        return self.inner.locate(key)


def make_table(
    path: Path,
    schema: pa.Schema = KEYED,
    *,
    base: Pairs | pa.Table = (),
    text: bool = False,
    **mem_wal: Any,
) -> str:
    """A base with MemWAL, with these rows."""
    uri = str(path / f"t{uuid.uuid4().hex[:8]}")
    rows = base if isinstance(base, pa.Table) else pa.Table.from_batches([batch(base, schema)])
    dataset = lance.write_dataset(rows, uri)
    if text:
        dataset.create_scalar_index("note", "INVERTED")
    dataset.initialize_mem_wal(**mem_wal)
    return uri


def batch(pairs: Iterable[tuple[int, str | None]], schema: pa.Schema = KEYED) -> pa.RecordBatch:
    """Rows of (id, note)."""
    pairs = list(pairs)
    return pa.record_batch(
        [pa.array([i for i, _ in pairs], pa.int64()), pa.array([n for _, n in pairs], pa.string())], schema=schema
    )


def keys(*ids: int) -> pa.RecordBatch:
    """Keys to delete or to look up."""
    return pa.record_batch({"id": pa.array(ids, pa.int64())})


def pairs(rows: Any) -> Pairs:
    """(id, note) of a reader or a table, sorted."""
    table = rows.read_all() if isinstance(rows, pa.RecordBatchReader) else rows
    return sorted(zip(table.column("id").to_pylist(), table.column("note").to_pylist(), strict=True))


def home_over(store: ObjectStore, uri: str) -> TableHome:
    """The table, reached through another store than its own."""
    return replace(home_at(uri), store=store, wal_store=store)


def faulty(uri: str, **arguments: Any) -> LanceFaultyStore:
    """A store with faults around the table's."""
    return LanceFaultyStore(open_store(uri), **arguments)


def seen(uri: str, shard: uuid.UUID) -> Pairs:
    """What a new writer, which replays everything, shows."""
    with ShardWriter.open(uri, shard, MEMTABLE) as writer:
        return pairs(writer.scan())


@contextlib.contextmanager
def native_writer(uri: str, shard: uuid.UUID, **options: Any) -> Iterator[Any]:
    """pylance's own writer. THIS FENCES OURS."""
    writer = lance.dataset(uri).mem_wal_writer(str(shard), **options)
    try:
        yield writer
    finally:
        with contextlib.suppress(OSError), contextlib.redirect_stderr(io.StringIO()):
            writer.close()


def native_pairs(writer: Any) -> Pairs:
    """What a native writer's scan shows."""
    return pairs(writer.lsm_scanner().to_table())
