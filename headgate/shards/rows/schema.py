"""The columns of a table's rows: as users see them, and as entries and SSTables store them.

The storage schema is Lance's own: the base columns in order, each with its field id (also nested children), columns
outside the primary key nullable, `_tombstone` last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import Corrupt, InvalidInput, nearest
from headgate.shards.rows.evolution import FIELD_ID, adopted_column, matches

TOMBSTONE = "_tombstone"
PRIMARY_KEY = b"lance-schema:unenforced-primary-key"

RESERVED_METADATA = frozenset(
    {
        b"writer_epoch",
        b"generation",
        b"fence_sentinel",
    }
)
"""Schema metadata keys that belong to the entry, never to the table."""

_RESERVED_PREFIX = b"mem_wal_target_"
"""Prefix of five more of native's keys, for tables with blobs."""


class ArrowStream(Protocol):
    """What Polars, DuckDB, pandas and others export: rows as a stream of Arrow batches."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Rows: TypeAlias = "pa.RecordBatch | pa.Table | Sequence[pa.RecordBatch] | ArrowStream"
"""The rows that a put accepts."""


@dataclass(frozen=True)
class RowSchema:
    """A table's columns. `logical` carries the field ids in its field metadata; picklable."""

    logical: pa.Schema
    field_ids: tuple[int, ...] = ()
    """All field ids in depth-first order: some inner fields of Lance have no Arrow field for their id."""

    @classmethod
    def of(cls, schema: pa.Schema, field_ids: Sequence[int] | None = None) -> RowSchema:
        """The schema with field ids in depth-first order: the given ones, or 0, 1, 2 … as in a new Lance table."""
        if TOMBSTONE in schema.names:
            raise InvalidInput(f"Invalid column name {TOMBSTONE!r}: the storage format uses it.")
        if len(set(schema.names)) != len(schema.names):
            raise InvalidInput(f"Column names must be unique, got {schema.names}.")
        used: list[int] = []
        source = iter(field_ids) if field_ids is not None else iter(range(1 << 30))

        def ids() -> int:
            used.append(next(source))
            return used[-1]

        return cls(pa.schema([_with_id(field, ids) for field in schema], metadata=schema.metadata), tuple(used))

    @cached_property
    def primary_key(self) -> tuple[str, ...]:
        """Names of the key columns; empty for a table without a key."""
        return tuple(field.name for field in self.logical if _is_key(field))

    @cached_property
    def storage(self) -> pa.Schema:
        """The schema of entries and SSTables, without metadata of single entries."""
        fields = [field if _is_key(field) else field.with_nullable(True) for field in self.logical]
        return pa.schema([*fields, pa.field(TOMBSTONE, pa.bool_(), nullable=False)], metadata=self.logical.metadata)

    @cached_property
    def table_metadata(self) -> dict[bytes, bytes]:
        """The table's own schema metadata, without reserved keys."""
        metadata = self.logical.metadata or {}
        return {key: value for key, value in metadata.items() if not is_reserved(key)}

    def stored_rows(self, rows: Rows) -> list[pa.RecordBatch]:
        """The rows in storage form, without empty batches. Data that fits as it is, is not copied.

        Columns may come in any order; a nullable one that is missing becomes null. Raises InvalidInput for an unknown
        column, a different type, or a null in a key.
        """
        return [self._stored(batch, deleted=False) for batch in self._given(rows) if batch.num_rows]

    def stored_deletes(self, keys: Rows) -> list[pa.RecordBatch]:
        """Tombstones for the keys: key columns set, the rest null."""
        if not self.primary_key:
            raise InvalidInput("This table has no primary key, so rows cannot be deleted by key.")
        batches = []
        for batch in self._given(keys):
            extra = [name for name in batch.schema.names if name not in self.primary_key]
            if extra or set(batch.schema.names) != set(self.primary_key):
                raise InvalidInput(f"A delete must have exactly the key columns {list(self.primary_key)}.")
            if batch.num_rows:
                batches.append(self._stored(batch, deleted=True))
        return batches

    def adopted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Converts a batch as some writer stored it to the current storage schema.

        Columns are matched by field id, and by name if the writer stored no ids: a column that was renamed since keeps
        its values, an added one is null, a dropped one is left out. Raises Corrupt if a type cannot be converted.
        """
        if batch.schema.equals(self.storage, check_metadata=True):
            return batch
        indexes = matches(self.storage, list(batch.schema))
        indexes[-1] = batch.schema.get_field_index(TOMBSTONE)
        columns = [_adopted_column(batch, i, field) for i, field in zip(indexes, self.storage, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=self.storage)

    def _given(self, rows: Rows) -> Iterable[pa.RecordBatch]:
        """Batches to store. A frame of another library may lay out its texts in another way."""
        batches = as_batches(rows)
        return batches if isinstance(batches, Sequence) else (_in_layout(batch, self.logical) for batch in batches)

    def _stored(self, batch: pa.RecordBatch, *, deleted: bool) -> pa.RecordBatch:
        names = batch.schema.names
        if len(set(names)) != len(names):
            raise InvalidInput(f"Column names must be unique, got {names}.")
        known = self._columns
        if unknown := [name for name in names if name not in known]:
            near = nearest(unknown[0], self.logical.names)
            hint = f"; did you mean {near!r}?" if near else f"; the table has {self.logical.names}"
            raise InvalidInput(f"Column {unknown[0]!r} not found in this table{hint}.")
        given = dict(zip(names, batch.columns, strict=True))
        columns: list[pa.Array] = []
        for name, column in known.items():
            required = column.is_key or (column.required and not deleted)
            if name in given:
                columns.append(_checked(given[name], name, column.type, required=required))
            elif required:
                raise InvalidInput(f"Column {name!r} is not nullable and is missing.")
            else:
                columns.append(pa.nulls(batch.num_rows, column.type))
        columns.append(_constant(deleted, batch.num_rows))
        return pa.RecordBatch.from_arrays(columns, schema=self.storage)

    @cached_property
    def _columns(self) -> dict[str, _Column]:
        """Columns by name, to check a batch against: asking Arrow for each field of each batch costs more than the rows
        of a small batch.
        """
        keys = set(self.primary_key)
        return {f.name: _Column(f.type, f.name in keys, f.name in keys or not f.nullable) for f in self.logical}


@dataclass(frozen=True, slots=True)
class _Column:
    type: pa.DataType
    is_key: bool
    required: bool


def is_reserved(key: bytes) -> bool:
    """True if a schema metadata key belongs to an entry, never to a table."""
    return key in RESERVED_METADATA or key.startswith(_RESERVED_PREFIX)


def as_batches(rows: Rows) -> Iterable[pa.RecordBatch]:
    """The record batches of any rows that a put accepts."""
    if isinstance(rows, pa.RecordBatch):
        return [rows]
    if isinstance(rows, pa.Table):
        batches: list[pa.RecordBatch] = rows.to_batches()
        return batches
    if isinstance(rows, Sequence) and all(isinstance(batch, pa.RecordBatch) for batch in rows):
        return rows
    if hasattr(rows, "__arrow_c_stream__"):
        reader: Iterable[pa.RecordBatch] = pa.RecordBatchReader.from_stream(rows)
        return reader
    raise InvalidInput(
        f"rows must be a pyarrow Table or RecordBatch, a list of batches, or a frame of Polars, DuckDB or pandas, "
        f"got {type(rows).__name__}.",
        advice="make a list of dicts a table with pa.Table.from_pylist(rows, schema=table.schema); nothing was written",
    )


_SAME_VALUES = (
    (pa.string(), pa.large_string(), pa.string_view()),
    (pa.binary(), pa.large_binary(), pa.binary_view()),
)
"""Types that hold the same values in another layout: Polars and DuckDB have others than most tables."""


def _in_layout(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    fields = []
    for field in batch.schema:
        index = schema.get_field_index(field.name)
        kind = field.type if index < 0 else schema.field(index).type
        is_same = any(field.type in group and kind in group for group in _SAME_VALUES)
        fields.append(pa.field(field.name, kind if is_same else field.type))
    return batch.cast(pa.schema(fields))


def _checked(column: pa.Array, name: str, kind: pa.DataType, *, required: bool) -> pa.Array:
    if column.type != kind:
        raise InvalidInput(f"Column {name!r} must be {kind}, got {column.type}.")
    if required and column.null_count:
        raise InvalidInput(f"Column {name!r} is not nullable, but has {column.null_count} nulls.")
    return column


def _adopted_column(batch: pa.RecordBatch, index: int, field: pa.Field) -> pa.Array:
    if index < 0:
        if field.name == TOMBSTONE:
            return _constant(False, batch.num_rows)
        if _is_key(field):
            raise Corrupt(f"Stored rows lack the key column {field.name!r}.")
        return pa.nulls(batch.num_rows, field.type)
    return adopted_column(batch.column(index), batch.schema.field(index).type, field)


def _constant(value: bool, rows: int) -> pa.Array:
    if not value:
        return pa.BooleanArray.from_buffers(pa.bool_(), rows, [None, pa.py_buffer(bytes((rows + 7) // 8))])
    return pc.invert(_constant(False, rows))


def _is_key(field: pa.Field) -> bool:
    return (field.metadata or {}).get(PRIMARY_KEY) == b"true"


def _with_id(field: pa.Field, ids: Callable[[], int]) -> pa.Field:
    """The field with the next id; its children get the ids after it."""
    own = str(ids()).encode()
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_with_id(kind.field(i), ids) for i in range(kind.num_fields)])
    elif pa.types.is_fixed_size_list(kind) and pa.types.is_struct(kind.value_type):
        kind = pa.list_(_with_id(kind.value_field, ids), kind.list_size)
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(_with_id(kind.value_field, ids))
    elif pa.types.is_list(kind):
        kind = pa.list_(_with_id(kind.value_field, ids))
    elif pa.types.is_map(kind):
        ids()  # Lance numbers the key-value struct, which Arrow does not show.
        kind = pa.map_(_with_id(kind.key_field, ids), _with_id(kind.item_field, ids))
    return pa.field(field.name, kind, field.nullable, {**(field.metadata or {}), FIELD_ID: own})
