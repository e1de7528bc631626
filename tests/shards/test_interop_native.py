"""Native pylance is the other side: it opens, replays and scans what our WAL-only writer wrote, and each fences
the other with its own error.
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from headgate.errors import Corrupt, InvalidInput
from headgate.shards.home.home import home_at
from headgate.shards.manifest.model import encode_manifest
from headgate.shards.names import manifest_key
from headgate.shards.shard import Shard
from headgate.shards.wal.decoder import decode_entry
from headgate.shards.wal.entry import Tags
from headgate.shards.wal.tailer import WalTailer
from headgate.shards.writer import ShardWriter
from tests.support.closing import WAL_ONLY, entry_at, fenced, wal_positions

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata={"lance-schema:unenforced-primary-key": "true"}),
        pa.field("text", pa.string()),
        pa.field("place", pa.struct([pa.field("x", pa.float64()), pa.field("name", pa.string())])),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("price", pa.decimal128(12, 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("blob", pa.binary()),
        pa.field("vector", pa.list_(pa.float32(), 2)),
        pa.field("day", pa.date32()),
    ],
    metadata={"owner": "someone"},
)


def row(number: int, text: str = "ours") -> dict[str, Any]:
    odd = number % 2
    return {
        "id": number,
        "text": text,
        "place": {"x": number / 2, "name": f"place {number}"} if odd else None,
        "tags": ["a", None, f"{number}"] if odd else [],
        "price": decimal.Decimal(number) / 4 if odd else None,
        "at": dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=number),
        "blob": bytes([number % 256]) * number,
        "vector": [float(number), 0.5],
        "day": dt.date(2024, 1, 1) + dt.timedelta(days=number),
    }


def batch(*numbers: int, text: str = "ours") -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([row(number, text) for number in numbers], schema=SCHEMA)


class Both:
    """One shard of one table, seen from both sides."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.dataset = lance.write_dataset(pa.Table.from_batches([batch(1000, text="base")]), uri)
        self.dataset.initialize_mem_wal(maintained_indexes=[])
        self.shard_id = uuid.uuid4()

    def ours(self, **config: Any) -> ShardWriter:
        return ShardWriter.open(self.uri, self.shard_id, replace(WAL_ONLY, **config))

    def native(self) -> Any:
        return self.dataset.mem_wal_writer(str(self.shard_id))

    @property
    def shard(self) -> Shard:
        return home_at(self.uri).shard(self.shard_id)

    def scanned_by(self, writer: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = writer.lsm_scanner().to_table().to_pylist()
        return sorted(found, key=lambda one: one["id"])


@pytest.fixture
def both(tmp_path: Path) -> Both:
    return Both(str(tmp_path / "table"))


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_native_opens_replays_and_scans_what_we_wrote(both: Both, compression: str | None) -> None:
    """Barrier at 0 and in the middle, tags, every kind of column, deletes and updates."""
    with both.ours(compression=compression) as writer:
        writer.put([batch(1, 2, 3), batch(4)])
        writer.put(batch(5, 6), Tags(None, ()))
    with both.ours(compression=compression) as writer:
        writer.put(batch(2, text="newer"))
        writer.delete(pa.record_batch({"id": pa.array([3, 1000], pa.int64())}))
        writer.put(batch(7))
    assert wal_positions(both.shard) == [0, 1, 2, 3, 4, 5, 6]
    native = both.native()
    expected = [row(1), row(2, "newer"), row(4), row(5), row(6), row(7)]
    assert both.scanned_by(native) == expected
    native.put(pa.Table.from_batches([batch(8, text="native")]))
    assert both.scanned_by(native) == [*expected, row(8, "native")]
    native.close()
    assert both.scanned_by(both.native()) == [*expected, row(8, "native")]


def test_native_reads_entries_tagged_with_an_attempt(both: Both) -> None:
    """The tags lie in the field metadata of `_tombstone`, the one place where native ignores them."""
    with both.ours() as writer:
        writer.put(batch(1), Tags("attempt"))
    assert [one["id"] for one in both.scanned_by(both.native())] == [1, 1000]


def test_our_open_fences_a_native_writer_with_natives_own_error(both: Both) -> None:
    native = both.native()
    native.put(pa.Table.from_batches([batch(1, text="native")]))
    ours = both.ours()
    assert ours.stats().epoch == 2
    with pytest.raises(OSError, match=r"fenced.*local epoch 1 < stored epoch 2"):
        native.put(pa.Table.from_batches([batch(2, text="native")]))
    assert ours.put(batch(3)).positions == (3,)
    ours.close()
    assert [one["id"] for one in both.scanned_by(both.native())] == [1, 3, 1000]


def test_natives_open_fences_our_writer_with_our_own_error(both: Both) -> None:
    ours = both.ours()
    ours.put(batch(1))
    native = both.native()
    error = fenced(lambda: ours.put(batch(2)))
    assert (error.shard, error.epoch, error.stored_epoch, error.position) == (str(both.shard_id), 1, 2, 2)
    assert fenced(ours.close) is error
    native.put(pa.Table.from_batches([batch(3, text="native")]))
    assert [one["id"] for one in both.scanned_by(native)] == [1, 3, 1000]


def test_taking_turns_loses_no_row_and_leaves_no_gap(both: Both) -> None:
    for turn in range(3):
        ours = both.ours()
        ours.put(batch(10 * turn + 1))
        native = both.native()
        native.put(pa.Table.from_batches([batch(10 * turn + 2, text="native")]))
        if turn % 2:
            native.close()
    ours = both.ours()
    ours.put(batch(99))
    ours.close()
    expected = [1, 2, 11, 12, 21, 22, 99, 1000]
    assert [one["id"] for one in both.scanned_by(both.native())] == expected
    positions = wal_positions(both.shard)
    assert positions == list(range(positions[-1] + 1))


def test_our_tailer_reads_what_native_wrote(both: Both) -> None:
    native = both.native()
    for number in range(1, 6):
        native.put(pa.Table.from_batches([batch(number, text="native")]))
    both.native()
    read = list(WalTailer(both.shard).read(1))
    ids = [one for entry in read for part in entry.entry.batches for one in part.column("id").to_pylist()]
    assert ids == [1, 2, 3, 4, 5]
    assert [entry.entry.header.barrier for entry in read] == [False] * 5 + [True]
    assert {entry.entry.header.generation for entry in read[:-1]} == {1}
    assert {entry.entry.header.entry_id for entry in read} == {None}


def test_a_real_native_entry_cut_at_any_byte_is_corrupt_and_any_flip_is_judged(both: Both) -> None:
    """Native has no checksum: a flip is Corrupt or decoded, and nothing else."""
    native = both.native()
    native.put(pa.Table.from_batches([batch(1, 2, 3, text="native")]))
    data = bytes(both.shard.wal.get(both.shard.wal_key(1)))
    for length in range(0, len(data), 3):
        with pytest.raises(Corrupt):
            decode_entry(memoryview(data[:length]))
    outcomes = {"corrupt": 0, "decoded": 0}
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        try:
            decode_entry(memoryview(bytes(damaged)))
        except Corrupt:
            outcomes["corrupt"] += 1
        else:
            outcomes["decoded"] += 1
    assert outcomes["corrupt"] > 100
    assert outcomes["decoded"] > 100


def test_a_fresh_shard_of_ours_has_natives_layout(both: Both) -> None:
    with both.ours() as writer:
        writer.put(batch(1))
    folder = Path(both.uri) / "_mem_wal" / str(both.shard_id)
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert [name for name in names if name.startswith("wal/")] == [
        f"wal/{'0' * 64}.arrow",
        f"wal/1{'0' * 63}.arrow",
    ]
    assert "manifest/version_hint.json" in names
    assert entry_at(both.shard, 0).header.barrier


def test_a_shard_that_someone_drops_is_refused_by_both_and_nothing_is_written(both: Both) -> None:
    with both.ours() as writer:
        writer.put(batch(1))
    shard = both.shard
    latest = shard.manifests.latest()
    assert latest is not None
    sealed = replace(latest, version=latest.version + 1, sealed=True)
    shard.home.store.put_if_absent(manifest_key(shard.id, sealed.version), encode_manifest(sealed))
    with pytest.raises(InvalidInput, match="being dropped"):
        both.ours()
    with pytest.raises(OSError, match="sealed"):
        both.native()
    assert shard.manifests.latest() == sealed
    assert wal_positions(shard) == [0, 1]
