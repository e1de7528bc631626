"""The record of a checkpoint: what was encoded comes back, damage is told, and a name stands for one record."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.checkpoints.log.records import Fold
from headgate.checkpoints.log.state import empty, fold, replayed
from headgate.checkpoints.snapshots.checkpoint import (
    CheckpointStore,
    PinnedShard,
    StoredCheckpoint,
    TableCheckpoint,
    checkpoint_key,
    decode,
    encode,
)
from headgate.connectors.objects.port import ObjectStore
from headgate.errors import Corrupt, InvalidInput, NotFound
from headgate.records import FORMAT, text_of
from headgate.retry import Retry
from headgate.shards.manifest.model import CLAIM_ID, OWNER, Manifest, SsTable
from tests.support.logs import SHARD, batch_record, full_record, open_record
from tests.support.stores import Fault, FaultyStore

AT_ONCE = Retry(attempts=3, base=0)
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def a_fold(stream: str = "orders") -> Fold:
    state = replayed(empty("orders"), [open_record(), batch_record(2, 0, 1), batch_record(3, 1, 2, 4)])
    return replace(fold(state, {SHARD: 1}), stream=stream, last=replace(full_record(), stream=stream))


def a_manifest(shard_id: uuid.UUID = SHARD, version: int = 3) -> Manifest:
    return Manifest(
        version=version,
        epoch=2,
        replay_after=1,
        last_seen=4,
        generation=2,
        sstables=(SsTable(1, "ab_gen_1", 10, 2, 8),),
        shard_id=shard_id,
        fields=((CLAIM_ID, b"claim"), (OWNER, "Bestellungen 🛒".encode())),
        sealed=True,
    )


def a_checkpoint(name: str = "nightly", **changes: object) -> TableCheckpoint:
    checkpoint = TableCheckpoint(
        checkpoint_id=uuid.uuid4().hex,
        name=name,
        table_id=uuid.UUID(int=9),
        scope="all",
        base_version=12,
        shards={SHARD: PinnedShard(a_manifest(), 7, "partition:t:0"), uuid.UUID(int=5): PinnedShard(_other(), 1)},
        streams={"orders": a_fold()},
        expires_after=3600.0,
        note="for people",
    )
    return replace(checkpoint, **changes)  # type: ignore[arg-type]


def _other() -> Manifest:
    return a_manifest(uuid.UUID(int=5), 1)


@pytest.fixture
def checkpoints(store: ObjectStore) -> CheckpointStore:
    return CheckpointStore(store.retrying(AT_ONCE), "memory://table")


# -- the bytes -------------------------------------------------------------------------


def test_what_was_encoded_comes_back() -> None:
    for checkpoint in (
        a_checkpoint(),
        a_checkpoint(scope="durable", expires_after=None, note="", shards={}, streams={}),
    ):
        assert decode(encode(checkpoint)) == checkpoint


@given(st.text(min_size=1), st.text(), st.none() | st.floats(0.001, 1e9))
def test_any_name_and_note_come_back(name: str, note: str, expires: float | None) -> None:
    """Replay with the printed name, note and time."""
    checkpoint = a_checkpoint(name, note=note, expires_after=expires)
    assert decode(encode(checkpoint)) == checkpoint


def test_people_can_read_it() -> None:
    text = encode(a_checkpoint()).decode()
    shown = json.loads(text)
    assert (shown["kind"], shown["name"], shown["scope"], shown["base_version"]) == ("checkpoint", "nightly", "all", 12)
    shard = shown["shards"][str(SHARD)]
    assert (shard["name"], shard["end"], shard["replay_after"], shard["sstables"]) == (
        "partition:t:0",
        7,
        1,
        ["ab_gen_1"],
    )


def test_a_changed_byte_is_told() -> None:
    data = encode(a_checkpoint())
    for place in range(0, len(data), 97):
        damaged = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        try:
            assert decode(damaged) == decode(data), "white space may change"
        except (Corrupt, InvalidInput):
            continue


@pytest.mark.parametrize(
    "damage",
    [
        {"kind": "fold"},
        {"scope": "some"},
        {"name": 3},
        {"table_id": "x"},
        {"shards": {"x": {}}},
        {"streams": {"orders": {}}},
        {"expires_after": "soon"},
        {"note": None},
    ],
)
def test_fields_that_no_release_writes_are_corrupt(damage: dict[str, object]) -> None:
    fields = json.loads(encode(a_checkpoint()))
    kept = {key: value for key, value in fields.items() if key not in ("format", "release", "checksum")}
    with pytest.raises(Corrupt, match="is invalid"):
        decode(text_of({**kept, **damage}))


def test_a_manifest_that_is_not_the_shards_is_corrupt() -> None:
    swapped = a_checkpoint(shards={uuid.UUID(int=6): PinnedShard(a_manifest(), 7)})
    with pytest.raises(Corrupt):
        decode(encode(swapped))


def test_one_of_a_newer_release_is_refused_and_names_it() -> None:
    fields = json.loads(encode(a_checkpoint()))
    newer = json.dumps({**fields, "format": FORMAT + 1, "release": "headgate 9.9"}).encode()
    with pytest.raises(InvalidInput, match=r"A table checkpoint has format .*headgate 9\.9"):
        decode(newer)


# -- the store -------------------------------------------------------------------------


def test_put_get_list_and_drop(checkpoints: CheckpointStore) -> None:
    first, second = a_checkpoint("a"), a_checkpoint("b")
    checkpoints.put(first)
    checkpoints.put(second)
    assert checkpoints.get("a").checkpoint == first
    assert [one.checkpoint.name for one in checkpoints.list()] == ["a", "b"]
    assert checkpoints.drop("a") == first
    assert [one.checkpoint.name for one in checkpoints.list()] == ["b"]
    with pytest.raises(NotFound, match=r"Checkpoint 'a' not found.*checkpoints: b"):
        checkpoints.get("a")
    with pytest.raises(NotFound):
        checkpoints.drop("a")
    checkpoints.put(a_checkpoint("a"))


def test_a_name_stands_for_one_record(checkpoints: CheckpointStore) -> None:
    first = a_checkpoint("a")
    checkpoints.put(first)
    with pytest.raises(InvalidInput, match="Checkpoint 'a' exists already"):
        checkpoints.put(a_checkpoint("a"))
    checkpoints.put(first)
    assert checkpoints.get("a").checkpoint == first


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOST, Fault.LOST_EXISTS])
def test_a_lost_response_is_not_an_error(store: ObjectStore, fault: Fault) -> None:
    faulty = FaultyStore(store)
    faulty.script("put_if_absent", fault)
    checkpoint = a_checkpoint()
    CheckpointStore(faulty.retrying(AT_ONCE), "memory://table").put(checkpoint)
    assert CheckpointStore(store, "memory://table").get("nightly").checkpoint == checkpoint


def test_names_from_outside_never_become_paths(checkpoints: CheckpointStore, store: ObjectStore) -> None:
    names = ["../up", "a/b", "a%2Fb", ".", "ä 🛒\n", "x" * 300, "x" * 301]
    for name in names:
        checkpoints.put(a_checkpoint(name))
    assert sorted(one.checkpoint.name for one in checkpoints.list()) == sorted(names)
    keys = [info.key for info in store.list("")]
    assert len(set(keys)) == len(names)
    assert all(key.startswith("checkpoints/") and key.count("/") == 2 for key in keys)
    assert len(checkpoint_key("x" * 300, "a" * 32)) < 200
    with pytest.raises(InvalidInput, match="checkpoint name"):
        checkpoints.put(a_checkpoint(""))


def test_a_damaged_record_is_never_passed_over(checkpoints: CheckpointStore, store: ObjectStore) -> None:
    checkpoints.put(a_checkpoint("a"))
    store.put_if_absent(checkpoint_key("b", "1"), b"{}")
    with pytest.raises(Corrupt, match=r"key=checkpoints/b/1\.json"):
        checkpoints.list()


def test_its_age_is_the_stores() -> None:
    stored = StoredCheckpoint(a_checkpoint(), NOW, "key")
    assert stored.expires_at == NOW + timedelta(hours=1)
    assert not stored.expired(NOW + timedelta(minutes=59))
    assert stored.expired(NOW + timedelta(hours=1))
    assert not StoredCheckpoint(a_checkpoint(expires_after=None), NOW, "key").expired(NOW + timedelta(days=10_000))
