"""Scans and point lookups beside plain `lance` on an equal compacted table: with 0, 4, 16 SSTables, and with a tail.

The peer is a Lance dataset with the very rows that the table shows, in one layer. Both open what they read in every
round, unless "held" is said: then one snapshot, or one open dataset, answers all lookups. "parts" reads the parts that
`spark.read` gives to its tasks one after the other in this process, without Spark; planned without a pin.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import lance
import numpy as np
import pyarrow as pa

from benchmarks.report import output_option, show_all
from benchmarks.rows import ROW_BYTES, SCHEMA, event_rows
from headgate.checkpoints.snapshots.parts import part_batches
from headgate.checkpoints.snapshots.snapshot import read_snapshot
from headgate.checkpoints.snapshots.splits import plan_read
from headgate.shards.config import WriterConfig
from headgate.table.create import create_table
from headgate.table.table import Table

CHUNK = 100_000
"""Rows that are written at once."""
Way = tuple[str, Callable[[], int]]


@dataclass(frozen=True)
class Layers:
    """What a table has above its base."""

    sstables: int
    tail: int
    """Bytes."""

    def __str__(self) -> str:
        tail = f" + {self.tail >> 20} MB tail" if self.tail else ""
        return f"base + {self.sstables} SSTables{tail}" if self.sstables or tail else "base alone"


@click.command()
@click.option("--rows", default=1_000_000, show_default=True, help="Rows of the base, of about 180 bytes.")
@click.option("--sstable-rows", default=20_000, show_default=True, help="Of one SSTable; half replace older rows.")
@click.option("--tail-mb", default=64, show_default=True, help="Megabytes of the WAL tail; half replace older rows.")
@click.option("--rounds", default=5, show_default=True, help="Scans of each, after one to warm up.")
@click.option("--lookups", default=20, show_default=True, help="Lookups of each, of one key.")
@click.option("--index/--no-index", default=True, show_default=True, help="A BTREE on the key, on both sides.")
@output_option
def main(rows: int, sstable_rows: int, tail_mb: int, rounds: int, lookups: int, index: bool, output: str) -> None:
    """Seconds of a scan and milliseconds of a lookup, and as a ratio to plain Lance's."""
    layers = [Layers(0, 0), Layers(4, 0), Layers(16, 0), Layers(4, tail_mb << 20)]
    scans: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for one in layers:
        with tempfile.TemporaryDirectory() as folder:
            table = _made(Path(folder) / "table", rows, sstable_rows, one, index)
            peer = _compacted(table, Path(folder) / "peer", index)
            scans += [{"rows": str(one), **line} for line in _scans(table, peer, rounds)]
            found += [{"rows": str(one), **line} for line in _lookups(table, peer, lookups, rows)]
    title = f"{rows:,} rows in the base, {sstable_rows:,} in an SSTable"
    show_all([(f"Scan; {title}", scans), (f"Lookup of one key; {title}", found)], output)


def _made(path: Path, rows: int, sstable_rows: int, layers: Layers, index: bool) -> Table:
    table = create_table(str(path), SCHEMA, primary_key="id")
    for start in range(0, rows, CHUNK):
        lance.write_dataset(_rows(table, np.arange(start, min(start + CHUNK, rows))), table.uri, mode="append")
    dataset = lance.dataset(table.uri)
    dataset.optimize.compact_files()
    if index:
        dataset.create_scalar_index("id", "BTREE")
    chance, last = np.random.default_rng(3), rows
    with table.writer("single", WriterConfig(max_memtable_rows=sstable_rows + 1)) as writer:
        for _ in range(layers.sstables):
            writer.put(_rows(table, _mixed(chance, rows, last, sstable_rows)))
            writer.flush_memtable()
            last += sstable_rows
    left = layers.tail
    with table.writer("single", WriterConfig(enable_memtable=False)) as writer:
        while left > 0:
            batch = _rows(table, _mixed(chance, rows, last, 5_000))
            writer.put(batch)
            left -= batch.nbytes
            last += 5_000
    return table


def _mixed(chance: np.random.Generator, rows: int, last: int, count: int) -> Any:
    """Keys of which half are there already."""
    older = chance.choice(rows, min(count // 2, rows), replace=False)
    return np.concatenate([older, np.arange(last, last + count - len(older))])


def _rows(table: Table, ids: Any) -> pa.Table:
    batch = event_rows(len(ids) * ROW_BYTES, seed=int(ids[0]) % 1_000)
    columns = [pa.array(ids.astype(np.int64)), *(batch.column(number) for number in range(1, batch.num_columns))]
    return pa.table(columns, schema=table.schema)


def _compacted(table: Table, path: Path, index: bool) -> str:
    """The same rows as one Lance dataset."""
    dataset = lance.write_dataset(
        table.scan(), str(path), data_storage_version=lance.dataset(table.uri).data_storage_version
    )
    if index:
        dataset.create_scalar_index("id", "BTREE")
    return str(path)


# -- scans -----------------------------------------------------------------------------


def _scans(table: Table, peer: str, rounds: int) -> list[dict[str, Any]]:
    ways: list[Way] = [
        ("lance", lambda: _count(lance.dataset(peer).to_batches())),
        ("table.scan", lambda: _count(table.scan())),
        ("parts", lambda: _parts(table)),
    ]
    counted = {name: way() for name, way in ways}
    assert len(set(counted.values())) == 1, counted
    took = _in_turns(ways, rounds)
    return [
        {"scan": name, "s": float(np.median(seconds)), "/ lance": _ratio(seconds, took["lance"])}
        for name, seconds in took.items()
    ]


def _parts(table: Table) -> int:
    plan = plan_read(table.home, table.shard_ids(), None)
    return sum(_count(part_batches(plan, part)) for part in plan.parts)


def _count(batches: Iterable[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


# -- lookups ---------------------------------------------------------------------------


def _lookups(table: Table, peer: str, count: int, rows: int) -> list[dict[str, Any]]:
    keys = [int(key) for key in np.random.default_rng(5).choice(rows, count, replace=False)]
    held, view = lance.dataset(peer), read_snapshot(table.home, table.shard_ids())
    asked: list[tuple[str, Callable[[int], pa.Table]]] = [
        ("lance, held", lambda key: held.to_table(filter=f"id = {key}")),
        ("headgate, held", lambda key: view.get(_key(table, key))),
        ("lance", lambda key: lance.dataset(peer).to_table(filter=f"id = {key}")),
        ("headgate, table.get", lambda key: table.get(_key(table, key))),
    ]
    took: dict[str, list[float]] = {name: [] for name, _ in asked}
    for number, key in enumerate([keys[0], *keys]):
        for name, ask in asked:
            start = time.perf_counter()
            assert ask(key).num_rows == 1
            if number:
                took[name].append(time.perf_counter() - start)
    lines = []
    for place, (name, seconds) in enumerate(took.items()):
        other = took["lance, held" if place < 2 else "lance"]
        lines.append({"lookup": name, "p50 ms": float(np.median(seconds)) * 1e3, "/ lance": _ratio(seconds, other)})
    return lines


def _key(table: Table, key: int) -> pa.RecordBatch:
    return pa.record_batch({"id": [key]}, schema=pa.schema([table.schema.field("id").remove_metadata()]))


def _in_turns(ways: Sequence[Way], rounds: int) -> dict[str, list[float]]:
    """Each starts a round once in a while; every round gives each a time."""
    took: dict[str, list[float]] = {name: [] for name, _ in ways}
    for number in range(rounds):
        for place in range(len(ways)):
            name, way = ways[(number + place) % len(ways)]
            start = time.perf_counter()
            way()
            took[name].append(time.perf_counter() - start)
    return took


def _ratio(seconds: Sequence[float], peer: Sequence[float]) -> float:
    return float(np.median(np.array(seconds) / np.array(peer)))


if __name__ == "__main__":
    main()
