"""Typed frames that delete: a column of the frame, or a condition on it, marks the deleted rows.

A deleted row deletes its key; only its key columns are read. The table's own columns come first: if the table has a
column `_deleted`, it is a column like any other. Null is not true: such a row is not deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DELETED = "_deleted"
"""Name of the boolean column that marks deleted rows."""

_MADE = "_headgate_deleted"
"""Name of the column that is computed from `delete_when`."""

_LITERAL = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_NAME = re.compile(r"`((?:[^`]|``)+)`|(\w+)")


def column_of(columns: Iterable[str], table_columns: Sequence[str]) -> str | None:
    """The frame's column that marks deleted rows; None if it has none."""
    return next((name for name in columns if name in (_MADE, DELETED) and name not in table_columns), None)


def are_gone(column: pa.Array, name: str) -> pa.Array:
    """True for each deleted row. Raises InvalidInput if the column is not boolean."""
    if not pa.types.is_boolean(column.type):
        raise InvalidInput(
            f"Column {name!r} marks deleted rows, so it must be boolean, got {column.type}.",
            advice="compute it from a condition: .withColumn('_deleted', expr(\"op = 'd'\"))",
        )
    return pc.fill_null(column, False)


def named_in(condition: str, columns: Iterable[str]) -> set[str]:
    """The columns that a SQL condition names; case does not matter, as in Spark."""
    names = {
        (quoted.replace("``", "`") or plain).lower() for quoted, plain in _NAME.findall(_LITERAL.sub("", condition))
    }
    return {name for name in columns if name.lower() in names}


def check_condition(frame: DataFrame, condition: str) -> None:
    """Raises InvalidInput if the text is not a boolean SQL condition on the frame."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions

    advice = "write a condition in Spark SQL over columns of the frame, such as \"op = 'd'\"; nothing was written"
    try:
        (kind,) = (field.dataType.simpleString() for field in frame.select(functions.expr(condition)).schema)
    except PySparkException as error:
        why = str(error).strip().partition("\n")[0][:200]
        raise InvalidInput(f"delete_when={condition!r} does not fit the frame: {why}", advice=advice) from error
    if kind != "boolean":
        raise InvalidInput(f"delete_when={condition!r} must be boolean, got {kind}.", advice=advice)


def marked(frame: DataFrame, condition: str, table_columns: Sequence[str], beside: Iterable[str]) -> DataFrame:
    """The frame with the condition's value per row, without the columns that only the condition needs.

    `beside` are columns to keep although the table does not have them.
    """
    from pyspark.sql import functions

    kept = {*table_columns, *beside}
    spare = [name for name in named_in(condition, frame.columns) if name not in kept]
    return frame.withColumn(_MADE, functions.expr(condition)).drop(*spare)
