"""The states that Spark's checkpoint and the commit log can be in, each told as what a start of the query would do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.records import Batch
from headgate.checkpoints.log.state import Head
from headgate.checkpoints.spark.compare import SparkLook, Standing, look_at_spark, standing
from headgate.checkpoints.spark.directory import SparkCheckpoint
from headgate.checkpoints.spark.recover import choose_stream, diagnose
from headgate.checkpoints.spark.rewind import rewind
from headgate.connectors.objects.port import ObjectStore
from headgate.errors import InvalidInput, NotFound
from headgate.shards.shard import TableHome
from tests.support.directories import equal_batches, put, spark_directory
from tests.support.life import QUERY, home_of, open_driver, ranges_of, run_batch


@pytest.fixture
def home(store: ObjectStore) -> TableHome:
    return home_of(store)


def committed(home: TableHome, batches: int, stream: str = "s", query: str = QUERY) -> Head:
    """A stream with so many batches in the log."""
    driver = open_driver(home, stream=stream, query=query)
    for number in range(batches):
        run_batch(driver, number, ranges_of(number), query)
    return driver.head


def stands(head: Head, checkpoint: SparkCheckpoint) -> Standing:
    return standing(head, look_at_spark(checkpoint))


# -- the five states ----------------------------------------------------------------------


def test_both_at_the_same_batch_are_aligned(home: TableHome, tmp_path: Path) -> None:
    found = stands(committed(home, 3), spark_directory(tmp_path / "c", equal_batches(3), done=3))
    assert (found.state, found.needs_rebuild) == ("aligned", False)


def test_a_batch_that_the_table_has_and_spark_does_not_know_to_be_done_is_skipped(
    home: TableHome, tmp_path: Path
) -> None:
    found = stands(committed(home, 3), spark_directory(tmp_path / "c", equal_batches(3), done=2))
    assert (found.state, found.needs_rebuild) == ("log ahead", False)
    assert found.upcoming[("orders", 0)] == (40, 60)


def test_a_batch_that_spark_has_logged_and_the_table_has_not_is_written(home: TableHome, tmp_path: Path) -> None:
    found = stands(committed(home, 2), spark_directory(tmp_path / "c", equal_batches(3), done=2))
    assert (found.state, found.needs_rebuild) == ("spark ahead", False)


def test_the_first_batch_of_all_may_be_logged_only(home: TableHome, tmp_path: Path) -> None:
    found = stands(committed(home, 0), spark_directory(tmp_path / "c", equal_batches(1), done=0))
    assert (found.state, found.needs_rebuild) == ("spark ahead", False)


def test_a_query_that_only_started_is_aligned_with_a_stream_without_a_batch(home: TableHome, tmp_path: Path) -> None:
    assert stands(committed(home, 0), spark_directory(tmp_path / "c", [], done=0)).state == "aligned"
    assert stands(committed(home, 0), SparkCheckpoint(str(tmp_path / "none"))).needs_rebuild is False


def test_a_directory_that_is_gone_is_lost(home: TableHome, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("none", "empty"):
        found = stands(committed(home, 2), SparkCheckpoint(str(tmp_path / name)))
        assert (found.state, found.needs_rebuild) == ("lost", True)


def test_a_new_checkpoint_over_an_old_stream_is_lost(home: TableHome, tmp_path: Path) -> None:
    assert stands(committed(home, 2), spark_directory(tmp_path / "c", [], done=0)).needs_rebuild
    first = spark_directory(tmp_path / "d", equal_batches(1), done=0, query="another")
    found = stands(committed(home, 2), first)
    assert (found.state, found.needs_rebuild) == ("lost", True)
    assert "goes back to 0" in found.why


def test_an_old_copy_is_lost_wherever_it_ends(home: TableHome, tmp_path: Path) -> None:
    head = committed(home, 4)
    for name, batches, done in (("done", 2, 2), ("logged", 3, 2)):
        found = stands(head, spark_directory(tmp_path / name, equal_batches(batches), done=done))
        assert (found.state, found.needs_rebuild) == ("lost", True), name
        assert "old copy" in found.why


def test_a_checkpoint_that_finished_what_the_table_never_got_is_ahead_and_must_be_rebuilt(
    home: TableHome, tmp_path: Path
) -> None:
    for name, batches in (("some", 2), ("none", 0)):
        found = stands(committed(home, batches), spark_directory(tmp_path / name, equal_batches(4), done=4))
        assert (found.state, found.needs_rebuild) == ("spark ahead", True), name


@pytest.mark.parametrize("done", [2, 3], ids=["a batch is logged", "between batches"])
@pytest.mark.parametrize("opened", [True, False], ids=["opened", "never opened"])
def test_a_checkpoint_of_a_table_that_was_made_anew_is_foreign_and_rebuilding_is_no_way_on(
    home: TableHome, tmp_path: Path, done: int, opened: bool
) -> None:
    if opened:
        committed(home, 0)
    found = diagnose(home, "s", spark_directory(tmp_path / "c", equal_batches(3), done=done)).standing
    assert (found.state, found.needs_rebuild) == ("foreign", False)


def test_a_log_that_begins_with_a_later_batch_is_not_aligned_until_that_is_on_record(
    home: TableHome, tmp_path: Path
) -> None:
    """As a release left it that took any batch into an empty log."""
    driver = open_driver(home)
    driver.commit(Batch(query_id=QUERY, batch_id=2, sources=ranges_of(2)))
    checkpoint = spark_directory(tmp_path / "c", equal_batches(3), done=3)
    assert stands(driver.head, checkpoint).state == "aligned", "their offsets are the same"
    found = diagnose(home, "s", checkpoint).standing
    assert found.state == "foreign"
    assert "begins with batch 2 of query" in found.why
    rewind(home, "s", {("orders", 0): 0})
    assert diagnose(home, "s", checkpoint).standing.state == "lost", "as after any rewind"


def test_the_same_batch_with_other_offsets_does_not_go_with_the_table(home: TableHome, tmp_path: Path) -> None:
    other = [ranges_of(0), ranges_of(1), tuple(ranges_of(2, partitions=(0,)))]
    found = stands(committed(home, 3), spark_directory(tmp_path / "c", other, done=2))
    assert (found.state, found.needs_rebuild) == ("lost", True)
    assert "other offsets" in found.why


def test_a_checkpoint_that_is_ahead_here_and_behind_there_does_not_go_with_the_table(
    home: TableHome, tmp_path: Path
) -> None:
    mixed = [(*ranges_of(0, size=50, partitions=(0,)), *ranges_of(0, size=10, partitions=(1,)))]
    found = stands(committed(home, 2), spark_directory(tmp_path / "c", mixed, done=1))
    assert (found.state, found.needs_rebuild) == ("lost", True)


def test_another_query_that_continues_exactly_is_aligned(home: TableHome, tmp_path: Path) -> None:
    found = stands(committed(home, 3), spark_directory(tmp_path / "c", equal_batches(3), done=3, query="a new one"))
    assert found.state == "aligned"


# -- damage -------------------------------------------------------------------------------

DAMAGES: dict[str, Callable[[Path], object]] = {
    "no metadata": lambda root: (root / "metadata").unlink(),
    "empty metadata": lambda root: (root / "metadata").write_text(""),
    "empty offsets": lambda root: (root / "offsets/2").write_text(""),
    "cut offsets": lambda root: (root / "offsets/2").write_text("v1\n{}"),
    "no offsets of the last batch": lambda root: (root / "offsets/2").unlink(),
    "no offsets before the last batch": lambda root: (root / "offsets/1").unlink(),
    "empty commit": lambda root: (root / "commits/2").write_text(""),
    "a newer version": lambda root: (root / "offsets/2").write_text("v9\n{}\n{}"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_what_spark_could_not_read_either_is_damage_and_told(
    home: TableHome, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    checkpoint = spark_directory(tmp_path / "c", equal_batches(3), done=3)
    damage(tmp_path / "c")
    found = stands(committed(home, 3), checkpoint)
    assert (found.state, found.needs_rebuild) == ("lost", True)
    assert found.why.startswith("The Spark checkpoint is damaged. Spark")


def test_a_batch_that_was_logged_without_the_one_before_is_damage(home: TableHome, tmp_path: Path) -> None:
    checkpoint = spark_directory(tmp_path / "c", equal_batches(3), done=2)
    (tmp_path / "c/offsets/1").unlink()
    assert "damaged" in stands(committed(home, 2), checkpoint).why


# -- which stream, and the whole diagnosis ----------------------------------------------------


def test_the_stream_is_the_given_one_the_only_one_or_that_of_the_query(home: TableHome) -> None:
    nothing = SparkLook("")
    with pytest.raises(NotFound, match="No stream"):
        choose_stream(home, nothing, None)
    committed(home, 1)
    assert choose_stream(home, nothing, None) == "s"
    driver = open_driver(home, [7], stream="other", query="second")
    run_batch(driver, 0, ranges_of(0, partitions=(7,)), "second")
    assert choose_stream(home, SparkLook("", ("metadata",), "second"), None) == "other"
    assert choose_stream(home, nothing, "given") == "given"
    with pytest.raises(InvalidInput, match="several streams") as refused:
        choose_stream(home, nothing, None)
    assert refused.value.advice == "name it with --stream: other, s"


def test_a_diagnosis_has_the_numbers_of_all_four_parties(home: TableHome, tmp_path: Path) -> None:
    committed(home, 2)
    found = diagnose(home, "s", spark_directory(tmp_path / "c", equal_batches(3), done=2))
    assert (found.spark.planned, found.spark.done) == (2, 1)
    assert (found.head.sequence, found.head.ends[("orders", 1)]) == (3, 40)
    assert found.spark.kafka_ends()[("orders", 1)] == 40
    assert [(one.name, one.epoch, one.listed, one.tip, one.replay_after) for one in found.shards] == [
        ("partition:orders:0", 1, 2, 3, 0),
        ("partition:orders:1", 1, 2, 3, 0),
    ]
    assert found.findings == ()


def test_a_damaged_shard_is_diagnosed_with_what_is_lost_and_what_is_not(home: TableHome, tmp_path: Path) -> None:
    committed(home, 2)
    shard = home.shard("partition:orders:0")
    # A dead attempt after the last batch: an entry without a byte, which no record lists.
    home.store.put_if_absent(shard.wal_key(3), b"")
    home.store.put_if_absent(f"_mem_wal/{shard.id}/wal/left.arrow.tmp.1", b"half")
    found = diagnose(home, "s", spark_directory(tmp_path / "c", equal_batches(2), done=2))
    (empty,) = (one for one in found.findings if one.code == "entry-empty")
    assert "no commit record lists it" in empty.lost
    assert "copy the fence barrier" in empty.do
    assert [one.code for one in found.findings if not one.is_error] == ["wal-stray"]
    home.store.delete(shard.wal_key(3))
    home.store.put_overwrite(shard.wal_key(2), b"")
    (empty,) = (
        one
        for one in diagnose(home, "s", SparkCheckpoint(str(tmp_path / "none"))).findings
        if one.code == "entry-empty"
    )
    assert empty.lost == "18 rows of batch 1 (commit record 3); readers fail at this position"


def test_a_stream_that_never_was_is_named_with_those_that_are(home: TableHome, tmp_path: Path) -> None:
    committed(home, 1)
    with pytest.raises(NotFound, match="Stream 'x' not found") as missing:
        diagnose(home, "x", SparkCheckpoint(str(tmp_path)))
    assert missing.value.advice == "its streams are: s; nothing was written"
    assert CommitLog(home.records, "x", home.uri).read().sequence == 0, "nothing was written"


def test_files_beside_spark_s_own_do_not_make_a_damaged_directory(home: TableHome, tmp_path: Path) -> None:
    checkpoint = spark_directory(tmp_path / "c", equal_batches(2), done=2)
    put(tmp_path / "c", "notes.txt", "mine")
    assert stands(committed(home, 2), checkpoint).state == "aligned"
