"""A filter is one expression, judged by Lance: the same in base, SSTables and tail, and it never shows a hidden row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner

from headgate.checkpoints.snapshots.parts import part_batches
from headgate.checkpoints.snapshots.splits import plan_read
from headgate.cli import main
from headgate.connectors.lance.filters import check_filter
from headgate.errors import InvalidInput
from headgate.table.create import create_table
from headgate.table.table import Table

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("note", pa.string()), pa.field("size", pa.int64())])
VISIBLE = {1: 10, 3: 30, 4: 40, 6: 60, 7: 70, 8: 80}
"""id → size: 1 and 8 of the base, 4 and 7 of an SSTable, 3 and 6 of the tail."""

COMMENTED = [
    "id < 7 --",
    "id < 7 -- and more\n",
    "/* c */ id < 7",
    "id /* ) or ( */ < 7",
    "(id < 7)",
    "note <> ')' and id < 7",
]
SEVERAL = [
    "1=1) or (1=1",
    "1=1) nonsense",
    "id < 7 order by id",
    "id < 7 limit 1",
    "id < 7; drop table t",
    "id < 7;",
    "id < 7, id < 8",
    "1=1 as boolean) or cast(1=1",
    "id < 7\x00",
]
REFUSED = [
    "id in (select id from t)",
    "exists (select 1)",
    "id < 7 union select 1",
    "id < 7 /*",
    "",
    "id",
    "nowhere = 1",
    "_tombstone",
    "not _tombstone",
    "_rowid = 0",
    "_RowAddr = 0",
    "__headgate_place = 1",
]


def _rows(**sizes: int) -> pa.Table:
    ids = [int(name[1:]) for name in sizes]
    notes = [f"red number {one}" for one in ids]
    return pa.table(
        [pa.array(ids, pa.int64()), pa.array(notes), pa.array([*sizes.values()], pa.int64())], schema=SCHEMA
    )


def _keys(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64())})


@pytest.fixture(scope="module")
def layered(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Each layer deletes and overwrites rows of the ones below; `VISIBLE` is what counts."""
    table = create_table(str(tmp_path_factory.mktemp("filters") / "t"), SCHEMA, primary_key="id", full_text="note")
    base = _rows(_1=10, _2=20, _3=1, _4=2, _5=3, _8=80)
    lance.write_dataset(base.cast(table.schema), table.uri, mode="append")
    with table.writer("single") as writer:
        writer.put(_rows(_4=40, _6=4, _7=70, _9=90))
        writer.delete(_keys(2, 5))
        writer.flush_memtable()
        writer.put(_rows(_3=30, _6=60))
        writer.delete(_keys(9))
    return table


def _scan(table: Table, filter: Any) -> dict[int, int]:
    return _sizes(table.scan(filter=filter).read_all())


def _search(table: Table, filter: Any) -> dict[int, int]:
    return _sizes(table.search("red", filter=filter))


def _parts(table: Table, filter: Any) -> dict[int, int]:
    """As the tasks of `spark.read` do."""
    plan = plan_read(table.home, table.shard_ids(), None)
    batches = [batch for part in plan.parts for batch in part_batches(plan, part, None, filter)]
    return _sizes(pa.Table.from_batches(batches, plan.home.schema.logical.remove_metadata()))


def _sizes(rows: pa.Table) -> dict[int, int]:
    found = rows.select(["id", "size"]).to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row["size"] for row in found}


READERS = [_scan, _search, _parts]


@pytest.mark.parametrize("reader", READERS)
def test_a_filter_shows_no_row_that_was_deleted_or_overwritten(layered: Table, reader: Any) -> None:
    assert reader(layered, "1=1") == reader(layered, "size > 0 or size is null") == VISIBLE
    assert reader(layered, "size < 5") == {}
    assert reader(layered, "size is null") == {}
    for filter in COMMENTED:
        assert reader(layered, filter) == {id: size for id, size in VISIBLE.items() if id < 7}, filter


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_single_expression_is_refused(layered: Table, reader: Any) -> None:
    for filter in SEVERAL:
        with pytest.raises(InvalidInput, match="one expression") as error:
            reader(layered, filter)
        assert "order by" in str(error.value.advice), "the advice names what does not belong into a filter"
    for filter in REFUSED:
        with pytest.raises(InvalidInput, match="Lance rejects the filter"):
            reader(layered, filter)


DEEP = {
    "truth": "(id > 1)" + " is true" * 3_000,
    "sums": "id > 1" + " + 1" * 3_000,
    "ranges": "id" + " between 1 and 2" * 3_000,
    "brackets": "(" * 3_000 + "id > 1" + ")" * 3_000,
    "signs": "id > 1" + " - - 1" * 1_500,
    "casts": "id" + "::int" * 3_000 + " > 1",
    "likes": "note" + " like note" * 3_000,
}
LONG = {
    "and": " and ".join(["id <> -1"] * 3_000),
    "or": " or ".join(["id between 1 and 2"] * 1_000),
    "list": f"id in ({', '.join(map(str, range(3_000)))})",
    "sum": "id > 1" + " + 1" * 150,
    "text": f"note <> '{'(' * 3_000}'",
}


@pytest.mark.parametrize("filter", DEEP.values(), ids=DEEP)
def test_what_would_overflow_lances_stack_is_refused(filter: str) -> None:
    with pytest.raises(InvalidInput, match="levels deep"):
        check_filter(SCHEMA, filter)


@pytest.mark.parametrize("filter", LONG.values(), ids=LONG)
def test_what_is_long_and_flat_is_taken(filter: str) -> None:
    check_filter(SCHEMA, filter)


def test_lance_s_own_reason_is_in_the_message(layered: Table) -> None:
    with pytest.raises(InvalidInput, match=r"'nowhere = 1': .*No field named nowhere") as error:
        layered.scan(filter="nowhere = 1")
    assert ".rs" not in error.value.what
    assert error.value.__cause__ is not None
    with pytest.raises(InvalidInput, match="No field named _rowid"):
        layered.scan(filter="_rowid = 0")
    assert _scan(layered, "note <> '_rowid'") == VISIBLE, "the text of a value is no column"
    long = " or ".join(f"nowhere = {number}" for number in range(5_000))
    with pytest.raises(InvalidInput, match="nowhere = 0 or") as error:
        layered.scan(filter=long)
    assert len(str(error.value)) < 2_000


@pytest.mark.parametrize("place", ["base", "sstable", "tail"])
def test_each_layer_alone_judges_alike(tmp_path: Path, place: str) -> None:
    """A table whose rows are in one layer only, with and without deletes: no layer takes more than the others."""
    table = create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", full_text="note")
    rows = _rows(_1=10, _2=20, _3=30)
    if place == "base":
        lance.write_dataset(rows.cast(table.schema), table.uri, mode="append")
    else:
        with table.writer("single") as writer:
            writer.put(rows)
            writer.delete(_keys(3))
            if place == "sstable":
                writer.flush_memtable()
    for filter in SEVERAL + REFUSED:
        for reader in READERS:
            with pytest.raises(InvalidInput):
                reader(table, filter)
    for reader in READERS:
        assert reader(table, "id < 3 --") == reader(table, pc.field("id") < 3) == {1: 10, 2: 20}
        with pytest.raises(InvalidInput, match=r"fails on a row.*Divide by zero") as error:
            reader(table, "1 / (size - 10) > 0")
        assert error.value.__cause__ is not None


@pytest.mark.parametrize("reader", READERS)
def test_an_arrow_expression_is_a_filter_too(layered: Table, reader: Any) -> None:
    for expression, expected in (
        (pc.field("id") < 7, {1, 3, 4, 6}),
        ((pc.field("size") >= 40) & (pc.field("note") != "red number 8"), {4, 6, 7}),
        (pc.field("id").isin([2, 3, 7]), {3, 7}),
        (pc.field("size").is_null(), set()),
    ):
        assert reader(layered, expression) == {id: VISIBLE[id] for id in expected}
    for refused in (pc.field("nowhere") == 1, pc.field("_tombstone"), pc.field("_rowid") == 0, pc.field("id")):
        with pytest.raises(InvalidInput, match="Lance rejects the filter"):
            reader(layered, refused)
    for other in (7, {"expr_filter": "1=1"}, ["1=1"]):
        with pytest.raises(InvalidInput, match=r"SQL text or a pyarrow\.compute\.Expression"):
            reader(layered, other)


def test_the_command_line_takes_and_refuses_the_same(layered: Table) -> None:
    def call(filter: str) -> Any:
        arguments = ["search", layered.uri, "red", "--filter", filter, "--output", "json"]
        return CliRunner().invoke(main, arguments, prog_name="headgate", catch_exceptions=False)

    assert {hit["id"] for hit in json.loads(call("id < 7 --").stdout)["hits"]} == {1, 3, 4, 6}
    for filter in ("1=1) or (1=1", "id < 7 order by id", "id in (select id from t)"):
        done = call(filter)
        assert (done.exit_code, "filter" in done.stderr, "_tombstone" in done.stderr) == (2, True, False), done.stderr
