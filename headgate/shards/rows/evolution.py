"""Converts columns as some writer stored them to the table's current columns. Pure, on Arrow columns.

Fields are matched by field id at every depth, and by name if the writer stored no ids: a field that was renamed since
keeps its values, an added one is null, a dropped one is left out. Data that fits as it is, is not copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from headgate.errors import Corrupt

FIELD_ID = b"lance:field_id"


def field_id(field: pa.Field) -> bytes | None:
    """The field's id from its metadata."""
    return (field.metadata or {}).get(FIELD_ID)


def matches(wanted: Iterable[pa.Field], stored: Sequence[pa.Field]) -> list[int]:
    """For each wanted field the index of the stored one; -1 if there is none."""
    by_id: dict[bytes | None, int] = {
        own: index for index, field in enumerate(stored) if (own := field_id(field)) is not None
    }
    if by_id:
        return [by_id.get(field_id(field), -1) for field in wanted]
    by_name = {field.name: index for index, field in enumerate(stored)}
    return [by_name.get(field.name, -1) for field in wanted]


def adopted_column(column: pa.Array, stored: pa.DataType, field: pa.Field) -> pa.Array:
    """The column, stored as that type, converted to the field's type. Raises Corrupt if that is impossible."""
    try:
        return _fitted(column, stored, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        what = f"Stored column {field.name!r} has type {stored}, which cannot be read as {field.type}."
        raise Corrupt(what) from error


def _fitted(array: pa.Array, stored: pa.DataType, wanted: pa.DataType) -> pa.Array:
    """`stored` is the array's type with the field ids that the array itself may lack."""
    if stored.equals(wanted, check_metadata=True):
        return array
    if pa.types.is_struct(stored) and pa.types.is_struct(wanted):
        return _fitted_struct(array, stored, wanted)
    if stored.id == wanted.id and (
        pa.types.is_list(wanted) or pa.types.is_large_list(wanted) or pa.types.is_map(wanted)
    ):
        return _fitted_list(array, stored, wanted)
    return array if stored == wanted else array.cast(wanted)


def _fitted_struct(array: pa.StructArray, stored: pa.StructType, wanted: pa.StructType) -> pa.StructArray:
    fields = [wanted.field(i) for i in range(wanted.num_fields)]
    there = [stored.field(i) for i in range(stored.num_fields)]
    children = [
        _fitted(array.field(i), there[i].type, field.type) if i >= 0 else pa.nulls(len(array), field.type)
        for field, i in zip(fields, matches(fields, there), strict=True)
    ]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def _fitted_list(array: pa.Array, stored: pa.DataType, wanted: pa.DataType) -> pa.Array:
    """The same offsets and nulls with converted values."""
    if pa.types.is_map(wanted):
        now = pa.struct([wanted.key_field, wanted.item_field])
        then = pa.struct([stored.key_field, stored.item_field])
        entries = pa.StructArray.from_arrays([array.keys, array.items], fields=list(then))
        values = _fitted(entries, then, now)
    else:
        values = _fitted(array.values, stored.value_type, wanted.value_type)
    return pa.Array.from_buffers(wanted, len(array), array.buffers()[:2], offset=array.offset, children=[values])
