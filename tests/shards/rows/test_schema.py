"""RowSchema: the storage form of rows and deletes, and what is refused before anything is written."""

from __future__ import annotations

import pickle
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from headgate.connectors.lance.dataset import read_schema
from headgate.errors import InvalidInput
from headgate.shards.rows.evolution import FIELD_ID
from headgate.shards.rows.schema import PRIMARY_KEY, TOMBSTONE, RowSchema, as_batches

KEY = {PRIMARY_KEY: b"true"}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata=KEY),
        pa.field("note", pa.string()),
        pa.field("count", pa.int32(), nullable=False),
        pa.field("place", pa.struct([pa.field("x", pa.float64()), pa.field("tags", pa.list_(pa.string()))])),
    ],
    metadata={"owner": "us", "writer_epoch": "9", "generation": "9", "fence_sentinel": "x", "mem_wal_target_a": "1"},
)
ROWS = RowSchema.of(SCHEMA)


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(columns)


def ids(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int64())


def counts(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int32())


def field_ids(schema: pa.Schema) -> list[int]:
    def walk(field: pa.Field) -> list[int]:
        own = [int(field.metadata[FIELD_ID])] if FIELD_ID in (field.metadata or {}) else []
        children = [field.type.field(i) for i in range(field.type.num_fields)]
        return own + [number for child in children for number in walk(child)]

    return [number for field in schema for number in walk(field)]


def test_the_storage_form_has_field_ids_nullable_columns_and_the_tombstone_last() -> None:
    storage = ROWS.storage
    assert storage.names == ["id", "note", "count", "place", TOMBSTONE]
    assert [field.nullable for field in storage] == [False, True, True, True, False]
    assert field_ids(storage) == [0, 1, 2, 3, 4, 5, 6]
    assert storage.field("id").metadata[PRIMARY_KEY] == b"true"
    assert storage.field(TOMBSTONE).type == pa.bool_()
    assert ROWS.primary_key == ("id",)


def test_the_entrys_own_metadata_keys_are_never_taken_from_the_table() -> None:
    assert ROWS.table_metadata == {b"owner": b"us"}
    assert RowSchema.of(pa.schema([pa.field("a", pa.int64())])).table_metadata == {}


NESTED = pa.schema(
    [
        pa.field("a", pa.int64()),
        pa.field("s", pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.struct([pa.field("z", pa.utf8())]))])),
        pa.field("l", pa.list_(pa.field("item", pa.struct([pa.field("p", pa.int8())])))),
        pa.field("ll", pa.large_list(pa.int64())),
        pa.field("f", pa.list_(pa.float32(), 4)),
        pa.field("last", pa.binary()),
    ]
)


def test_field_ids_of_nested_columns_are_those_that_lance_gives(tmp_path: Path) -> None:
    """Depth first, as the dataset itself says; a fixed-size list of numbers is one field."""
    lance.write_dataset(NESTED.empty_table(), str(tmp_path / "t"))
    schema, given = read_schema(str(tmp_path / "t"))
    rows = RowSchema.of(schema, given)
    assert field_ids(rows.logical) == given
    assert RowSchema.of(NESTED).logical.equals(rows.logical, check_metadata=True)


def test_field_ids_with_holes_stay_as_the_dataset_has_them(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(pa.table({"a": [1], "b": [1], "c": [1]}), uri)
    dataset.drop_columns(["b"])
    schema, given = read_schema(uri)
    assert given == [0, 2]
    assert field_ids(RowSchema.of(schema, given).storage) == [0, 2]


def test_what_follows_a_map_has_the_id_that_lance_gives_it(tmp_path: Path) -> None:
    """A map has a hidden struct between itself and its key, and Lance gives that one an id as well."""
    uri = str(tmp_path / "t")
    schema = pa.schema(
        [
            pa.field("m", pa.map_(pa.string(), pa.int64())),
            pa.field("f", pa.list_(pa.struct([pa.field("x", pa.int8())]), 2)),
            pa.field("z", pa.int8()),
        ]
    )
    lance.write_dataset(schema.empty_table(), uri)
    read, given = read_schema(uri)
    assert given == [0, 1, 2, 3, 4, 5, 6, 7]
    assert field_ids(RowSchema.of(read, given).logical) == [0, 2, 3, 4, 5, 6, 7]


def test_rows_may_come_in_any_order_and_without_what_may_be_null() -> None:
    (stored,) = ROWS.stored_rows(batch(count=counts(7), id=ids(1)))
    assert stored.schema == ROWS.storage
    assert stored.to_pydict() == {"id": [1], "note": [None], "count": [7], "place": [None], TOMBSTONE: [False]}


def test_what_fits_is_not_copied() -> None:
    column = ids(*range(1000))
    (stored,) = ROWS.stored_rows(batch(id=column, count=counts(*range(1000))))
    assert stored.column("id").buffers()[1].address == column.buffers()[1].address


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 64, 1001])
def test_tombstones_are_set_for_deletes_and_for_nothing_else(rows: int) -> None:
    values = ids(*range(rows))
    (put,) = ROWS.stored_rows(batch(id=values, count=counts(*range(rows))))
    (deleted,) = ROWS.stored_deletes(batch(id=values))
    assert put.column(TOMBSTONE).to_pylist() == [False] * rows
    assert deleted.column(TOMBSTONE).to_pylist() == [True] * rows
    assert deleted.column("count").null_count == rows
    assert deleted.column("id").to_pylist() == list(range(rows))


def test_empty_batches_are_left_out() -> None:
    empty = batch(id=ids(), count=counts())
    assert ROWS.stored_rows([empty, batch(id=ids(1), count=counts(1)), empty])[0].num_rows == 1
    assert ROWS.stored_rows(empty) == []
    assert ROWS.stored_deletes(batch(id=ids())) == []


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (batch(id=ids(1), count=counts(1), nite=pa.array(["x"])), "did you mean 'note'"),
        (batch(id=ids(1), count=counts(1), zzz=pa.array(["x"])), "the table has"),
        (batch(id=pa.array([1], pa.int32()), count=counts(1)), "'id' must be int64, got int32"),
        (batch(id=ids(None), count=counts(1)), "'id' is not nullable, but has 1 nulls"),
        (batch(count=counts(1)), "'id' is not nullable and is missing"),
        (batch(id=ids(1), count=counts(None)), "'count' is not nullable"),
        (batch(id=ids(1)), "'count' is not nullable and is missing"),
        (batch(id=ids(1), count=counts(1), note=pa.array(["x"], pa.large_string())), "must be string"),
        (pa.RecordBatch.from_arrays([ids(1), ids(2)], names=["id", "id"]), "unique"),
        (batch(id=ids(1), count=counts(1), _tombstone=pa.array([True])), "Column '_tombstone' not found"),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_the_reason(rows: pa.RecordBatch, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        ROWS.stored_rows(rows)


@pytest.mark.parametrize("keys", [batch(note=pa.array(["x"])), batch(id=ids(1), note=pa.array(["x"]))])
def test_a_delete_takes_exactly_the_key(keys: pa.RecordBatch) -> None:
    with pytest.raises(InvalidInput, match=r"exactly the key columns \['id'\]"):
        ROWS.stored_deletes(keys)
    with pytest.raises(InvalidInput, match="is not nullable"):
        ROWS.stored_deletes(batch(id=ids(None)))


@pytest.mark.parametrize("rows", ["text", b"bytes", 5, None, [1], [ids(1)], {"id": [1]}])
def test_what_is_no_rows_is_refused(rows: object) -> None:
    with pytest.raises(InvalidInput, match="RecordBatch"):
        list(as_batches(rows))


@pytest.mark.parametrize("names", [["a", "a"], ["a", TOMBSTONE]])
def test_a_table_with_impossible_columns_is_refused(names: list[str]) -> None:
    with pytest.raises(InvalidInput):
        RowSchema.of(pa.schema([pa.field(name, pa.int64()) for name in names]))


def test_a_row_schema_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(ROWS))
    assert copy.storage.equals(ROWS.storage, check_metadata=True)
    assert copy == ROWS
