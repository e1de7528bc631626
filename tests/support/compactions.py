"""Tables with and without a key for the tests of compaction, and what they hold as plain Python values."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from headgate.checkpoints.jobs.compact import CompactRound, compact_round
from headgate.checkpoints.jobs.policy import CompactLimits
from headgate.connectors.objects import open_store
from headgate.retry import Retry
from headgate.shards.config import WriterConfig
from headgate.shards.manifest.model import Manifest
from headgate.shards.shard import Claim, Shard
from headgate.shards.sharding import Sharding
from headgate.shards.wal.appender import WalAppender
from headgate.shards.writer import ShardWriter
from headgate.table.create import create_table
from headgate.table.table import Table, open_table
from tests.support.datasets import LanceFaultyStore, Pairs, pairs

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())])
AT_ONCE = Retry(attempts=3, base=0)
CONFIG = WriterConfig(retry=AT_ONCE)
KINDS = ("key", "no key")


def make_table(path: Path, kind: str, sharding: Sharding | None = None) -> Table:
    """A new, empty table."""
    return create_table(str(path), SCHEMA, primary_key="id" if kind == "key" else None, sharding=sharding)


def rows(*found: tuple[int, str]) -> pa.RecordBatch:
    return pa.record_batch({"id": [i for i, _ in found], "note": [n for _, n in found]}, schema=SCHEMA)


def keys(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64())})


def shard_of(table: Table, name: str | None = None) -> Shard:
    return table.home.shard(name or table.sharding.known_names()[0])


def manifest_of(table: Table, name: str | None = None) -> Manifest:
    found = shard_of(table, name).manifests.latest()
    assert found is not None
    return found


def open_writer(table: Table, name: str | None = None) -> ShardWriter:
    return ShardWriter.open(table.home, shard_of(table, name).id, CONFIG)


def layered(table: Table, kind: str) -> Pairs:
    """Three SSTables and a tail: keys put, put again, deleted, put after a delete. What a scan shows."""
    with open_writer(table) as writer:
        writer.put(rows((1, "a"), (2, "a"), (3, "a")))
        writer.flush_memtable()
        writer.put(rows((1, "b"), (4, "b")))
        if kind == "key":
            writer.delete(keys(2, 77))
        writer.flush_memtable()
        writer.put(rows((2, "c"), (5, "c")))
        if kind == "key":
            writer.delete(keys(3))
        writer.flush_memtable()
        writer.put(rows((6, "tail")))
    if kind == "key":
        return [(1, "b"), (2, "c"), (4, "b"), (5, "c"), (6, "tail")]
    return sorted([(1, "a"), (2, "a"), (3, "a"), (1, "b"), (4, "b"), (2, "c"), (5, "c"), (6, "tail")])


class Models:
    """Layered tables, made once and copied as often as tests like."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, tuple[Table, Pairs]] = {}

    def copy(self, path: Path, kind: str) -> tuple[Table, Pairs]:
        """A table with two fragments of a base under three SSTables and a tail, and what it shows."""
        if kind not in self._made:
            table = make_table(self._folder / kind, kind)
            append_native(table, (2, "base"), (3, "base"), (70, "base"), (71, "base"))
            append_native(table, (72, "base"))
            below = [(70, "base"), (71, "base"), (72, "base")]
            if kind != "key":
                below += [(2, "base"), (3, "base")]
            self._made[kind] = table, sorted([*layered(table, kind), *below])
        made, expected = self._made[kind]
        return open_table(str(shutil.copytree(made.uri, path))), expected


def scanned(table: Table) -> Pairs:
    return pairs(table.scan())


def in_base(table: Table) -> Pairs:
    """As native pylance reads it."""
    return pairs(lance.dataset(table.uri).to_table())


def through(table: Table, store: LanceFaultyStore) -> Table:
    """The same table, reached through a store with faults."""
    return replace(table, home=replace(table.home, store=store, wal_store=store).retrying(AT_ONCE))


def faulty(table: Table, **arguments: Any) -> LanceFaultyStore:
    return LanceFaultyStore(open_store(table.uri), **arguments)


def claimed(table: Table, names: Iterable[str] | None = None) -> dict[str, Claim]:
    """Claims of the shards. THIS FENCES their writers."""
    wanted = table.sharding.known_names() if names is None else names
    return {name: WalAppender.open(shard_of(table, name).retrying(AT_ONCE)).claim for name in wanted}


def one_round(
    claims: dict[str, Claim],
    limits: CompactLimits = CompactLimits(),  # noqa: B008
) -> CompactRound | None:
    return compact_round(claims, limits)


def append_native(table: Table, *found: tuple[int, str]) -> None:
    """Somebody appends to the base without headgate."""
    dataset = lance.dataset(table.uri)
    new = pa.Table.from_batches([rows(*found)])
    for name in dataset.schema.names[2:]:
        new = new.append_column(dataset.schema.field(name), pa.nulls(new.num_rows, dataset.schema.field(name).type))
    lance.write_dataset(new.rename_columns(dataset.schema.names).cast(dataset.schema), table.uri, mode="append")
