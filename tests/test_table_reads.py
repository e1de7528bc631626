"""Reading by plain values, and a table as other libraries take it."""

from __future__ import annotations

import html
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest

import headgate
from headgate.errors import InvalidInput


@pytest.fixture
def notes(tmp_path: Path) -> headgate.Table:
    """Ten rows of which three are in the base, two in SSTables with one deleted key, the others in the WALs."""
    table = headgate.create_table(
        tmp_path / "t",
        "id bigint not null, note string",
        primary_key="id",
        sharding=headgate.bucket("id", 2),
        full_text="note",
    )
    with table:
        put(table, 0, 1, 2)
        table.flush()
        table.compact()
        put(table, 3, 4, 10)
        table.delete(10)
        table.flush()
        put(table, 1, 5, 6, 7, 8, 9, 11)
        table.delete([{"id": 11}])
    return table


def put(table: headgate.Table, *ids: int) -> None:
    table.upsert(pa.table({"id": list(ids), "note": [f"note {i}" for i in ids]}, schema=table.schema))


# -- get ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        (1, [1]),
        ([1, 3, 5, 10, 99], [1, 3, 5]),
        ({"id": 2}, [2]),
        ([{"id": 2}, {"id": 4}], [2, 4]),
        ((2,), [2]),
        ([(2,), 3], [2, 3]),
        ([], []),
        (99, []),
        (pa.table({"id": [1, 2]}), [1, 2]),
        ([pa.record_batch({"id": [1]}), pa.record_batch({"id": [2]})], [1, 2]),
    ],
    ids=str,
)
def test_a_key_is_a_value_a_tuple_a_dict_or_a_list_of_these(notes: headgate.Table, keys: Any, found: list[int]) -> None:
    rows = notes.get(keys)
    assert sorted(rows["id"].to_pylist()) == found
    assert rows.schema.names == ["id", "note"]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("1", "'id' has type int64, got '1' of type str"),
        (1.5, "got 1.5 of type float"),
        ([1, True], "got True of type bool"),
        (None, "got None of type NoneType"),
        (2**70, "'id' has type int64"),
        ((1, 2), "2 values were given.*a list for several keys"),
        ({"ids": 1}, "did you mean 'id'"),
        ({}, "'id' is missing"),
        ([{"id": 1, "note": "x"}], "'note' is not part of it"),
        (pa.table({"id": ["1"]}), "must be int64, got string"),
    ],
    ids=str,
)
def test_keys_of_another_shape_or_type_are_refused(notes: headgate.Table, keys: Any, said: str) -> None:
    for call in (notes.get, notes.delete):
        with pytest.raises(InvalidInput, match=said):
            call(keys)
    notes.close()


def test_a_key_of_several_columns_is_a_tuple_or_a_dict(tmp_path: Path) -> None:
    table = headgate.create_table(
        tmp_path / "t", "shop string, number int, open boolean", primary_key=["number", "shop"]
    )
    rows = [{"shop": "a", "number": 1, "open": True}, {"shop": "b", "number": 1, "open": False}]
    with table:
        table.upsert(pa.Table.from_pylist(rows, schema=table.schema))
        assert table.get(("a", 1)).to_pylist() == rows[:1], "in the order of the table's columns"
        assert table.get({"number": 1, "shop": "b"}).to_pylist() == rows[1:]
        assert table.get([("a", 1), {"shop": "b", "number": 1}]).num_rows == 2
        with pytest.raises(InvalidInput, match="a tuple of 2 values"):
            table.get("a")
        with pytest.raises(InvalidInput, match="'number' has type int32, got 'a'"):
            table.get(("a", "a"))
        table.delete(("a", 1))
        assert table.count() == 1


@pytest.mark.parametrize(("kind", "key", "other"), [("string", "a", b"a"), ("binary", b"a", "a"), ("boolean", True, 1)])
def test_keys_of_text_of_bytes_and_of_flags(tmp_path: Path, kind: str, key: Any, other: Any) -> None:
    with headgate.create_table(tmp_path / "t", f"k {kind}, v int", primary_key="k") as table:
        table.upsert(pa.Table.from_pylist([{"k": key, "v": 1}], schema=table.schema))
        assert table.get(key).to_pylist() == [{"k": key, "v": 1}]
        with pytest.raises(InvalidInput, match=f"got {other!r}"):
            table.get(other)


def test_a_table_without_a_key_says_so(tmp_path: Path) -> None:
    table = headgate.create_table(tmp_path / "t", "id int")
    with pytest.raises(InvalidInput, match="no primary key"):
        table.get(1)


# -- scan and what it becomes --------------------------------------------------------


def test_columns_are_one_name_several_or_none(notes: headgate.Table) -> None:
    assert sorted(notes.scan(columns="id").read_all()["id"].to_pylist()) == list(range(10))
    assert notes.scan(columns="id").schema.names == ["id"]
    assert sum(batch.num_rows for batch in notes.scan(columns=[])) == 10
    assert notes.search("note", columns="id", k=3).column_names == ["id", "_score"]


@pytest.mark.parametrize("filter", [None, "id >= 4", "note = 'note 1'"])
def test_count_is_what_a_scan_gives(notes: headgate.Table, filter: str | None) -> None:
    assert notes.count(filter=filter) == notes.scan(filter=filter).read_all().num_rows > 0


def test_rows_without_a_key_are_counted_in_base_and_tail(tmp_path: Path) -> None:
    table = headgate.create_table(tmp_path / "t", "v int")
    for _ in range(2):
        table.compact()
        with table.writer("single") as writer:
            writer.put(pa.table({"v": [1, None, 3]}, schema=table.schema))
        table.flush()
    assert (table.count(), table.count(filter="v = 3"), table.head(4).num_rows) == (6, 2, 4)


@pytest.mark.parametrize("limit", [0, 1, 4, 10, 99])
def test_a_limit_ends_a_scan_early(notes: headgate.Table, limit: int) -> None:
    rows = notes.scan(limit=limit).read_all()
    assert rows.num_rows == min(limit, 10)
    assert len(set(rows["id"].to_pylist())) == rows.num_rows
    assert notes.head(limit, columns="note").num_rows == rows.num_rows
    assert all(one >= 5 for one in notes.scan(columns="id", filter="id >= 5", limit=limit).read_all()["id"].to_pylist())


@pytest.mark.parametrize("limit", [-1, 1.5, True, "3"])
def test_a_limit_that_is_no_number_of_rows_is_refused(notes: headgate.Table, limit: Any) -> None:
    with pytest.raises(InvalidInput, match="limit must be"):
        notes.scan(limit=limit)


def test_arrow_takes_the_table_as_it_is(notes: headgate.Table) -> None:
    expected = notes.to_arrow()
    assert pa.table(notes).equals(expected)
    assert pa.RecordBatchReader.from_stream(notes).read_all().equals(expected)
    assert sorted(expected["id"].to_pylist()) == list(range(10))


def test_duckdb_and_polars_take_the_table_as_it_is(notes: headgate.Table) -> None:
    expected = notes.to_arrow()
    (found,) = duckdb.execute("SELECT count(*), sum(id) FROM notes WHERE id >= 4").fetchall()
    assert found == (6, 39)
    for frame in (polars.DataFrame(notes), polars.from_arrow(notes.to_arrow()), notes.to_polars()):
        assert isinstance(frame, polars.DataFrame)
        assert frame.to_arrow().cast(expected.schema).equals(expected)
    assert notes.to_polars(columns="id", filter="id >= 4", limit=2).shape == (2, 1)


def test_pandas_takes_it_where_it_is_installed(notes: headgate.Table) -> None:
    if find_spec("pandas") is None:
        with pytest.raises(InvalidInput, match="pandas is not installed"):
            notes.to_pandas()
    else:
        assert sorted(notes.to_pandas(columns="id")["id"]) == list(range(10))


def test_it_shows_what_it_is(notes: headgate.Table) -> None:
    assert repr(notes).startswith(f"Table({notes.uri!r}, ['id int64 not null', 'note string'], primary_key=['id']")
    assert "full_text=['note']" in repr(notes)
    shown = notes._repr_html_()
    assert html.escape(notes.uri) in shown
    assert "<td>note</td><td>string</td><td>full text</td>" in shown


def test_names_are_escaped_in_a_notebook(tmp_path: Path) -> None:
    table = headgate.create_table(tmp_path / "t", pa.schema([("<b>", pa.int64())]))
    assert "<b></td>" not in table._repr_html_()
    assert "&lt;b&gt;" in table._repr_html_()
