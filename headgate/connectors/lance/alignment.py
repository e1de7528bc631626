"""Rows for native code: values of 16 bytes must lie at multiples of 16, or Lance ends with a panic.

Arrow's own files promise multiples of 8, so that decimals which were read from a WAL entry may lie anywhere between.
"""

from __future__ import annotations

import pyarrow as pa


def aligned(rows: pa.Table) -> pa.Table:
    """The same rows; columns that hold decimals are copied, others are not."""
    if not any(map(_has_wide_values, rows.schema.types)):
        return rows
    columns = [_copied(column) if _has_wide_values(column.type) else column for column in rows.columns]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def _copied(column: pa.ChunkedArray) -> pa.ChunkedArray:
    # One array alone would be given back as it is.
    return pa.chunked_array([pa.concat_arrays([*column.chunks, pa.nulls(0, column.type)])], type=column.type)


def _has_wide_values(kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind) or pa.types.is_interval(kind):
        return True
    return any(_has_wide_values(kind.field(number).type) for number in range(kind.num_fields))
