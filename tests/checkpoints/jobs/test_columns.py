"""Columns added, renamed and dropped on a table with rows in its base, SSTables and WAL; what cannot be is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import headgate
from headgate.checkpoints.jobs.columns import check_added, current_schema, difference
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.jobs.policy import CompactLimits
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.connectors.lance.datasets import field_ids
from headgate.connectors.lance.fields import add_numbered
from headgate.errors import InvalidInput
from headgate.shards.rows.schema import RowSchema
from headgate.steps import watching
from headgate.table.create import create_table
from headgate.table.table import Table, open_table
from tests.support.compactions import CONFIG, KINDS, append_native, keys, make_table, open_writer, rows, scanned
from tests.support.tables import make as make_streamed
from tests.support.tables import of_batches, open_stream, run_batch

MORE = pa.field("more", pa.int32())


def layered(table: Table) -> None:
    """A row of the base, of an SSTable and of the WAL, put with the columns of the beginning."""
    append_native(table, (1, "base"))
    with open_writer(table) as writer:
        writer.put(rows((2, "sstable")))
        writer.flush_memtable()
        writer.put(rows((3, "wal")))


def found(table: Table) -> list[dict[str, Any]]:
    return sorted(table.scan().read_all().to_pylist(), key=lambda one: str(one.get("id")))


CHANGES: dict[str, tuple[Callable[[Table], Table], Callable[[int, str], dict[str, Any]]]] = {
    "added": (lambda table: table.add_column(MORE), lambda i, note: {"id": i, "note": note, "more": None}),
    "renamed": (lambda table: table.rename_column("note", "text"), lambda i, note: {"id": i, "text": note}),
    "dropped": (lambda table: table.drop_column("note"), lambda i, note: {"id": i}),
    "all": (
        lambda table: table.add_column(MORE).rename_column("note", "text").add_column(pa.field("x", pa.string())),
        lambda i, note: {"id": i, "text": note, "more": None, "x": None},
    ),
    "dropped and added again": (
        lambda table: table.drop_column("note").add_column(pa.field("note", pa.string())),
        lambda i, note: {"id": i, "note": None},
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_every_layer_show_the_new_columns_and_compaction_agrees(tmp_path: Path, kind: str, change: str) -> None:
    apply, shown = CHANGES[change]
    table = make_table(tmp_path / "t", kind)
    layered(table)
    changed = apply(table)
    expected = [shown(1, "base"), shown(2, "sstable"), shown(3, "wal")]
    assert changed.schema.names == list(expected[0])
    assert found(changed) == found(open_table(table.uri)) == expected
    changed.flush()
    changed.compact()
    assert found(changed) == expected
    native = lance.dataset(table.uri).to_table().to_pylist()
    assert sorted(native, key=lambda one: one["id"]) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_opened_before_the_change_flushes_and_compacts_nothing_away(tmp_path: Path, kind: str) -> None:
    """Its idea of the columns is old; what others have put since must not be cut down to it."""
    stale = make_table(tmp_path / "t", kind)
    layered(stale)
    table = stale.add_column(MORE)
    new = pa.record_batch({"id": [4], "note": ["new"], "more": pa.array([44], pa.int32())})
    with open_writer(table) as writer:
        writer.put(new)
    stale.flush()
    assert {"id": 4, "note": "new", "more": 44} in found(table)
    with open_writer(table) as writer:
        writer.put(new.set_column(0, "id", pa.array([5], pa.int64())))
    with stale.writer("single", CONFIG) as writer:
        writer.flush_memtable()
    stale.compact()
    assert [one["more"] for one in found(table)] == [None, None, None, 44, 44]
    assert lance.dataset(table.uri).to_table(filter="more = 44").num_rows == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_that_runs_goes_on_with_the_columns_it_began_with(tmp_path: Path, kind: str) -> None:
    table = make_table(tmp_path / "t", kind)
    with open_writer(table) as writer:
        writer.put(rows((1, "before")))
        changed = table.add_column(MORE).rename_column("note", "text")
        writer.put(rows((2, "after")))
        writer.flush_memtable()
        writer.put(rows((3, "later")))
        assert [(one["text"], one["more"]) for one in found(changed)] == [
            ("before", None),
            ("after", None),
            ("later", None),
        ]
        dropped = changed.drop_column("text")
        writer.put(rows((4, "whose note nobody sees")))
        writer.flush_memtable()
        writer.put(rows((5, "whose note nobody sees")))
    expected = [{"id": number, "more": None} for number in range(1, 6)]
    assert found(dropped) == expected
    dropped.flush()
    dropped.compact()
    assert found(dropped) == sorted(lance.dataset(table.uri).to_table().to_pylist(), key=lambda one: one["id"])
    assert found(dropped) == expected


def test_a_stream_that_runs_goes_on_and_its_rows_are_whole(tmp_path: Path) -> None:
    table = make_streamed(tmp_path)
    driver = open_stream(table)
    run_batch(driver, 0)
    changed = table.add_column(MORE).rename_column("note", "text")
    run_batch(driver, 1)
    driver.close_gaps(driver.settle(run_here, 1 << 20))
    run_batch(driver, 2)
    read = changed.scan().read_all()
    assert sorted(read.column("id").to_pylist()) == sorted(of_batches(range(3)).elements())
    assert set(read.column("text").to_pylist()) == {"n"}
    driver.compact(CompactLimits())
    assert lance.dataset(table.uri).count_rows(filter="text = 'n'") == 2 * read.num_rows // 3, "the last is in the WAL"
    dropped = changed.drop_column("text")
    run_batch(driver, 3)
    driver.close_gaps(driver.settle(run_here, 1 << 20))
    run_batch(driver, 4)
    read = dropped.scan().read_all()
    assert read.column_names == ["id", "more"]
    assert sorted(read.column("id").to_pylist()) == sorted(of_batches(range(5)).elements())
    driver.compact(CompactLimits())
    dropped.flush()
    dropped.compact()
    base = lance.dataset(table.uri).to_table()
    assert base.column_names == ["id", "more"]
    assert base.sort_by("id").column("id").equals(read.sort_by("id").column("id"))


TYPES: dict[str, Callable[[Table], object]] = {
    "narrowed": lambda table: lance.dataset(table.uri).alter_columns({"path": "id", "data_type": pa.int32()}),
    "other type": lambda table: lance.dataset(table.uri).alter_columns(
        {"path": "note", "data_type": pa.large_string()}
    ),
    "not null": lambda table: lance.dataset(table.uri).alter_columns({"path": "note", "nullable": False}),
}


@pytest.mark.parametrize("change", TYPES)
def test_canary_native_refuses_another_type_under_a_stream_and_nothing_is_written(tmp_path: Path, change: str) -> None:
    """Entries could not follow: a new type is a new field id. When this fails, `columns` has to tell the change."""
    table = make_streamed(tmp_path)
    driver = open_stream(table)
    run_batch(driver, 0)
    driver.close_gaps(driver.settle(run_here, 1 << 20))
    run_batch(driver, 1)
    before = {info.key for info in table.home.store.list("")}
    with pytest.raises(OSError, match="with a MemWAL attached"):
        TYPES[change](table)
    assert {info.key for info in table.home.store.list("")} == before
    assert difference(driver.home.schema, current_schema(driver.home)) is None
    run_batch(driver, 2)
    driver.close_gaps(driver.settle(run_here, 1 << 20))
    driver.compact(CompactLimits())
    assert Counter(table.scan(columns=["id"]).read_all().column("id").to_pylist()) == of_batches(range(3))


@pytest.mark.parametrize("kind", [pa.int8(), pa.string(), pa.int64()], ids=str)
@pytest.mark.parametrize("key", ["id", None])
def test_nothing_goes_into_a_base_that_was_overwritten_and_no_row_is_lost_where_it_is_restored(
    tmp_path: Path, key: str | None, kind: pa.DataType
) -> None:
    """An overwrite drops the MemWAL and begins with field id 0 again: ids mean other columns, perhaps other types."""
    table = make_streamed(tmp_path, key=key)
    driver = open_stream(table)
    run_batch(driver, 0)
    driver.close_gaps(driver.settle(run_here, 1 << 20))
    run_batch(driver, 1)
    last = lance.dataset(table.uri)
    lance.write_dataset(pa.table({"id": pa.array(["7"]).cast(kind), "note": ["x"]}), table.uri, mode="overwrite")
    before = {info.key for info in table.home.store.list("")}
    for work in (
        lambda: driver.settle(run_here, 1 << 20),
        lambda: driver.compact(CompactLimits()),
        lambda: current_schema(driver.home),
        lambda: table.refreshed(),
        lambda: table.writer("partition:orders:7"),
    ):
        with pytest.raises(InvalidInput, match="overwritten"):
            work()
    assert {info.key for info in table.home.store.list("")} == before
    run_batch(driver, 2)
    last.restore()
    driver.close_gaps(driver.settle(run_here, 1 << 20))
    driver.compact(CompactLimits())
    assert Counter(table.scan(columns=["id"]).read_all().column("id").to_pylist()) == of_batches(range(3))
    assert lance.dataset(table.uri).count_rows() == of_batches(range(3)).total()


def test_deletes_of_before_the_change_still_count(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", "key")
    append_native(table, (1, "base"), (2, "base"))
    with open_writer(table) as writer:
        writer.delete(keys(1))
        changed = table.add_column(MORE)
        writer.delete(keys(2))
    assert found(changed) == []
    changed.flush()
    changed.compact()
    assert lance.dataset(table.uri).count_rows() == 0


# -- field ids, and calls that died ----------------------------------------------------------


@pytest.mark.parametrize(("name", "kind"), [("note", pa.string()), ("other", pa.list_(pa.float32()))])
def test_an_added_column_never_shows_values_of_a_dropped_one(tmp_path: Path, name: str, kind: pa.DataType) -> None:
    """The rows are in the WAL alone: no data file of the base keeps the number of the dropped column."""
    table = make_table(tmp_path / "t", "key")
    with open_writer(table) as writer:
        writer.put(rows((1, "old")))
    changed = table.drop_column("note").add_column(pa.field(name, kind))
    assert found(changed) == [{"id": 1, name: None}]
    again = changed.drop_column(name).add_column("more int").drop_column("more").add_column(pa.field(name, kind))
    assert found(again) == [{"id": 1, name: None}]
    clone = again.drop_column(name).clone(str(tmp_path / "clone")).add_column(pa.field(name, kind))
    assert found(clone) == [{"id": 1, name: None}]
    again.flush()
    again.compact()
    assert lance.dataset(table.uri).schema.names == ["id"]
    assert found(open_table(table.uri)) == [{"id": 1}]


def test_canary_lance_gives_the_number_of_a_dropped_column_to_the_next_one(tmp_path: Path) -> None:
    """When this fails, `add_numbered` is not needed any more."""
    dataset = lance.write_dataset(pa.schema([("a", pa.int64()), ("b", pa.int64())]).empty_table(), tmp_path / "t")
    dataset.drop_columns(["b"])
    dataset.add_columns(pa.field("c", pa.string()))
    assert field_ids(dataset) == [0, 1]


def test_of_two_columns_that_are_added_at_once_none_is_lost(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", "key")
    stale = lance.dataset(table.uri)
    table.add_column("first string")
    with pytest.raises(OSError, match="onflict"):
        add_numbered(stale, pa.field("second", pa.string()), 0)
    assert table.add_column("second string").schema.names == ["id", "note", "first", "second"]


HALVES: dict[str, tuple[Callable[[Table], Table], list[str]]] = {
    "add": (lambda table: table.add_column("more int"), ["id", "note", "more"]),
    "rename": (lambda table: table.rename_column("note", "text"), ["id", "text"]),
    "drop": (lambda table: table.drop_column("note"), ["id"]),
}


@pytest.mark.parametrize("at", ["change", "streams"])
@pytest.mark.parametrize("change", HALVES)
def test_a_change_that_died_is_finished_by_the_same_call(tmp_path: Path, change: str, at: str) -> None:
    """Finished means that the stream was told as well (R22)."""
    apply, columns = HALVES[change]
    table = make_streamed(tmp_path)
    driver = open_stream(table)
    run_batch(driver, 0)

    def die(step: str) -> None:
        if step == at:
            raise Died

    with watching(die), pytest.raises(Died):
        apply(table)
    log = CommitLog(table.home.records, "s", table.uri)
    assert not log.read().head.changed, "nobody was told"
    changed = apply(open_table(table.uri))
    assert changed.schema.names == columns
    assert log.read().head.changed
    run_batch(driver, 1)
    assert apply(changed).schema.names == columns, "twice equals once"
    assert Counter(changed.scan(columns=["id"]).read_all().column("id").to_pylist()) == of_batches(range(2))


class Died(BaseException):
    """The process."""


# -- what is refused -----------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Table:
    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("note", pa.string()), pa.field("n", pa.int64())])
    made = create_table(
        str(tmp_path / "t"), schema, primary_key="id", sharding=headgate.bucket("id", 2), full_text="note"
    )
    with made.writer(made.sharding.known_names()[0], CONFIG) as writer:
        writer.put(pa.record_batch({"id": [1], "note": ["a"], "n": [1 << 40]}, schema=made.schema))
    return made


REFUSED: dict[str, Callable[[Table], object]] = {
    "narrowed": lambda table: table.add_column(pa.field("n", pa.int32())),
    "other type": lambda table: table.add_column(pa.field("n", pa.string())),
    "renamed to the key": lambda table: table.rename_column("n", "id"),
    "a key again": lambda table: table.add_column(pa.field("id", pa.int64())),
    "is not nullable": lambda table: table.add_column(pa.field("m", pa.int64(), nullable=False)),
    "reserved": lambda table: table.add_column(pa.field("_tombstone", pa.bool_())),
    "no field": lambda table: table.add_column("m"),
    "renamed key": lambda table: table.rename_column("id", "key"),
    "renamed to another": lambda table: table.rename_column("n", "note"),
    "renamed missing": lambda table: table.rename_column("nothing", "m"),
    "dropped key": lambda table: table.drop_column("id"),
    "dropped text": lambda table: table.drop_column("note"),
    "dropped missing": lambda table: table.drop_column("nothing"),
    "two at once": lambda table: table.add_column("a int, b int"),
    "no type": lambda table: table.add_column("a"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_change_that_cannot_be_followed_is_refused_before_anything_is_written(table: Table, what: str) -> None:
    before = {info.key for info in table.home.store.list("")}
    with pytest.raises(InvalidInput):
        REFUSED[what](table)
    assert {info.key for info in table.home.store.list("")} == before
    assert found(table) == [{"id": 1, "note": "a", "n": 1 << 40}]


def test_the_last_column_stays(tmp_path: Path) -> None:
    one = create_table(str(tmp_path / "one"), pa.schema([("a", pa.int64())]))
    with pytest.raises(InvalidInput, match="the only column"):
        one.drop_column("a")


def test_a_refused_type_says_both_and_what_to_do() -> None:
    rows_now = RowSchema.of(pa.schema([("n", pa.int64())]))
    with pytest.raises(InvalidInput, match=r"int64.*int32") as raised:
        check_added(rows_now, pa.field("n", pa.int32()))
    assert "another name" in str(raised.value)


@pytest.mark.parametrize(
    ("then", "now", "told"),
    [
        ({"a": 0, "b": 1}, {"a": 0, "b": 1}, None),
        ({"a": 0}, {"a": 0, "c": 2}, "added 'c'"),
        ({"a": 0, "b": 1}, {"a": 0}, "dropped 'b'"),
        ({"a": 0, "b": 1}, {"a": 0, "x": 1}, "renamed 'b' to 'x'"),
        ({"a": 0, "b": 1}, {"a": 0, "b": 2}, "added 'b', dropped 'b'"),
    ],
)
def test_what_changed_is_told_by_field_id(then: dict[str, int], now: dict[str, int], told: str | None) -> None:
    def schema(columns: dict[str, int]) -> RowSchema:
        return RowSchema.of(pa.schema([(name, pa.int64()) for name in columns]), list(columns.values()))

    assert difference(schema(then), schema(now)) == told


def test_a_changed_type_is_told_with_both() -> None:
    then, now = (RowSchema.of(pa.schema([("n", kind)])) for kind in (pa.int64(), pa.int32()))
    assert difference(then, now) == "changed 'n' from int64 to int32"


def test_scans_of_a_table_opened_before_show_its_own_columns(tmp_path: Path) -> None:
    stale = make_table(tmp_path / "t", "key")
    layered(stale)
    stale.add_column(MORE)
    assert scanned(stale) == [(1, "base"), (2, "sstable"), (3, "wal")]
    assert stale.refreshed().schema.names == ["id", "note", "more"]
