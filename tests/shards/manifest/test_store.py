from __future__ import annotations

import builtins
import json
import logging
import pickle
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from headgate.connectors.objects import ObjectInfo, ObjectStore, open_store
from headgate.connectors.objects.port import Bytes
from headgate.errors import (
    AlreadyExists,
    Corrupt,
    DataLoss,
    Fenced,
    HeadgateError,
    InvalidInput,
    PermissionDenied,
    StoreError,
    Transient,
)
from headgate.retry import Retry
from headgate.shards import names
from headgate.shards.manifest.model import CLAIM_ID, OWNER, WRITE_ID, Manifest, SsTable, encode_manifest
from headgate.shards.manifest.store import CLAIM_TRIES, UPDATE_TRIES, ManifestStore

SHARD = UUID("5fcb8e8b-6e0c-4f4f-9d0f-2b3a1c9d7e11")
TABLE = "memory://table"
QUICK = Retry(attempts=2, base=0.0)
HINT = names.version_hint_key(SHARD)

Step = Callable[[str], None]


class FaultyStore(ObjectStore):
    """A real store whose verbs call the scripted steps first; `lose` loses the response of a put that worked."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner.uri)
        self.inner = inner
        self.before: dict[str, builtins.list[Step]] = {}
        self.lose = 0

    def put_if_absent(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        self._step("put", key)
        self.inner.put_if_absent(key, data)
        if self.lose:
            self.lose -= 1
            raise Transient("The response was lost.")

    def put_overwrite(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        self._step("overwrite", key)
        self.inner.put_overwrite(key, data)

    def get(self, key: str) -> memoryview:
        self._step("get", key)
        return self.inner.get(key)

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        return self.inner.get_range(key, start, length)

    def head(self, key: str) -> ObjectInfo:
        return self.inner.head(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._step("list", prefix)
        return self.inner.list(prefix)

    def list_folders(self, prefix: str) -> Iterator[str]:
        return self.inner.list_folders(prefix)

    def delete(self, key: str) -> None:
        self.inner.delete(key)

    def copy(self, src: str, dst: str, dst_store: ObjectStore | None = None) -> None:
        self.inner.copy(src, dst, dst_store)

    def _step(self, verb: str, key: str) -> None:
        if self.before.get(verb):
            self.before[verb].pop(0)(key)


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return open_store(f"memory://{uuid.uuid4()}" if request.param == "memory" else str(tmp_path))


@pytest.fixture
def faulty(store: ObjectStore) -> FaultyStore:
    return FaultyStore(store)


@pytest.fixture
def shard(store: ObjectStore) -> ManifestStore:
    return ManifestStore(store.retrying(QUICK), SHARD, TABLE)


@pytest.fixture
def flaky(faulty: FaultyStore) -> ManifestStore:
    """The same shard, through the store that fails."""
    return ManifestStore(faulty.retrying(QUICK), SHARD, TABLE)


def fail(error: Exception) -> Step:
    def step(key: str) -> None:
        raise error

    return step


def first(call: Callable[[], object]) -> Step:
    def step(key: str) -> None:
        call()

    return step


def put(store: ObjectStore, manifest: Manifest) -> Manifest:
    store.put_if_absent(names.manifest_key(SHARD, manifest.version), encode_manifest(manifest))
    return manifest


def collect(store: ObjectStore, *versions: int) -> None:
    for version in versions:
        store.delete(names.manifest_key(SHARD, version))


def advance(by: int) -> Callable[[Manifest], Manifest]:
    return lambda manifest: replace(manifest, replay_after=manifest.replay_after + by)


def is_located(error: HeadgateError, epoch: int | None = None, stored_epoch: int | None = None) -> bool:
    return (error.table, error.shard, error.epoch, error.stored_epoch) == (TABLE, str(SHARD), epoch, stored_epoch)


# -- latest ------------------------------------------------------------------------


def test_a_new_shard_has_no_manifest(shard: ManifestStore) -> None:
    assert shard.latest() is None
    assert shard.versions() == []


def test_the_latest_is_the_highest_by_number_not_by_name(shard: ManifestStore, store: ObjectStore) -> None:
    for version in (7, 8, 9):
        put(store, Manifest(version=version, epoch=version, shard_id=SHARD))
    latest = shard.latest()
    assert latest is not None
    assert latest.version == 9
    assert shard.versions() == [7, 8, 9]
    assert shard.read(8).epoch == 8


@pytest.mark.parametrize("hint", [None, b"", b"junk", b'{"version":1}', b'{"version":99}'])
def test_the_hint_decides_nothing(shard: ManifestStore, store: ObjectStore, hint: bytes | None) -> None:
    claims = [shard.claim() for _ in range(3)]
    store.delete(HINT)
    if hint is not None:
        store.put_overwrite(HINT, hint)
    assert shard.latest() == claims[-1].manifest
    assert shard.claim().epoch == 4


def test_strays_are_no_manifests(shard: ManifestStore, store: ObjectStore) -> None:
    claimed = shard.claim()
    folder = names.manifest_folder(SHARD)
    high = names.rev64(77)
    for stray in (
        f"{high}.binpb.tmp.0f",
        f"{high}.arrow",
        f"{high[1:]}.binpb",
        f"old/{high}.binpb",
        "0" * 64 + ".binpb",
    ):
        store.put_if_absent(f"{folder}/{stray}", b"junk")
    assert shard.latest() == claimed.manifest
    assert shard.claim().manifest.version == 2


def test_a_damaged_latest_is_corrupt_and_never_skipped(shard: ManifestStore, store: ObjectStore) -> None:
    shard.claim()
    store.put_if_absent(names.manifest_key(SHARD, 2), b"torn")
    for call in (shard.latest, shard.claim, lambda: shard.check_fenced(1), lambda: shard.read(2)):
        with pytest.raises(Corrupt) as caught:
            call()
        assert is_located(caught.value)
        assert caught.value.detail["version"] == 2


def test_a_latest_that_is_collected_after_the_list_is_looked_for_again(
    shard: ManifestStore, flaky: ManifestStore, faulty: FaultyStore
) -> None:
    shard.claim()

    def successor_and_collection(key: str) -> None:
        shard.claim()
        collect(faulty.inner, 1)

    faulty.before["get"] = [successor_and_collection]
    latest = flaky.latest()
    assert latest is not None
    assert latest.version == 2


def test_a_latest_that_always_vanishes_is_transient(
    shard: ManifestStore, flaky: ManifestStore, faulty: FaultyStore, store: ObjectStore
) -> None:
    shard.claim()

    def vanish(key: str) -> None:
        version = shard.versions()[-1]
        put(store, replace(shard.read(version), version=version + 1))
        store.delete(key)

    faulty.before["get"] = [vanish] * 50
    with pytest.raises(Transient) as caught:
        flaky.latest()
    assert is_located(caught.value)


def test_reads_are_tried_again(shard: ManifestStore, flaky: ManifestStore, faulty: FaultyStore) -> None:
    claimed = shard.claim()
    away = fail(Transient("away"))
    faulty.before = {"list": [away, away], "get": [away]}
    assert flaky.latest() == claimed.manifest
    faulty.before = {"list": [away] * 3}
    with pytest.raises(Transient) as caught:
        flaky.latest()
    assert is_located(caught.value)


# -- claim -------------------------------------------------------------------------


def test_each_claim_takes_the_next_epoch_and_version(shard: ManifestStore) -> None:
    claims = [shard.claim() for _ in range(4)]
    assert [claim.epoch for claim in claims] == [1, 2, 3, 4]
    assert shard.versions() == [1, 2, 3, 4]
    assert [claim.previous for claim in claims] == [None, *(claim.manifest for claim in claims[:-1])]
    assert len({claim.claim_id for claim in claims} | {claim.manifest.write_id for claim in claims}) == 8
    assert shard.latest() == claims[-1].manifest
    assert claims[0].manifest.generation == 1
    assert not claims[0].manifest.sealed


def test_a_claim_upon_what_was_read_long_ago_is_a_claim_that_stalled(shard: ManifestStore, store: ObjectStore) -> None:
    assert shard.claim(upon=lambda: None).epoch == 1
    read = shard.latest()
    store.reset_operations()
    second = shard.claim("s", upon=lambda: read)
    assert (second.epoch, second.previous) == (2, read)
    assert store.operations() == {"put": 1, "list": 1}, "with an owner native needs no hint"
    assert shard.claim("s", upon=lambda: read).epoch == 3, "its version was taken: read again"
    assert shard.claim("s", upon=lambda: None).epoch == 4
    collect(store, 2)
    with pytest.raises(Fenced):
        # Into a slot that was collected: nobody's latest, and its barrier would fence the holder.
        shard.claim("s", upon=lambda: replace(read, epoch=8) if read else None)


def test_an_update_upon_what_was_written_before_is_one_that_stalled(shard: ManifestStore, store: ObjectStore) -> None:
    claimed = shard.claim()
    first = shard.commit_update(claimed.claim_id, 1, lambda m: replace(m, last_seen=4), upon=claimed.manifest)
    store.reset_operations()
    second = shard.commit_update(claimed.claim_id, 1, lambda m: replace(m, last_seen=5), upon=first)
    assert store.operations() == {"put": 2, "list": 1}
    again = shard.commit_update(claimed.claim_id, 1, lambda m: replace(m, replay_after=2), upon=first)
    assert (again.version, again.last_seen, again.replay_after) == (second.version + 1, 5, 2), "read again"
    shard.claim()
    with pytest.raises(Fenced):
        shard.commit_update(claimed.claim_id, 1, lambda m: replace(m, replay_after=3), upon=again)


def test_a_claim_costs_two_puts(shard: ManifestStore, store: ObjectStore) -> None:
    shard.claim()
    store.reset_operations()
    shard.claim()
    assert store.operations()["put"] == 2
    assert bytes(store.get(HINT)) == b'{"version":2}'


def test_a_claim_keeps_everything_else(shard: ManifestStore, store: ObjectStore) -> None:
    before = put(
        store,
        Manifest(
            version=12,
            epoch=5,
            replay_after=3,
            last_seen=8,
            generation=3,
            sstables=(SsTable(1, "a"), SsTable(2, "b", 1, 2, 3)),
            spec_id=1,
            shard_id=SHARD,
            fields=(("bucket", b"\x01"), ("other.claim_id", b"x")),
            unknown=bytes.fromhex("a00105"),
        ),
    )
    claimed = shard.claim(spec_id=9)
    assert claimed.previous == before
    kept = claimed.manifest.with_field(CLAIM_ID, None).with_field(WRITE_ID, None)
    assert kept == replace(before, version=13, epoch=6)
    assert shard.latest() == claimed.manifest


def test_a_shard_that_native_initialised_with_epoch_0_is_claimed_with_1(
    shard: ManifestStore, store: ObjectStore
) -> None:
    put(store, Manifest(version=1, epoch=0, shard_id=SHARD, fields=(("bucket", b"\x01"),)))
    claimed = shard.claim()
    assert (claimed.epoch, claimed.manifest.version) == (1, 2)
    assert claimed.manifest.field("bucket") == b"\x01"


def test_a_new_shard_gets_the_spec_id_that_is_asked_for(shard: ManifestStore) -> None:
    assert shard.claim(spec_id=1).manifest.spec_id == 1
    assert shard.claim(spec_id=7).manifest.spec_id == 1


def test_eight_racing_claims_get_eight_epochs(shard: ManifestStore, store: ObjectStore) -> None:
    rounds, claimers = 4, 8
    start = threading.Barrier(claimers)
    epochs: list[int] = []

    def claim() -> None:
        for _ in range(rounds):
            start.wait()
            epochs.append(ManifestStore(store.retrying(QUICK), SHARD, TABLE).claim().epoch)

    threads = [threading.Thread(target=claim) for _ in range(claimers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = list(range(1, rounds * claimers + 1))
    assert sorted(epochs) == every
    assert shard.versions() == every
    assert [shard.read(version).epoch for version in every] == every


@pytest.mark.parametrize("lost", [1, 2])
def test_a_claim_whose_response_was_lost_is_found_again(
    flaky: ManifestStore, faulty: FaultyStore, shard: ManifestStore, lost: int
) -> None:
    """The second try meets AlreadyExists, and it is our own."""
    shard.claim()
    faulty.lose = lost
    claimed = flaky.claim()
    assert (claimed.epoch, shard.versions()) == (2, [1, 2])
    assert shard.latest() == claimed.manifest


def test_a_claim_whose_last_response_was_lost_is_read_back(faulty: FaultyStore, shard: ManifestStore) -> None:
    impatient = ManifestStore(faulty.retrying(Retry(attempts=0)), SHARD, TABLE)
    faulty.lose = 1
    assert impatient.claim().manifest == shard.latest()


def test_a_lost_response_and_a_native_successor_are_told_apart(
    flaky: ManifestStore, faulty: FaultyStore, shard: ManifestStore
) -> None:
    """Native takes our version with the previous claim id still in it: that one is not ours."""
    first = shard.claim()

    def native(key: str) -> None:
        put(faulty.inner, replace(first.manifest, version=2, epoch=2))
        raise Transient("The request timed out before it was sent.")

    faulty.before["put"] = [native]
    again = flaky.claim()
    assert (again.epoch, again.manifest.version) == (3, 3)


def test_a_rival_in_the_slot_costs_another_try(flaky: ManifestStore, faulty: FaultyStore, shard: ManifestStore) -> None:
    faulty.before["put"] = [first(shard.claim), first(shard.claim)]
    claimed = flaky.claim()
    assert (claimed.epoch, shard.versions()) == (3, [1, 2, 3])


def test_a_claim_that_always_loses_gives_up_and_leaves_no_gap(
    flaky: ManifestStore, faulty: FaultyStore, shard: ManifestStore
) -> None:
    faulty.before["put"] = [first(shard.claim)] * 100
    with pytest.raises(Transient) as caught:
        flaky.claim()
    assert is_located(caught.value)
    assert shard.versions() == list(range(1, CLAIM_TRIES + 1))


def test_a_store_that_is_away_makes_the_outcome_unknown(
    flaky: ManifestStore, faulty: FaultyStore, shard: ManifestStore
) -> None:
    faulty.before["put"] = [fail(Transient("away"))] * 3
    with pytest.raises(Transient, match="unknown") as caught:
        flaky.claim()
    assert is_located(caught.value, epoch=1)
    assert shard.versions() == []
    assert flaky.claim().epoch == 1


def test_an_error_of_the_store_names_the_shard(flaky: ManifestStore, faulty: FaultyStore) -> None:
    faulty.before["put"] = [fail(PermissionDenied("no"))]
    with pytest.raises(PermissionDenied) as caught:
        flaky.claim()
    assert is_located(caught.value)


def test_a_claimer_that_stalled_over_garbage_collection_sees_that_it_lost(
    flaky: ManifestStore, faulty: FaultyStore, shard: ManifestStore, store: ObjectStore
) -> None:
    """Its version was freed, so its put succeeds below the latest: a ghost, which decides nothing."""
    shard.claim()
    live: list[str] = []

    def successors_and_collection(key: str) -> None:
        for _ in range(3):
            live.append(shard.claim().claim_id)
        collect(store, 1, 2)

    faulty.before["put"] = [successors_and_collection]
    ghost = flaky.claim()
    assert (ghost.manifest.version, ghost.epoch) == (2, 2)
    latest = shard.latest()
    assert latest is not None
    assert (latest.version, latest.claim_id) == (4, live[-1])
    assert json.loads(bytes(store.get(HINT))) == {"version": 4}, "native would start at the ghost and stop there"
    with pytest.raises(Fenced):
        flaky.check_fenced(ghost.epoch, ghost.claim_id)
    with pytest.raises(Fenced):
        flaky.commit_update(ghost.claim_id, ghost.epoch, advance(1))
    assert shard.claim().manifest.version == 5


def test_a_stalled_claimer_leaves_the_writer_that_holds_the_shard_alone(
    flaky: ManifestStore, faulty: FaultyStore, shard: ManifestStore, store: ObjectStore
) -> None:
    """The holder's own updates moved the versions on, so that the ghost's epoch is higher than the holder's."""
    held = shard.claim()

    def updates_and_collection(key: str) -> None:
        shard.commit_update(held.claim_id, held.epoch, advance(1))
        shard.commit_update(held.claim_id, held.epoch, advance(2))
        collect(store, 1, 2)

    faulty.before["put"] = [updates_and_collection]
    with pytest.raises(Fenced):
        flaky.claim()
    assert shard.read(2).epoch == 2 > held.epoch
    assert shard.commit_update(held.claim_id, held.epoch, advance(3)).version == 4


# -- owners ------------------------------------------------------------------------

OWNED = Manifest(version=3, epoch=2, shard_id=SHARD, fields=((OWNER, b"s1"),))


@pytest.mark.parametrize(
    ("stored", "owner", "words"),
    [
        (replace(OWNED, sealed=True), "s1", None),
        (OWNED, "s1", None),
        (replace(OWNED, fields=()), "s1", None),
        (replace(OWNED, fields=()), None, None),
        (None, "s1", None),
        (None, None, None),
        (replace(OWNED, sealed=True), "s2", ["'s1'", "'s2'"]),
        (replace(OWNED, sealed=True), None, ["'s1'", "without a stream"]),
        (OWNED, "s2", ["'s1'", "'s2'"]),
        (OWNED, None, ["'s1'", "without a stream"]),
        (replace(OWNED, sealed=True, fields=()), "s1", ["being dropped"]),
        (replace(OWNED, sealed=True, fields=()), None, ["being dropped"]),
    ],
)
def test_a_shard_has_one_owner(
    shard: ManifestStore, store: ObjectStore, stored: Manifest | None, owner: str | None, words: list[str] | None
) -> None:
    if stored is not None:
        put(store, stored)
    store.reset_operations()
    if words is None:
        claimed = shard.claim(owner)
        assert claimed.manifest.owner == owner
        assert claimed.manifest.sealed is (owner is not None)
        return
    with pytest.raises(InvalidInput) as caught:
        shard.claim(owner)
    assert all(word in str(caught.value) for word in words)
    assert is_located(caught.value, stored_epoch=2)
    assert store.operations().get("put", 0) == 0
    assert shard.latest() == stored


def test_an_empty_owner_is_refused(shard: ManifestStore) -> None:
    with pytest.raises(InvalidInput):
        shard.claim("")
    assert shard.versions() == []


# -- fencing -----------------------------------------------------------------------


def test_without_a_manifest_nobody_is_fenced(shard: ManifestStore) -> None:
    assert shard.check_fenced(1) is None
    assert shard.check_fenced(1, "mine") is None


@pytest.mark.parametrize(
    ("epoch", "claim_id", "fenced"),
    [
        (4, None, True),
        (4, "mine", True),
        (5, None, False),
        (5, "mine", False),
        (5, "other", True),
        (6, None, False),
        (6, "other", False),
    ],
)
def test_a_higher_epoch_fences_a_lower_one(
    shard: ManifestStore, store: ObjectStore, epoch: int, claim_id: str | None, fenced: bool
) -> None:
    stored = put(store, Manifest(version=9, epoch=5, shard_id=SHARD, fields=((CLAIM_ID, b"mine"),)))
    if not fenced:
        assert shard.check_fenced(epoch, claim_id) == stored
        return
    with pytest.raises(Fenced) as caught:
        shard.check_fenced(epoch, claim_id)
    assert is_located(caught.value, epoch=epoch, stored_epoch=5)
    assert pickle.loads(pickle.dumps(caught.value)).fields() == caught.value.fields()


# -- commit_update -----------------------------------------------------------------


def test_an_update_is_the_next_version(shard: ManifestStore, store: ObjectStore) -> None:
    claimed = shard.claim("s1")
    first = shard.commit_update(claimed.claim_id, 1, advance(4))
    second = shard.commit_update(
        claimed.claim_id, 1, lambda m: replace(m, last_seen=9, sealed=False).with_field(OWNER, None)
    )
    assert shard.latest() == second
    assert (second.version, second.replay_after, second.last_seen, second.sealed, second.owner) == (
        3,
        4,
        9,
        False,
        None,
    )
    assert len({claimed.manifest.write_id, first.write_id, second.write_id}) == 3
    assert bytes(store.get(HINT)) == b'{"version":3}'


@pytest.mark.parametrize("keeps_claim_id", [True, False], ids=["native", "ours"])
def test_an_update_under_a_lost_claim_is_fenced(shard: ManifestStore, store: ObjectStore, keeps_claim_id: bool) -> None:
    claimed = shard.claim()
    if keeps_claim_id:
        put(store, replace(claimed.manifest, version=2, epoch=2))
    else:
        shard.claim()
    with pytest.raises(Fenced) as caught:
        shard.commit_update(claimed.claim_id, 1, advance(1))
    assert is_located(caught.value, epoch=1, stored_epoch=2)
    assert shard.versions() == [1, 2]


def test_an_update_needs_the_claim_id_not_only_the_epoch(shard: ManifestStore) -> None:
    shard.claim()
    with pytest.raises(Fenced):
        shard.commit_update("another", 1, advance(1))


def test_an_update_without_any_manifest_is_data_loss(shard: ManifestStore) -> None:
    with pytest.raises(DataLoss) as caught:
        shard.commit_update("mine", 1, advance(1))
    assert is_located(caught.value, epoch=1)
    assert shard.versions() == []


def test_a_change_may_abandon_the_update(shard: ManifestStore, store: ObjectStore) -> None:
    claimed = shard.claim()

    def abandon(manifest: Manifest) -> Manifest:
        raise KeyError("moved on")

    store.reset_operations()
    with pytest.raises(KeyError):
        shard.commit_update(claimed.claim_id, 1, abandon)
    assert store.operations().get("put", 0) == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda m: replace(m, epoch=2),
        lambda m: replace(m, epoch=0),
        lambda m: m.with_field(CLAIM_ID, b"another"),
        lambda m: m.with_field(CLAIM_ID, None),
        lambda m: replace(m, replay_after=4),
        lambda m: replace(m, generation=0),
        lambda m: replace(m, shard_id=UUID(int=5)),
        lambda m: replace(m, sstables=(SsTable(1, "../x"),)),
    ],
)
def test_an_update_that_goes_back_or_steals_is_refused(
    shard: ManifestStore, change: Callable[[Manifest], Manifest]
) -> None:
    claimed = shard.claim()
    shard.commit_update(claimed.claim_id, 1, lambda m: replace(m, replay_after=5, generation=2))
    with pytest.raises(InvalidInput) as caught:
        shard.commit_update(claimed.claim_id, 1, change)
    assert (caught.value.table, caught.value.shard) == (TABLE, str(SHARD))
    assert shard.versions() == [1, 2]


@pytest.mark.parametrize("lost", [1, 2])
def test_an_update_whose_response_was_lost_is_applied_once(
    flaky: ManifestStore, faulty: FaultyStore, shard: ManifestStore, lost: int
) -> None:
    claimed = shard.claim()
    faulty.lose = lost
    updated = flaky.commit_update(claimed.claim_id, 1, advance(1))
    assert (updated.version, updated.replay_after) == (2, 1)
    assert shard.latest() == updated


def test_an_update_that_loses_the_slot_is_built_again_on_the_latest(
    flaky: ManifestStore, faulty: FaultyStore, shard: ManifestStore
) -> None:
    claimed = shard.claim()
    faulty.before["put"] = [first(lambda: shard.commit_update(claimed.claim_id, 1, advance(10)))]
    assert flaky.commit_update(claimed.claim_id, 1, advance(1)).replay_after == 11
    assert shard.versions() == [1, 2, 3]


def test_an_update_that_loses_the_slot_to_a_successor_is_fenced(
    flaky: ManifestStore, faulty: FaultyStore, shard: ManifestStore
) -> None:
    claimed = shard.claim()
    faulty.before["put"] = [first(shard.claim)]
    with pytest.raises(Fenced):
        flaky.commit_update(claimed.claim_id, 1, advance(1))
    assert shard.versions() == [1, 2]


def test_an_update_that_always_loses_gives_up(flaky: ManifestStore, faulty: FaultyStore, shard: ManifestStore) -> None:
    claimed = shard.claim()

    faulty.before["put"] = [first(lambda: shard.commit_update(claimed.claim_id, 1, advance(1)))] * 100
    with pytest.raises(Transient) as caught:
        flaky.commit_update(claimed.claim_id, 1, advance(1))
    assert is_located(caught.value, epoch=1)
    assert shard.versions() == list(range(1, UPDATE_TRIES + 2))


def test_an_update_that_stalled_over_garbage_collection_is_not_believed(
    flaky: ManifestStore, faulty: FaultyStore, shard: ManifestStore, store: ObjectStore
) -> None:
    claimed = shard.claim()

    def successors_and_collection(key: str) -> None:
        for _ in range(3):
            shard.claim()
        collect(store, 1, 2)

    faulty.before["put"] = [successors_and_collection]
    with pytest.raises(Fenced) as caught:
        flaky.commit_update(claimed.claim_id, 1, advance(1))
    assert is_located(caught.value, epoch=1, stored_epoch=4)
    assert bytes(store.get(HINT)) == b'{"version":4}'


def test_an_update_that_stalled_over_a_collection_of_its_own_writers_updates_is_not_believed(
    flaky: ManifestStore, faulty: FaultyStore, shard: ManifestStore, store: ObjectStore
) -> None:
    """Two jobs of one claim: the flush stalls before its put, the other goes on, and its versions are collected."""
    claimed = shard.claim()

    def other_job_and_collection(key: str) -> None:
        for _ in range(3):
            shard.commit_update(claimed.claim_id, 1, advance(0))
        collect(store, 1, 2)

    faulty.before["put"] = [other_job_and_collection]
    with pytest.raises(Fenced) as caught:
        flaky.commit_update(claimed.claim_id, 1, advance(1))
    assert is_located(caught.value, epoch=1)
    latest = shard.latest()
    assert latest is not None
    assert (latest.version, latest.replay_after) == (4, 0)


def test_an_update_that_another_of_our_jobs_already_followed_stands(
    flaky: ManifestStore, faulty: FaultyStore, shard: ManifestStore, store: ObjectStore
) -> None:
    claimed = shard.claim()
    faulty.before["list"] = [
        first(lambda: None),
        first(lambda: shard.commit_update(claimed.claim_id, 1, advance(10))),
    ]
    assert flaky.commit_update(claimed.claim_id, 1, advance(1)).replay_after == 1
    latest = shard.latest()
    assert latest is not None
    assert (latest.version, latest.replay_after) == (3, 11)
    assert bytes(store.get(HINT)) == b'{"version":3}'


def test_an_update_after_which_every_manifest_is_gone_is_data_loss(
    flaky: ManifestStore, faulty: FaultyStore, shard: ManifestStore, store: ObjectStore
) -> None:
    claimed = shard.claim()
    faulty.before["list"] = [first(lambda: None), first(lambda: collect(store, 1, 2))]
    with pytest.raises(DataLoss) as caught:
        flaky.commit_update(claimed.claim_id, 1, advance(1))
    assert is_located(caught.value, epoch=1)


def test_a_slot_that_was_taken_and_collected_makes_the_outcome_unknown(
    flaky: ManifestStore, faulty: FaultyStore, shard: ManifestStore, store: ObjectStore
) -> None:
    claimed = shard.claim()
    faulty.before["put"] = [fail(AlreadyExists("taken"))]
    with pytest.raises(Transient, match="unknown") as caught:
        flaky.commit_update(claimed.claim_id, 1, advance(1))
    assert is_located(caught.value, epoch=1)
    assert isinstance(caught.value.__cause__, StoreError)


@pytest.mark.parametrize("error", [Transient("away"), PermissionDenied("no"), OSError("disk")])
def test_a_hint_that_fails_harms_nothing(
    flaky: ManifestStore,
    faulty: FaultyStore,
    shard: ManifestStore,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    faulty.before["overwrite"] = [fail(error), fail(error)]
    with caplog.at_level(logging.DEBUG, logger="headgate.shards.manifest.store"):
        claimed = flaky.claim()
        updated = flaky.commit_update(claimed.claim_id, 1, advance(1))
    assert shard.latest() == updated
    assert [record.levelname for record in caplog.records] == ["DEBUG", "DEBUG"]


def test_a_manifest_store_crosses_processes(shard: ManifestStore) -> None:
    claimed = shard.claim()
    again = pickle.loads(pickle.dumps(shard))
    assert again.check_fenced(claimed.epoch, claimed.claim_id) == claimed.manifest
