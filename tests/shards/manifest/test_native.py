"""Native Lance is the other side: it reads what we write, and we read all that it writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import lance
import pyarrow as pa
import pytest

from headgate.connectors.objects import ObjectStore, open_store
from headgate.errors import Fenced
from headgate.retry import Retry
from headgate.shards import names
from headgate.shards.manifest.model import Manifest, decode_manifest, encode_manifest
from headgate.shards.manifest.store import ManifestStore

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata={"lance-schema:unenforced-primary-key": "true"}),
        pa.field("text", pa.string()),
    ]
)


class NativeTable:
    """A Lance table with MemWAL, and one shard of it from both sides."""

    def __init__(self, uri: str, **sharding: Any) -> None:
        self.dataset = lance.write_dataset(pa.table({"id": [100], "text": ["base"]}, schema=SCHEMA), uri)
        self.dataset.initialize_mem_wal(**sharding)
        self.store: ObjectStore = open_store(uri)
        self.shard_id: UUID = uuid4()
        self.manifests = ManifestStore(self.store.retrying(Retry(attempts=0)), self.shard_id, uri)

    def open(self) -> Any:
        return self.dataset.mem_wal_writer(str(self.shard_id))

    def put(self, *ids: int) -> None:
        """Native opens the shard, puts rows, flushes and closes."""
        with self.open() as writer:
            writer.put(pa.table({"id": list(ids), "text": ["native"] * len(ids)}, schema=SCHEMA))

    def history(self) -> list[Manifest]:
        return [self.manifests.read(version) for version in self.manifests.versions()]

    def key(self, version: int) -> str:
        return names.manifest_key(self.shard_id, version)

    def write(self, manifest: Manifest) -> None:
        self.store.put_if_absent(self.key(manifest.version), encode_manifest(manifest))


@pytest.fixture
def table(tmp_path: Path) -> NativeTable:
    return NativeTable(str(tmp_path / "table"))


@pytest.mark.parametrize(
    ("sharding", "spec_id"), [({}, 0), ({"unsharded": True}, 1), ({"bucket_column": "id", "num_buckets": 4}, 1)]
)
def test_every_manifest_that_native_writes_is_read_and_written_back_to_the_byte(
    tmp_path: Path, sharding: dict[str, Any], spec_id: int
) -> None:
    table = NativeTable(str(tmp_path / "table"), **sharding)
    for start in range(3):
        table.put(start, start + 1)
    history = table.history()
    assert [manifest.version for manifest in history] == list(range(1, 9))
    for manifest in history:
        assert encode_manifest(manifest) == table.store.get(table.key(manifest.version))
        assert manifest.spec_id == spec_id
    assert history[0] == Manifest(version=1, epoch=1, shard_id=table.shard_id, spec_id=spec_id)
    last = history[-1]
    assert (last.epoch, last.replay_after, last.last_seen, last.generation) == (3, 5, 5, 4)
    assert [sstable.generation for sstable in last.sstables] == [1, 2, 3]
    for sstable in last.sstables:
        assert sstable.physical_rows == 2
        assert lance.dataset(f"{table.store.uri}/{names.shard_folder(table.shard_id)}/{sstable.path}").count_rows() == 2


def test_native_opens_a_shard_that_we_claimed_and_keeps_our_fields(table: NativeTable) -> None:
    claimed = table.manifests.claim()
    other = table.manifests.commit_update(claimed.claim_id, 1, lambda m: m.with_field("other.key", b"\xff\x00"))
    table.put(1, 2)
    latest = table.manifests.latest()
    assert latest is not None
    assert (latest.epoch, latest.generation, latest.replay_after) == (2, 2, 2)
    assert dict(latest.fields) == dict(other.fields)


def test_a_native_claim_keeps_our_claim_id_and_yet_fences_us(table: NativeTable) -> None:
    """A claim is known by id AND epoch: native copies the id into a claim of its own."""
    claimed = table.manifests.claim()
    table.put(1)
    latest = table.manifests.latest()
    assert latest is not None
    assert latest.claim_id == claimed.claim_id
    assert not latest.held_by(claimed.epoch, claimed.claim_id)
    with pytest.raises(Fenced):
        table.manifests.check_fenced(claimed.epoch, claimed.claim_id)
    with pytest.raises(Fenced):
        table.manifests.commit_update(claimed.claim_id, claimed.epoch, lambda m: m)


def test_we_claim_after_native_and_keep_its_work(table: NativeTable) -> None:
    table.put(1, 2)
    before = table.manifests.latest()
    claimed = table.manifests.claim()
    assert before is not None
    assert claimed.previous == before
    assert (claimed.epoch, claimed.manifest.version) == (2, 3)
    assert claimed.manifest.sstables == before.sstables
    table.put(3)
    assert [sstable.generation for sstable in table.history()[-1].sstables] == [1, 2]


def test_native_keeps_out_of_an_owned_shard_until_it_is_released(table: NativeTable) -> None:
    claimed = table.manifests.claim("s1")
    with pytest.raises(OSError, match="sealed"):
        table.open()
    assert table.manifests.latest() == claimed.manifest
    table.manifests.commit_update(claimed.claim_id, 1, lambda m: replace(m, sealed=False))
    table.put(1)
    assert table.history()[-1].owner == "s1"


@pytest.mark.parametrize("spoil", ["missing", "junk", "behind", "ahead"])
def test_native_finds_our_latest_whatever_the_hint_says(table: NativeTable, spoil: str) -> None:
    for _ in range(4):
        table.manifests.claim()
    hint = names.version_hint_key(table.shard_id)
    assert bytes(table.store.get(hint)) == b'{"version":4}'
    table.store.delete(hint)
    if spoil != "missing":
        text = {"junk": b"junk", "behind": b'{"version":1}', "ahead": b'{"version":99}'}[spoil]
        table.store.put_overwrite(hint, text)
    for version in (1, 2, 3):
        table.store.delete(table.key(version))
    table.put(1)
    assert [manifest.epoch for manifest in table.history()] == [4, 5, 5, 5]


def test_native_believes_a_hint_at_a_ghost(table: NativeTable) -> None:
    """Why a version that is not the highest never gets a hint: native stops at the gap above it."""
    for _ in range(5):
        table.manifests.claim()
    for version in (1, 3, 4):
        table.store.delete(table.key(version))
    table.store.put_overwrite(names.version_hint_key(table.shard_id), b'{"version":2}')
    writer = table.open()
    assert table.manifests.read(3).epoch == 3, "native claimed below the latest"
    latest = table.manifests.latest()
    assert latest is not None
    assert latest.epoch == 5
    del writer


def test_native_claims_an_initial_manifest_of_epoch_0(table: NativeTable) -> None:
    table.write(Manifest(version=1, epoch=0, shard_id=table.shard_id))
    table.put(1)
    assert [manifest.epoch for manifest in table.history()] == [0, 1, 1]


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        pytest.param(lambda m: replace(m, unknown=bytes.fromhex("a00105")), lambda m: m, id="drops unknown fields"),
        pytest.param(
            lambda m: m.with_field("empty", b""), lambda m: m.with_field("empty", b""), id="keeps empty fields"
        ),
    ],
)
def test_native_rewrites_what_it_read(
    table: NativeTable, written: Callable[[Manifest], Manifest], seen: Callable[[Manifest], Manifest]
) -> None:
    manifest = Manifest(version=1, epoch=1, shard_id=table.shard_id)
    table.write(written(manifest))
    table.put(1)
    assert table.manifests.read(2) == replace(seen(manifest), version=2, epoch=2)


def test_native_takes_an_unknown_status_for_active_and_forgets_it(table: NativeTable) -> None:
    """Where native becomes strict, our Corrupt for such a status should be looked at again."""
    data = encode_manifest(Manifest(version=1, epoch=1, shard_id=table.shard_id))
    table.store.put_if_absent(table.key(1), data + b"\x78\x02")
    table.put(1)
    after = table.store.get(table.key(2))
    assert not decode_manifest(after, shard_id=table.shard_id, version=2).sealed
