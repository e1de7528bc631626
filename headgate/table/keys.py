"""Keys as users write them: a value, a tuple, a dict, a list of these, or batches of the key columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias

import pyarrow as pa

from headgate.errors import InvalidInput, nearest
from headgate.shards.rows.schema import Rows, RowSchema

Key: TypeAlias = "int | str | bytes | bool | tuple[Any, ...] | Mapping[str, Any]"
"""One key: a value, a dict by column, or a tuple in the order of the key columns."""

Keys: TypeAlias = "Key | Sequence[Key] | Rows"


def key_rows(schema: RowSchema, keys: Keys) -> Rows:
    """The keys as batches of the key columns. Raises InvalidInput for keys of the wrong shape or type."""
    if isinstance(keys, pa.RecordBatch | pa.Table):
        return keys
    if not schema.primary_key:
        raise InvalidInput("The table has no primary key to select rows by.", advice="use a filter")
    given = list(keys) if isinstance(keys, Sequence) and not isinstance(keys, str | bytes | tuple) else [keys]
    if all(isinstance(key, pa.RecordBatch) for key in given):
        return given
    rows = [_values(key, schema.primary_key) for key in given]
    columns = zip(schema.primary_key, zip(*rows, strict=True), strict=True)
    arrays = {name: _array(name, schema.logical.field(name).type, values) for name, values in columns}
    return pa.RecordBatch.from_pydict(arrays)


def _values(key: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    """One key's values in the order of the key columns."""
    if isinstance(key, Mapping):
        for name in key:
            if name not in names:
                near = nearest(str(name), names)
                hint = f"did you mean {near!r}?" if near else "leave it out"
                raise InvalidInput(
                    f"The key is {_named(names)}, and {str(name)[:80]!r} is not part of it.", advice=hint
                )
        if missing := [name for name in names if name not in key]:
            raise InvalidInput(f"The key is {_named(names)}, but {missing[0]!r} is missing.")
        return tuple(key[name] for name in names)
    values = key if isinstance(key, tuple) else (key,)
    if len(values) != len(names):
        advice = f"pass a tuple of {len(names)} values, or a dict" if len(names) > 1 else "pass a list for several keys"
        raise InvalidInput(f"The key is {_named(names)}, but {len(values)} values were given.", advice=advice)
    return values


def _array(name: str, kind: pa.DataType, values: tuple[Any, ...]) -> pa.Array:
    """A key column from Python values. Checked, because Arrow would truncate fractions and convert text to bytes."""
    wanted = _python_type(kind)
    for value in values:
        # A bool is an int to Python, and not to Arrow.
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            raise InvalidInput(
                f"Key column {name!r} has type {kind}, got {repr(value)[:80]} of type {type(value).__name__}."
            )
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise InvalidInput(f"Key column {name!r} has type {kind}: {str(error)[:200]}") from error


def _python_type(kind: pa.DataType) -> type:
    """The Python type for the type of a key column."""
    if pa.types.is_boolean(kind):
        return bool
    if pa.types.is_integer(kind):
        return Integral
    return str if pa.types.is_string(kind) or pa.types.is_large_string(kind) else bytes


def _named(names: tuple[str, ...]) -> str:
    return f"column {names[0]!r}" if len(names) == 1 else f"columns {list(names)}"
