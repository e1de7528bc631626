"""The commit log over real stores: who may commit, what is committed, and at what cost."""

from __future__ import annotations

import threading
import uuid

import pytest

from headgate.checkpoints.log.codec import encode
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.names import stream_folder
from headgate.checkpoints.log.opened_log import OpenedLog
from headgate.checkpoints.log.positions import next_plan
from headgate.checkpoints.log.records import Batch, BatchRecord, OpenRecord, ShardClaim
from headgate.checkpoints.log.state import LogState, empty, fold, replayed
from headgate.connectors.objects.port import ObjectStore
from headgate.errors import Corrupt, DataLoss, Fenced, HeadgateError, InvalidInput
from headgate.steps import watching
from tests.support.logs import AT_ONCE, CLAIMS, OTHER, SHARD, batch, batch_record, log, open_record, part

FOLDER = stream_folder("orders")


def key(sequence: int, folder: str = "log") -> str:
    return f"{FOLDER}/{folder}/{sequence:020d}.json"


def filled(store: ObjectStore, batches: int) -> LogState:
    """A log with one open record and that many batches, one entry each."""
    batched = (batch_record(2 + n, n, 1 + n, attempt=f"a{n}") for n in range(batches))
    records: list[OpenRecord | BatchRecord] = [open_record(), *batched]
    for record in records:
        store.put_if_absent(key(record.sequence), encode(record))
    return replayed(empty("orders"), records)


def collect(store: ObjectStore, fold_sequence: int) -> None:
    """What garbage collection may delete at most: folded batch records below the tip (R5)."""
    state = log(store).read()
    for info in list(store.list(f"{FOLDER}/log/")):
        sequence = int(info.key[-25:-5])
        if sequence <= min(fold_sequence, state.sequence - 1) and isinstance(log(store).record(sequence), BatchRecord):
            store.delete(info.key)


# -- reading -------------------------------------------------------------------


def test_a_stream_that_never_ran_has_an_empty_log(any_store: ObjectStore) -> None:
    state = log(any_store).read()
    assert (state.sequence, state.head.last, state.shards) == (0, None, {})


def test_what_was_committed_is_read_back(any_store: ObjectStore) -> None:
    opened = log(any_store).open("q", CLAIMS)
    first = opened.commit(batch(0, 0, 10, 1, 2, attempt="a"), {})
    second = opened.commit(batch(1, 10, 10), {})
    third = opened.commit(batch(2, 10, 25, 4, attempt="b"), {})
    state = log(any_store).read()
    assert state.sequence == 4
    assert state.head == opened.head
    assert state.head.opened == opened.record
    assert state.head.last == third
    assert list(state.head.recent.values()) == [first, second, third]
    assert state.head.ends == {("t", 0): 25}
    assert state.shards[SHARD].attempts == {1: "a", 2: "a", 4: "b"}
    assert state.head.listed == {SHARD: 4}


def test_a_batch_without_rows_gets_its_record(any_store: ObjectStore) -> None:
    opened = log(any_store).open("q", CLAIMS)
    record = opened.commit(batch(0, 5, 5), {})
    assert record is not None
    assert record.rows == 0
    assert log(any_store).read().head.last == record
    assert log(any_store).read().shards == {}


def test_dead_letters_become_visible_with_the_rows(any_store: ObjectStore) -> None:
    opened = log(any_store).open("q", CLAIMS)
    opened.commit(Batch(query_id="q", batch_id=0, dead_letters={"s0": part(3, shard=OTHER, attempt="d")}), {})
    assert log(any_store).read().shards[OTHER].attempts == {3: "d"}


def test_a_missing_record_is_data_loss(any_store: ObjectStore) -> None:
    filled(any_store, 5)
    any_store.delete(key(4))
    with pytest.raises(DataLoss, match="record 4 is missing") as error:
        log(any_store).read()
    assert error.value.detail["stream"] == "orders"
    with pytest.raises(DataLoss):
        log(any_store).open("q", CLAIMS)


def test_a_stray_with_a_huge_number_is_a_hole_and_not_a_hang(store: ObjectStore) -> None:
    filled(store, 1)
    store.put_if_absent(key(10**20 - 1), b"")
    with pytest.raises(DataLoss, match="record 3 is missing"):
        log(store).read()


@pytest.mark.parametrize("name", ["log/5.json", "log/x.json", "log/00000000000000000009.json.tmp", "notes.txt"])
def test_strays_are_not_records(store: ObjectStore, name: str) -> None:
    filled(store, 1)
    store.put_if_absent(f"{FOLDER}/{name}", b"junk")
    assert log(store).read().sequence == 2


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", Corrupt),
        (b"{}", Corrupt),
        (encode(batch_record(9, 9, 9)), Corrupt),
        (encode(batch_record(3, 1, 1)), Corrupt),
        (encode(batch_record(3, 1, 2, open_id="another")), Corrupt),
    ],
    ids=["empty", "junk", "misplaced", "lists a position twice", "of a driver that did not hold the log"],
)
def test_a_damaged_log_is_named_and_not_read(store: ObjectStore, data: bytes, error: type[HeadgateError]) -> None:
    filled(store, 1)
    store.put_if_absent(key(3), data)
    with pytest.raises(error):
        log(store).read()


def test_another_stream_in_the_same_folder_is_refused(store: ObjectStore) -> None:
    """As on a file system that ignores case."""
    filled(store, 1)
    other = CommitLog(store.retrying(AT_ONCE), "Orders", "memory://table")
    other.folder = FOLDER
    with pytest.raises(InvalidInput, match="in use by stream 'orders'"):
        other.open("q", CLAIMS)
    assert log(store).read().sequence == 2


def test_reading_ten_thousand_records_is_one_list_and_one_get_each(store: ObjectStore) -> None:
    expected = filled(store, 10_000)
    store.reset_operations()
    state = log(store).read()
    assert store.operations() == {"list": 1, "get": 10_001}
    assert state == expected
    assert len(state.shards[SHARD].attempts) == 10_000
    assert list(state.shards[SHARD].runs()) == [(1, 10_000)]


def test_reading_on_costs_only_what_is_new(store: ObjectStore) -> None:
    before = filled(store, 50)
    store.put_if_absent(key(52), encode(batch_record(52, 50, 100)))
    store.reset_operations()
    assert log(store).read(before).sequence == 52
    assert store.operations() == {"list": 1, "get": 1}


# -- committing -------------------------------------------------------------------


def test_a_commit_is_one_put(any_store: ObjectStore) -> None:
    opened = log(any_store).open("q", CLAIMS)
    any_store.reset_operations()
    for n in range(5):
        opened.commit(batch(n, n * 10, n * 10 + 10, n + 1), {SHARD: 0})
    assert any_store.operations() == {"put": 5}


@pytest.mark.parametrize(
    ("positions", "replay_after", "what"),
    [
        ((3, 9), {SHARD: 3}, "replay_after, 3"),
        ((3, 9), {SHARD: 8}, "replay_after, 8"),
        ((2, 9), {}, "the last listed position, 2"),
        ((0,), {}, "the barrier of this driver, 0"),
    ],
)
def test_a_position_that_no_replay_would_read_is_refused_before_the_put(
    store: ObjectStore, positions: tuple[int, ...], replay_after: dict[uuid.UUID, int], what: str
) -> None:
    opened = log(store).open("q", CLAIMS)
    opened.commit(batch(0, 0, 10, 2), {})
    store.reset_operations()
    with pytest.raises(InvalidInput, match=what):
        opened.commit(batch(1, 10, 20, *positions), replay_after)
    assert store.operations() == {}
    again = opened.commit(batch(1, 10, 20, 10), replay_after)
    assert again is not None
    assert again.sequence == 3, "another try is welcome"


def test_a_predecessor_is_fenced_and_nothing_of_it_is_visible(any_store: ObjectStore) -> None:
    zombie = log(any_store).open("q", CLAIMS)
    zombie.commit(batch(0, 0, 10, 1, attempt="a"), {})
    successor = log(any_store).open("q2", CLAIMS)
    with pytest.raises(Fenced) as error:
        zombie.commit(batch(1, 10, 20, 2, attempt="z"), {})
    assert error.value.detail["successor_query_id"] == "q2"
    assert error.value.detail["successor_record_id"] == successor.record.record_id
    assert log(any_store).read().shards[SHARD].attempts == {1: "a"}
    any_store.reset_operations()
    with pytest.raises(Fenced):
        zombie.commit(batch(1, 10, 20, 2), {})
    assert any_store.operations() == {}, "a fenced driver never touches the store again"


def test_a_predecessor_is_fenced_on_a_batch_without_rows(store: ObjectStore) -> None:
    zombie = log(store).open("q", CLAIMS)
    successor = log(store).open("q", CLAIMS)
    for n in range(5):
        successor.commit(batch(n, n * 10, n * 10 + 10, n + 1), {})
    with pytest.raises(Fenced):
        zombie.commit(batch(0, 0, 0), {})
    assert log(store).read().head.ends == {("t", 0): 50}


def test_a_successor_of_a_newer_release_fences_too(store: ObjectStore) -> None:
    zombie = log(store).open("q", CLAIMS)
    store.put_if_absent(key(2), b'{"format": 99, "release": "headgate 9"}')
    with pytest.raises(Fenced):
        zombie.commit(batch(0, 0, 10, 1), {})
    with pytest.raises(InvalidInput, match="headgate 9"):
        log(store).open("q", CLAIMS)


def test_the_state_of_an_open_is_what_its_record_fixed(store: ObjectStore) -> None:
    opened = log(store).open("q", CLAIMS)
    opened.commit(batch(0, 0, 10, 1), {})
    successor = log(store).open("q", CLAIMS)
    successor.commit(batch(1, 10, 20, 2), {})
    assert successor.state.sequence == successor.record.sequence == 3
    assert successor.state.head.ends == {("t", 0): 10}
    assert successor.head.ends == {("t", 0): 20}


# -- further shards in the middle of a stream -------------------------------------------

MORE = {**CLAIMS, "s1": ShardClaim(OTHER, 1, "claim of s1", 0)}


def test_a_driver_that_claims_a_further_shard_goes_on(any_store: ObjectStore) -> None:
    opened = log(any_store).open("q", CLAIMS)
    opened.commit(batch(0, 0, 10, 1), {})
    opened.extend(MORE)
    assert next_plan(opened.head, OTHER) == 1
    opened.commit(batch(1, 10, 20, 2), {})
    state = log(any_store).read()
    assert state.head == opened.head
    assert state.head.opened == opened.record
    assert state.head.opened.shards == MORE


def test_a_driver_that_was_fenced_does_not_take_the_stream_back_by_a_further_shard(store: ObjectStore) -> None:
    zombie = log(store).open("q", CLAIMS)
    successor = log(store).open("q", CLAIMS)
    with pytest.raises(Fenced):
        zombie.extend(MORE)
    with pytest.raises(Fenced):
        zombie.commit(batch(0, 0, 10, 1), {})
    successor.commit(batch(0, 0, 10, 1), {})


# -- two drivers -------------------------------------------------------------------


def paused_open(store: ObjectStore, step: str, meanwhile: list[OpenedLog]) -> OpenedLog:
    """Open, and let another driver open where this one has come to `step`."""
    came: list[str] = []

    def pause(name: str) -> None:
        if name == step and not came:
            came.append(name)
            meanwhile.append(log(store).open("other", CLAIMS))

    with watching(pause):
        return log(store).open("q", CLAIMS)


@pytest.mark.parametrize("step", ["read", "open record"])
def test_an_open_that_comes_before_our_record_is_fenced_by_it(store: ObjectStore, step: str) -> None:
    others: list[OpenedLog] = []
    ours = paused_open(store, step, others)
    assert ours.record.sequence == others[0].record.sequence + 1
    with pytest.raises(Fenced):
        others[0].commit(batch(0, 0, 10, 1), {})
    ours.commit(batch(0, 0, 10, 1), {})


def test_an_open_that_comes_after_our_record_fences_us(store: ObjectStore) -> None:
    others: list[OpenedLog] = []
    with pytest.raises(Fenced):
        paused_open(store, "prove", others)
    others[0].commit(batch(0, 0, 10, 1), {})


def test_of_many_drivers_that_race_one_can_commit(any_store: ObjectStore) -> None:
    for _ in range(5):
        before = log(any_store).read().head
        start = threading.Barrier(6)
        opened: list[OpenedLog] = []
        committed: list[BatchRecord] = []

        def drive(number: int, start: threading.Barrier = start, opened: list[OpenedLog] = opened) -> None:
            start.wait()
            try:
                opened.append(log(any_store).open(f"q{number}", CLAIMS))
            except Fenced:
                return

        threads = [threading.Thread(target=drive, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for driver in opened:
            end = driver.head.ends.get(("t", 0), 0)
            plan = next_plan(driver.head, SHARD)
            try:
                record = driver.commit(batch(driver.head.sequence, end, end + 10, plan), {})
                assert record is not None
                committed.append(record)
            except Fenced:
                continue
        assert len(committed) <= 1
        state = log(any_store).read()
        assert state.head.ends.get(("t", 0), 0) == before.ends.get(("t", 0), 0) + 10 * len(committed)
        assert (
            sum(isinstance(log(any_store).record(n + 1), OpenRecord) for n in range(before.sequence, state.sequence))
            == 6
        )


# -- folds ---------------------------------------------------------------------------


@pytest.mark.parametrize("collected", [False, True], ids=["records kept", "records collected"])
def test_a_folded_log_reads_as_before(any_store: ObjectStore, collected: bool) -> None:
    filled(any_store, 20)
    before = log(any_store).read()
    log(any_store).put_fold(fold(before, {SHARD: 5}))
    if collected:
        collect(any_store, before.sequence)
        assert len(list(any_store.list(f"{FOLDER}/log/"))) == 2, "the open record and the tip"
    after = log(any_store).read()
    assert (after.sequence, after.fold_sequence) == (21, 21)
    assert (after.head.last, after.head.opened) == (before.head.last, before.head.opened)
    assert (after.head.ends, after.head.listed) == (before.head.ends, before.head.listed)
    assert list(after.shards[SHARD].runs()) == [(6, 20)]
    assert after.shards[SHARD].known_above == 5
    opened = log(any_store).open("q", CLAIMS)
    assert opened.record.sequence == 22
    opened.commit(batch(20, 200, 210, 22), {})
    assert list(log(any_store).read().shards[SHARD].runs()) == [(6, 20), (22, 22)]


def test_opening_a_folded_log_does_not_grow_with_its_age(store: ObjectStore) -> None:
    state = filled(store, 2_000)
    log(store).put_fold(fold(state, {}))
    store.reset_operations()
    log(store).open("q", CLAIMS)
    assert store.operations() == {"list": 2, "get": 1, "put": 1}
    data = store.get(key(state.sequence, "folds"))
    assert len(data) < 2_000, "positions are kept as runs"


def test_a_fold_of_a_fold_equals_a_fold(store: ObjectStore) -> None:
    filled(store, 10)
    log(store).put_fold(fold(log(store).read(), {SHARD: 3}))
    log(store).put_fold(fold(log(store).read(), {SHARD: 3}))
    opened = log(store).open("q", CLAIMS)
    opened.commit(batch(10, 100, 110, 12, attempt="b"), {})
    log(store).put_fold(fold(log(store).read(), {SHARD: 5}))
    collect(store, 13)
    state = log(store).read()
    assert state.fold_sequence == 13
    assert list(state.shards[SHARD].runs()) == [(6, 10), (12, 12)]


def test_a_fold_of_a_fenced_driver_does_no_harm(store: ObjectStore) -> None:
    zombie = log(store).open("q", CLAIMS)
    zombie.commit(batch(0, 0, 10, 1, attempt="a"), {})
    late = fold(log(store).read(), {})
    successor = log(store).open("q", CLAIMS)
    successor.commit(batch(1, 10, 20, 2, attempt="b"), {})
    log(store).put_fold(late)
    state = log(store).read()
    assert list(state.shards[SHARD].runs()) == [(1, 2)]
    assert state.head.last == successor.head.last
    assert state.head.opened == successor.record


def test_an_opener_that_slept_over_a_collection_puts_its_record_once_more(store: ObjectStore) -> None:
    """Its slot is free again, and only the LIST after the put can tell; nobody has taken the stream meanwhile."""
    live = log(store).open("q", CLAIMS)
    steps: list[str] = []

    def meanwhile(step: str) -> None:
        steps.append(step)
        if steps.count("open record") == 1 and step == "open record":
            for n in range(5):
                live.commit(batch(n, n * 10, n * 10 + 10, n + 1), {})
            state = log(store).read()
            log(store).put_fold(fold(state, {}))
            collect(store, state.sequence)

    with watching(meanwhile):
        opened = log(store).open("sleeper", CLAIMS)
    lost = log(store).record(2)
    assert isinstance(lost, OpenRecord)
    assert lost.query_id == "sleeper", "it did put its record, where nobody reads"
    assert (opened.record.sequence, steps.count("open record")) == (7, 2)
    assert log(store).read().head.opened == opened.record
    with pytest.raises(Fenced):
        live.commit(batch(5, 50, 60, 6), {})
    opened.commit(batch(5, 50, 60, 6), {})


def test_a_zombie_that_slept_over_a_collection_is_fenced(store: ObjectStore) -> None:
    zombie = log(store).open("q", CLAIMS)
    zombie.commit(batch(0, 0, 10, 1), {})
    successor = log(store).open("q", CLAIMS)
    for n in range(1, 5):
        successor.commit(batch(n, n * 10, n * 10 + 10, n + 1), {})
    log(store).put_fold(fold(log(store).read(), {}))
    collect(store, successor.head.sequence)
    with pytest.raises(Fenced):
        zombie.commit(batch(1, 10, 20, 2), {})


def test_a_fold_that_is_missing_is_data_loss(store: ObjectStore) -> None:
    filled(store, 5)
    log(store).put_fold(fold(log(store).read(), {}))
    collect(store, 6)
    store.delete(key(6, "folds"))
    with pytest.raises(DataLoss, match="record 2 is missing"):
        log(store).read()


def test_a_fold_of_another_stream_is_refused(store: ObjectStore) -> None:
    with pytest.raises(InvalidInput):
        log(store, "else").put_fold(fold(filled(store, 1), {}))
