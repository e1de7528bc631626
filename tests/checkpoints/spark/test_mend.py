"""A start mends what a power cut leaves of Spark's checkpoint, tells what was wrong, and touches nothing else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.spark.compare import look_at_spark, standing
from headgate.checkpoints.spark.directory import SparkCheckpoint
from headgate.checkpoints.spark.recover import Mended, check_startable, mend
from headgate.connectors.objects import open_store
from headgate.connectors.objects.port import ObjectStore
from headgate.errors import InvalidInput
from headgate.shards.shard import TableHome
from tests.support.directories import equal_batches, put, spark_directory
from tests.support.life import QUERY, check_exactly_once, home_of, open_driver, ranges_of, run_batch

Damage = Callable[[Path], object]

BATCHES = 3
NEWEST = ("metadata", "offsets/2", "commits/2")


@pytest.fixture
def home(store: ObjectStore) -> TableHome:
    return home_of(store)


def streamed(home: TableHome, batches: int = BATCHES) -> None:
    driver = open_driver(home)
    for number in range(batches):
        run_batch(driver, number, ranges_of(number))


def mended(home: TableHome, path: Path) -> Mended | None:
    return mend(home, "s", SparkCheckpoint(str(path)), lambda: open_store(str(path)))


def goes_on(home: TableHome, path: Path) -> None:
    """What Spark would do next continues the table exactly."""
    checkpoint = SparkCheckpoint(str(path))
    head = CommitLog(home.records, "s", home.uri).read().head
    assert not standing(head, look_at_spark(checkpoint)).needs_rebuild
    check_startable(home, "s", checkpoint)
    assert mended(home, path) is None
    query = checkpoint.query_id()
    run_batch(open_driver(home, query=query), BATCHES, ranges_of(BATCHES), query)
    check_exactly_once(home, [part for number in range(BATCHES + 1) for part in ranges_of(number)])


def crc(root: Path, name: str) -> Path:
    path = root / name
    return path.parent / f".{path.name}.crc"


def emptied(*names: str) -> Damage:
    """As ext4 leaves files that were renamed and not synced; their checksum files too."""
    return lambda root: [path.write_bytes(b"") for name in names for path in (root / name, crc(root, name))]


def zeroed(name: str) -> Damage:
    return lambda root: (root / name).write_bytes(bytes((root / name).stat().st_size))


def cut(name: str, at: int) -> Damage:
    return lambda root: (root / name).write_bytes((root / name).read_bytes()[:at])


def gone(*names: str, checksum: bool = True) -> Damage:
    def damage(root: Path) -> None:
        for name in names:
            (root / name).unlink()
            if checksum:
                crc(root, name).unlink()

    return damage


DAMAGES: dict[str, Damage] = {
    **{f"empty {name}": emptied(name) for name in NEWEST},
    **{f"zeros for {name}": zeroed(name) for name in NEWEST},
    **{f"{name} cut at {at}": cut(name, at) for name in NEWEST for at in (2, -1)},
    "no metadata": gone("metadata"),
    "no offsets": gone("offsets/2"),
    "no offsets and no commit": gone("offsets/2", "commits/2"),
    "no commit, its checksum is left": gone("commits/2", checksum=False),
    "no offsets and no commit, their checksums are left": gone("offsets/2", "commits/2", checksum=False),
    "everything empty": emptied(
        "metadata", "sources/0/0", *(f"{f}/{n}" for f in ("offsets", "commits") for n in range(3))
    ),
    "one empty, one missing": lambda root: (emptied("offsets/2")(root), gone("commits/2")(root)),
    "the last minute is missing": gone("offsets/1", "offsets/2", "commits/1", "commits/2"),
    "nothing but the query": gone("sources/0/0", *(f"{f}/{n}" for f in ("offsets", "commits") for n in range(3))),
    "no directory": shutil.rmtree,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_what_a_power_cut_takes_from_spark_is_rebuilt_from_the_table(
    home: TableHome, tmp_path: Path, damage: Damage
) -> None:
    streamed(home)
    path = tmp_path / "c"
    checkpoint = spark_directory(path, equal_batches(BATCHES), done=BATCHES)
    damage(path)
    with pytest.raises(InvalidInput) as told:
        check_startable(home, "s", checkpoint)
    done = mended(home, path)
    assert done is not None
    assert told.value.what == done.why, "an application of one's own is told the same"
    assert str(told.value.advice).endswith("--apply")
    assert (done.rebuilt.moved_to is None) == (damage is shutil.rmtree)
    goes_on(home, path)


HARMLESS: dict[str, Damage] = {
    "nothing": lambda root: None,
    "no commit": gone("commits/2"),
    "checksums that are empty": lambda root: [crc(root, name).write_bytes(b"") for name in NEWEST],
    "checksums that do not fit": lambda root: [crc(root, name).write_bytes(b"crc\0\0\0\2\0none") for name in NEWEST],
    "no checksums": lambda root: [crc(root, name).unlink() for name in NEWEST],  # type: ignore[func-returns-value]
    "a temporary file": lambda root: put(root, "offsets/.3.5f2c.tmp", ""),
    "where the sources began, long ago": emptied("sources/0/0"),
    "state of nobody": lambda root: put(root, "statement", ""),
}
"""Seen with Spark 4.2: it starts from these. It does not compare what it reads with Hadoop's checksums."""


@pytest.mark.parametrize("damage", HARMLESS.values(), ids=HARMLESS.keys())
def test_what_spark_starts_from_is_left_alone(home: TableHome, tmp_path: Path, damage: Damage) -> None:
    streamed(home)
    path = tmp_path / "c"
    spark_directory(path, equal_batches(BATCHES), done=BATCHES)
    damage(path)
    before = {one: one.stat().st_size for one in path.rglob("*")}
    goes_on(home, path)
    assert {one: one.stat().st_size for one in path.rglob("*")} == before


@pytest.mark.parametrize("name", ["metadata", "offsets/0", "sources/0/0"])
def test_a_stream_without_a_batch_begins_once_more_where_it_began(home: TableHome, tmp_path: Path, name: str) -> None:
    path = tmp_path / "c"
    checkpoint = spark_directory(path, [ranges_of(5)], done=0)
    if name == "sources/0/0":
        gone("offsets/0")(path)
    emptied(name)(path)
    done = mended(home, path)
    assert done is not None
    assert checkpoint.planned() == ()
    begun = (
        {}
        if name == "sources/0/0"
        else {"sources/0/0": (Path(str(done.rebuilt.moved_to)) / "sources/0/0").read_bytes()}
    )
    assert checkpoint.begun() == begun, "not where `--start latest` would begin today"
    assert mended(home, path) is None
    assert checkpoint.query_id() == done.rebuilt.query_id


FOREIGN: dict[str, Callable[[Path], SparkCheckpoint]] = {
    "of another query": lambda path: spark_directory(path, equal_batches(3), done=3, query="another"),
    "newer than the table": lambda path: spark_directory(path, equal_batches(5), done=5),
}


@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_damaged_directory_that_no_power_cut_of_this_stream_left_is_told_and_kept(
    home: TableHome, tmp_path: Path, make: Callable[[Path], SparkCheckpoint]
) -> None:
    streamed(home)
    driver = open_driver(home)
    path = tmp_path / "c"
    make(path)
    emptied(f"offsets/{max(int(one.name) for one in path.glob('offsets/[0-9]'))}")(path)
    with pytest.raises(InvalidInput, match="not rebuilt automatically"):
        mended(home, path)
    assert [one.name for one in tmp_path.iterdir()] == ["c"]
    run_batch(driver, BATCHES, ranges_of(BATCHES))  # nobody was fenced


def test_a_format_of_a_newer_spark_is_no_damage(home: TableHome, tmp_path: Path) -> None:
    streamed(home)
    spark_directory(tmp_path / "c", equal_batches(BATCHES), done=BATCHES)
    put(tmp_path / "c", "offsets/2", "v9\n{}\n{}")
    assert mended(home, tmp_path / "c") is None


def test_a_stateful_query_is_told_that_its_checkpoint_cannot_be_rebuilt(home: TableHome, tmp_path: Path) -> None:
    streamed(home)
    checkpoint = spark_directory(tmp_path / "c", equal_batches(BATCHES), done=BATCHES)
    put(tmp_path / "c", "state/0/0/1.delta", "remembered")
    check_startable(home, "s", checkpoint)
    emptied("offsets/2")(tmp_path / "c")
    with pytest.raises(InvalidInput, match="cannot be rebuilt"):
        check_startable(home, "s", checkpoint)
    with pytest.raises(InvalidInput, match="cannot be rebuilt"):
        mended(home, tmp_path / "c")


def test_a_query_that_runs_beside_the_look_is_not_taken_for_damage(home: TableHome, tmp_path: Path) -> None:
    streamed(home)
    path = tmp_path / "c"
    driver = open_driver(home)

    class Busy(SparkCheckpoint):
        """The query plans, commits and finishes two batches between two reads of a look."""

        looks = 0

        def commits(self) -> tuple[int, ...]:
            self.looks += 1
            if self.looks < 4:
                first = BATCHES + 2 * (self.looks - 1)
                for number in (first, first + 1):
                    run_batch(driver, number, ranges_of(number))
                spark_directory(path, equal_batches(first + 2), done=first + 2)
            return super().commits()

    spark_directory(path, equal_batches(BATCHES), done=BATCHES)
    checkpoint = Busy(str(path))
    assert mend(home, "s", checkpoint, lambda: open_store(str(path))) is None
    assert checkpoint.looks > 3
    assert (driver.head.last is not None, checkpoint.query_id()) == (True, QUERY)


def test_what_was_rebuilt_is_on_disk_when_the_call_returns(
    home: TableHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamed(home)
    path = tmp_path / "c"
    spark_directory(path, equal_batches(BATCHES), done=BATCHES)
    emptied("metadata")(path)
    synced: dict[int, tuple[str, ...]] = {}
    real = os.fsync

    def fsync(file: int) -> None:
        status, target = os.fstat(file), f"/proc/self/fd/{file}"
        synced[status.st_ino] = tuple(os.listdir(target)) if os.path.isdir(target) else ()
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    assert mended(home, path) is not None
    made = [path, *path.rglob("*")]
    assert len(made) == 10, "four folders, six files"
    for one in (tmp_path, *made):
        assert one.stat().st_ino in synced, one
        if one.is_dir():
            assert set(synced[one.stat().st_ino]) == {below.name for below in one.iterdir()}, (
                "synced after its last name"
            )
