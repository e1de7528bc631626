"""Aligns rows for native code: values of 16 bytes must be aligned to 16 bytes, or Lance panics.

Arrow's own files align to 8 bytes only, so decimals that were read from a WAL entry may be misaligned.
"""

from __future__ import annotations

import pyarrow as pa


def aligned(rows: pa.Table) -> pa.Table:
    """The same rows. Copies only the columns that hold decimals or intervals."""
    if not any(map(_has_wide_values, rows.schema.types)):
        return rows
    columns = [_copied(column) if _has_wide_values(column.type) else column for column in rows.columns]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def _copied(column: pa.ChunkedArray) -> pa.ChunkedArray:
    # concat_arrays returns a single array without copying it, hence the second, empty one.
    return pa.chunked_array([pa.concat_arrays([*column.chunks, pa.nulls(0, column.type)])], type=column.type)


def _has_wide_values(kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind) or pa.types.is_interval(kind):
        return True
    return any(_has_wide_values(kind.field(number).type) for number in range(kind.num_fields))
