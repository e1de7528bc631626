"""Casts of whole arrays without loss: which values fit, and which casts never change a value. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from headgate.errors import InvalidInput
from headgate.shards.rows.schema import RowSchema

Fits = npt.NDArray[np.bool_]


def cast_each(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Fits]:
    """The values that fit the type, cast to it, and for each input whether it fits.

    Casts all values at once. Only if that fails, the array is halved, so that a bad value costs a few more passes.
    """
    fits = np.ones(len(values), bool)
    _mark(values, kind, fits, 0)
    kept = values if fits.all() else values.filter(pa.array(fits))
    return kept.cast(kind), fits


def _mark(values: pa.Array, kind: pa.DataType, fits: Fits, start: int) -> None:
    try:
        values.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if len(values) == 1:
            fits[start] = False
            return
        middle = len(values) // 2
        _mark(values.slice(0, middle), kind, fits, start)
        _mark(values.slice(middle), kind, fits, start + middle)


def cast_column(column: pa.Array, schema: RowSchema, name: str) -> pa.Array:
    """The column, cast to the table's type. Raises InvalidInput if the cast would change a value."""
    if name not in schema.logical.names:
        return column
    kind = schema.logical.field(name).type
    if column.type == kind:
        return column
    refusal = InvalidInput(
        f"Column {name!r} has type {column.type} in the frame, which cannot be converted to {kind} without loss."
    )
    if not keeps_values(column.type, kind):
        raise refusal
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise refusal from error


def keeps_values(old: pa.DataType, new: pa.DataType) -> bool:
    """True if Arrow's checked cast between the types keeps every value or fails. Between other types it may round,
    parse or drop time zones.
    """
    if old == new or kinds.is_null(old):
        return True
    if kinds.is_integer(old):
        return bool(kinds.is_integer(new) or kinds.is_float32(new) or kinds.is_float64(new) or kinds.is_decimal(new))
    if kinds.is_floating(old):
        return bool(kinds.is_floating(new) and new.bit_width >= old.bit_width)
    if kinds.is_timestamp(old):
        return bool(kinds.is_timestamp(new) and (old.tz is None) == (new.tz is None))
    if _is_list(old) and _is_list(new):
        return keeps_values(old.value_type, new.value_type)
    if kinds.is_map(old) and kinds.is_map(new):
        return keeps_values(old.key_type, new.key_type) and keeps_values(old.item_type, new.item_type)
    if kinds.is_struct(old) and kinds.is_struct(new):
        fields = [(old.field(i), new.field(i)) for i in range(min(old.num_fields, new.num_fields))]
        same = old.num_fields == new.num_fields and all(a.name == b.name for a, b in fields)
        return same and all(keeps_values(a.type, b.type) for a, b in fields)
    return any(is_kind(old) and is_kind(new) for is_kind in (_is_text, _is_bytes, kinds.is_decimal, kinds.is_date))


def _is_list(kind: pa.DataType) -> bool:
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_fixed_size_binary(kind))
