"""The archive of a commit log: no record is deleted that it does not have, whoever collects, and wherever that dies."""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta

import pytest

from headgate.checkpoints.gc.collect import collect
from headgate.checkpoints.gc.report import Collection
from headgate.checkpoints.log import fold as folding
from headgate.checkpoints.log.archive import format as archived
from headgate.checkpoints.log.archive.archive import LogArchive
from headgate.checkpoints.log.archive.format import ArchivedBatch
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.fold import put_fold, tidy
from headgate.checkpoints.log.opened_log import OpenedLog
from headgate.checkpoints.log.records import BatchRecord
from headgate.connectors.objects.folder import FolderStore
from headgate.connectors.objects.port import ObjectStore
from headgate.errors import Corrupt, HeadgateError, NotFound
from tests.support.closing import Background
from tests.support.life import home_of
from tests.support.logs import AT_ONCE, CLAIMS, batch
from tests.support.stores import Crash, Fault, FaultyStore

NOW = timedelta(0)
STREAM = "orders"


def log(store: ObjectStore) -> CommitLog:
    return CommitLog(home_of(store).records.retrying(AT_ONCE), STREAM, "memory://table")


def archive_of(store: ObjectStore) -> LogArchive:
    return LogArchive(home_of(store).records.retrying(AT_ONCE), STREAM, "memory://table")


def opened(store: ObjectStore, query: str = "q") -> OpenedLog:
    return log(store).open(query, CLAIMS)


def grown(store: ObjectStore, driver: OpenedLog, *numbers: int) -> None:
    """Batches, and a fold of the log after them."""
    for n in numbers:
        driver.commit(batch(n, n * 10, n * 10 + 10, n + 1), {})
    put_fold(log(store), log(store).read(), {})


def collected(store: ObjectStore, apply: bool = True) -> Collection:
    return collect(home_of(store), [], min_age=NOW, apply=apply)


def known(store: ObjectStore) -> dict[int, tuple[BatchRecord, object]]:
    """Every batch with its time, from the log and from the archive; one that is in both must be the same there."""
    here = log(store)
    found: dict[int, tuple[BatchRecord, object]] = {}
    for sequence, at in here.taken_at().items():
        record = here.record(sequence)
        if isinstance(record, BatchRecord):
            found[sequence] = (record, at)
    for one in archive_of(store).above(0):
        assert found.setdefault(one.sequence, (one.record, one.committed_at)) == (one.record, one.committed_at)
    return dict(sorted(found.items()))


def sequences(found: list[ArchivedBatch]) -> list[int]:
    return [one.sequence for one in found]


def objects(store: ObjectStore) -> set[str]:
    return {info.key for info in store.list("")}


def test_what_leaves_the_log_is_in_the_archive_and_open_records_stay(any_store: ObjectStore) -> None:
    store = any_store
    driver, archive = opened(store), archive_of(store)
    archive.begin()
    grown(store, driver, 0, 1, 2)
    driver = opened(store)
    grown(store, driver, 3, 4)
    before = known(store)
    assert list(before) == [2, 3, 4, 6, 7]
    assert sum(one.kind == "commit record" for one in collected(store).found) == 4, "the tip stays"
    assert log(store).sequences() == {1, 5, 7}
    assert [name.span for name in archive.names()] == [(2, 6)]
    assert known(store) == before
    assert sequences(list(archive.above(3))) == [4, 6]
    assert collected(store).found == ()
    assert [name.span for name in archive.names()] == [(2, 6)], "twice equals once"


def test_a_stream_without_a_ledger_has_no_archive(store: ObjectStore) -> None:
    driver = opened(store)
    grown(store, driver, 0, 1, 2)
    before = objects(store)
    collected(store)
    assert objects(store) < before
    assert not archive_of(store).has_begun()
    assert archive_of(store).names() == []
    with pytest.raises(NotFound):
        archive_of(store).since()


def test_an_archive_begins_once_and_knows_what_was_gone(store: ObjectStore) -> None:
    driver = opened(store)
    archive_of(store).begin()
    assert archive_of(store).since() == 0
    grown(store, driver, 0, 1, 2)
    archive_of(store).begin()
    assert archive_of(store).since() == 0
    other = FolderStore(store, "other")
    grown(other, opened(other), 0, 1, 2)
    collected(other)
    archive_of(other).begin()
    assert archive_of(other).since() == 3


def test_a_dry_run_says_what_a_collection_would_do_and_writes_nothing(store: ObjectStore) -> None:
    driver = opened(store)
    archive_of(store).begin()
    grown(store, driver, 0, 1, 2)
    before = objects(store)
    dry = collected(store, apply=False)
    assert objects(store) == before
    assert all("archived" in one.why for one in dry.found if one.kind == "commit record")
    told = [[(one.kind, one.key, one.nbytes, one.why) for one in found.found] for found in (dry, collected(store))]
    assert told[0] == told[1]
    assert len(told[0]) == 2, "the third batch is the tip"


def test_folds_archive_in_lots(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "LOT", 4)
    driver, archive = opened(store), archive_of(store)
    archive.begin()
    records = home_of(store).records
    own: set[int] = set()
    grown(store, driver, 0, 1, 2)
    grown(store, driver, 3)
    assert tidy(records, log(store), own) == [], "three batches of the last fold but one are too few"
    assert own == {2, 3, 4}
    before = known(store)
    grown(store, driver, 4)
    assert tidy(records, log(store), own) == [2, 3, 4, 5]
    assert own == set()
    assert [name.span for name in archive.names()] == [(2, 5)]
    assert before.items() <= known(store).items()
    assert log(store).sequences() == {1, 6}


def test_two_collections_at_once_leave_every_record_once(store: ObjectStore) -> None:
    driver = opened(store)
    archive_of(store).begin()
    grown(store, driver, *range(8))
    before = known(store)
    slow = FaultyStore(store)
    stall = slow.stall("put_if_absent", "/archive/")
    first = Background(lambda: collected(slow))
    stall.wait()
    collected(store)
    stall.release()
    first.result()
    assert known(store) == before
    assert [name.span for name in archive_of(store).names()] == [(2, 8)]


def test_a_collection_whose_records_another_one_takes_claims_no_more_than_it_has(store: ObjectStore) -> None:
    driver = opened(store)
    archive_of(store).begin()
    grown(store, driver, *range(8))
    before = known(store)
    slow = FaultyStore(store)
    here = LogArchive(home_of(slow).records.retrying(AT_ONCE), STREAM, "memory://table")
    times = {sequence: at for sequence, at in log(store).taken_at().items() if sequence in range(2, 9)}
    stall = slow.stall("get", f"{5:020d}")
    first = Background(lambda: here.keep(times))
    stall.wait()
    while sum(one.verb == "get" for one in slow.log) < len(times):
        time.sleep(0.01)
    collected(store)
    stall.release()
    assert 5 not in first.result()
    assert known(store) == before
    for name in here.names():
        assert sequences(here.read(name)) == list(range(name.first, name.last + 1))


def test_a_crash_after_every_operation_of_a_collection_loses_no_record(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archived, "MAX_RECORDS", 3)
    number, done = 0, False
    while not done:
        number += 1
        place = FolderStore(store, f"run-{number}")
        driver = opened(place)
        archive_of(place).begin()
        grown(place, driver, *range(4))
        driver = opened(place, "other")
        grown(place, driver, *range(4, 9))
        before, state = known(place), log(place).read()
        dying = FaultyStore(place, crash_after=number)
        with contextlib.suppress(Crash, HeadgateError):
            collected(dying)
        done = not dying.crashed
        assert known(place) == before, f"crash after operation {number}"
        assert log(place).read() == state
        collected(place)
        assert known(place) == before, f"collected again after a crash after operation {number}"
        assert log(place).sequences() == {1, 6, 11}
        assert [name.span for name in archive_of(place).names()] == [(2, 4), (5, 8), (9, 10)], "as without a crash"
        grown(place, opened(place, "third"), 9)
        assert collected(place).kept == ()
    assert number > 35, "the walk went through a whole collection"


def test_a_crash_after_every_operation_of_a_fold_loses_no_record(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "LOT", 4)
    number, done = 0, False
    while not done:
        number += 1
        place = FolderStore(store, f"run-{number}")
        driver = opened(place)
        archive_of(place).begin()
        grown(place, driver, *range(5))
        grown(place, driver, 5)
        before = known(place)
        dying = FaultyStore(place, crash_after=number)
        with contextlib.suppress(Crash, HeadgateError):
            tidy(home_of(dying).records, CommitLog(home_of(dying).records.retrying(AT_ONCE), STREAM, "x"))
        done = not dying.crashed
        assert known(place) == before, f"crash after operation {number}"
        collected(place)
        assert known(place) == before
        assert archive_of(place).runs() == [(2, 6)]
    assert number > 12


def test_a_crash_after_every_operation_of_a_beginning_leaves_one_that_begins(store: ObjectStore) -> None:
    for number in range(1, 6):
        place = FolderStore(store, f"run-{number}")
        grown(place, opened(place), 0, 1)
        dying = FaultyStore(place, crash_after=number)
        with contextlib.suppress(Crash):
            archive_of(dying).begin()
        archive_of(place).begin()
        assert archive_of(place).since() == 0
    assert not dying.crashed


def test_what_cannot_be_archived_is_kept_and_named(store: ObjectStore) -> None:
    driver = opened(store)
    archive_of(store).begin()
    grown(store, driver, 0, 1, 2)
    grown(store, driver, 3)
    refusing = FaultyStore(store, lambda one: Fault.FAIL if "/archive/" in one.key and "put" in one.verb else None)
    found = collected(refusing)
    assert "archiving them failed" in found.kept[0]
    assert [one.kind for one in found.found] == ["fold"], "what needs no archive goes"
    assert log(store).sequences() == {1, 2, 3, 4, 5}
    assert collected(store).kept == ()
    assert log(store).sequences() == {1, 5}


def test_a_record_that_is_damaged_stays_in_the_log_and_the_others_are_archived(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "LOT", 1)
    driver = opened(store)
    archive_of(store).begin()
    grown(store, driver, *range(5))
    grown(store, driver, 5)
    records, before = home_of(store).records, known(store)
    damaged = f"{log(store).folder}/log/{4:020d}.json"
    text = bytes(records.get(damaged))
    records.put_overwrite(damaged, b"junk")
    assert tidy(records, log(store), set(range(2, 7))) == [2, 3, 5, 6]
    assert log(store).sequences() == {1, 4, 7}
    assert sequences(list(archive_of(store).above(0))) == [2, 3, 5, 6]
    assert [name.span for name in archive_of(store).names()] == [(2, 3), (5, 6)], "no name claims it"
    # It is restored, as fsck advises: the next collection archives it before it goes.
    records.put_overwrite(damaged, text)
    collected(store)
    assert log(store).sequences() == {1, 7}
    assert {one: record for one, (record, _) in known(store).items()} == {
        one: record for one, (record, _) in before.items()
    }


def test_a_record_that_comes_again_keeps_its_first_time(store: ObjectStore) -> None:
    """A committer that stalled puts its own record once more where it was collected."""
    driver = opened(store)
    archive_of(store).begin()
    grown(store, driver, *range(4))
    before = known(store)
    text = log(store).stored(3)[1]
    collected(store)
    home_of(store).records.put_if_absent(f"{log(store).folder}/log/{3:020d}.json", text)
    collected(store)
    assert known(store) == before
    assert [name.span for name in archive_of(store).names()] == [(2, 4)]


def test_a_damaged_object_is_told_with_its_place(store: ObjectStore) -> None:
    driver, archive = opened(store), archive_of(store)
    archive.begin()
    grown(store, driver, *range(4))
    collected(store)
    (name,) = archive.names()
    home_of(store).records.put_overwrite(archive.key(name), b"junk")
    with pytest.raises(Corrupt) as told:
        list(archive.above(0))
    assert str(name) in str(told.value.detail["key"])
