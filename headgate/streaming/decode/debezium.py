"""Debezium's change events in JSON: inserts, updates, deletes and snapshots become rows and deletes, in order.

A value is an envelope, bare or below `payload` (with or without Connect's `schema` beside it):

| op | what it becomes |
|---|---|
| c, r | the row of `after`; r is a row of a snapshot |
| u | the row of `after`: on a table with a key it takes the place of the old one |
| d | a delete of the key columns of `before`; of the record's key where `before` lacks them |
| anything else (t, m) | a bad record: it says nothing of one row |

A record without a value is the tombstone that Debezium sends after a delete; it deletes by the record's key, because
compaction may have left nothing else. Keys are JSON objects, bare or below `payload`, or the bare value of the one
key column.

The columns are read as `headgate.decode.json` reads them, so numbers are never times: let Debezium write ISO 8601
(`time.precision.mode=isostring`), or declare int64; and decimals as text (`decimal.handling.mode=string`). A column
that Debezium did not send (`__debezium_unavailable_value`, Postgres' TOAST) makes the record bad: writing the
placeholder would be a wrong value, and leaving the column out would be one too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import InvalidInput
from headgate.shards.rows.schema import PRIMARY_KEY, RowSchema
from headgate.streaming.decode.contract import Decoded, DecoderKind, as_bytes, bad_records
from headgate.streaming.decode.json.decoder import JsonDecoder
from headgate.streaming.decode.keys import decode_keys as plain_keys

UNAVAILABLE = "__debezium_unavailable_value"
"""Debezium's default for `unavailable.value.placeholder`."""

_ROW_OPS = ("c", "u", "r")
_DELETE = "d"
_SHOWN = 20


@dataclass(frozen=True)
class DebeziumDecoder:
    """Decodes change events into rows of a table with a key."""

    schema: pa.Schema
    primary_key: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.primary_key:
            raise InvalidInput(
                "Change events need a table with a primary key, for updates and deletes.",
                advice="pass primary_key=, or the schema of a table that has one",
            )
        if unknown := [name for name in self.primary_key if name not in self.schema.names]:
            raise InvalidInput(f"The key column {unknown[0]!r} is not one of the columns {self.schema.names}.")
        self._parser  # noqa: B018 - refuses types that JSON cannot fill

    @cached_property
    def _parser(self) -> JsonDecoder:
        keys = [pa.field(name, self.schema.field(name).type) for name in self.primary_key]
        envelope = [
            pa.field("op", pa.string()),
            pa.field("before", pa.struct(keys)),
            pa.field("after", pa.struct(list(self.schema))),
        ]
        return JsonDecoder(pa.schema([*envelope, pa.field("payload", pa.struct(envelope))]))

    def decode(self, values: pa.Array) -> Decoded:
        """Rows and deletes of the values.

        1. all envelopes are parsed in one go, as one column each for op, before and after.
        2. op says which of them are rows, deletes, or neither.
        3. deletes without a key in `before` count as tombstones: the record's key decides.
        """
        values = as_bytes(values)
        parsed = self._parser.decode(values)
        at = parsed.indices.to_numpy()
        errors = dict(zip(parsed.bad.indices.to_pylist(), parsed.bad.errors.to_pylist(), strict=True))
        op, before, after = _envelopes(parsed.rows)
        is_row = _is_in(op, _ROW_OPS)
        is_delete = _is_in(op, (_DELETE,))
        for i in np.flatnonzero(~is_row & ~is_delete).tolist():
            errors[int(at[i])] = _no_change(op[i].as_py())
        whole = after.is_valid().to_numpy(zero_copy_only=False)
        for i in np.flatnonzero(is_row & ~whole).tolist():
            errors[int(at[i])] = f"op {op[i].as_py()!r} has no 'after'"
        is_row &= whole
        sent, left_out = self._sent(after, is_row)
        errors.update(
            {int(at[i]): f"column {name!r} was not sent by Debezium ({UNAVAILABLE})" for i, name in left_out.items()}
        )
        rows = pa.RecordBatch.from_arrays(after.filter(pa.array(sent)).flatten(), schema=self.schema)
        deletes, by_value = self._deletes(before, is_delete)
        nulls = np.union1d(parsed.nulls.to_numpy(), at[is_delete & ~by_value])
        return Decoded(
            rows,
            pa.array(at[sent], pa.int64()),
            bad_records(errors),
            pa.array(nulls, pa.int64()),
            deletes,
            pa.array(at[by_value], pa.int64()),
        )

    def decode_keys(self, keys: pa.Array, schema: RowSchema) -> Decoded:
        """Keys as Connect's JSON converter writes them, bare or below `payload`; else as everywhere, see `keys`."""
        wanted = [pa.field(name, schema.logical.field(name).type, nullable=False) for name in schema.primary_key]
        below = pa.schema([pa.field("payload", pa.struct(wanted), nullable=False)])
        wrapped = JsonDecoder(below).decode(keys)
        here = wrapped.indices.to_numpy()
        others = np.setdiff1d(np.arange(len(keys)), here)
        plain = plain_keys(keys.take(pa.array(others)), schema)
        unwrapped = pa.RecordBatch.from_arrays(wrapped.rows.column(0).flatten(), schema=pa.schema(wanted))
        positions = np.concatenate([here, others[plain.indices.to_numpy()]])
        order = np.argsort(positions, kind="stable")
        rows = pa.concat_batches([unwrapped, plain.rows.cast(unwrapped.schema)]).take(pa.array(order))
        bad = zip(others[plain.bad.indices.to_numpy()].tolist(), plain.bad.errors.to_pylist(), strict=True)
        return Decoded(rows, pa.array(positions[order]), bad_records(dict(bad)), pa.array([], pa.int64()))

    def _sent(self, after: pa.StructArray, is_row: npt.NDArray[np.bool_]) -> tuple[Any, dict[int, str]]:
        """True for complete rows; for the others, the column that holds the placeholder."""
        left_out: dict[int, str] = {}
        for field, column in zip(self.schema, after.flatten(), strict=True):
            if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
                placeholder = pa.scalar(UNAVAILABLE, field.type)
            elif pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
                placeholder = pa.scalar(UNAVAILABLE.encode(), field.type)
            else:
                continue
            same = pc.fill_null(pc.equal(column, placeholder), False).to_numpy(zero_copy_only=False)
            left_out.update(dict.fromkeys(np.flatnonzero(same & is_row).tolist(), field.name))
        whole = is_row.copy()
        whole[list(left_out)] = False
        return whole, left_out

    def _deletes(
        self, before: pa.StructArray, is_delete: npt.NDArray[np.bool_]
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_]]:
        """The keys in `before`, and which events have one."""
        columns = before.flatten()
        named = is_delete.copy()
        for column in columns:
            named &= column.is_valid().to_numpy(zero_copy_only=False)
        chosen = pa.array(named)
        return pa.RecordBatch.from_arrays([c.filter(chosen) for c in columns], names=list(self.primary_key)), named


def key_of(schema: pa.Schema) -> tuple[str, ...]:
    """The key columns that a table's own schema names."""
    return tuple(field.name for field in schema if (field.metadata or {}).get(PRIMARY_KEY) == b"true")


def _envelopes(rows: pa.RecordBatch) -> tuple[pa.Array, pa.StructArray, pa.StructArray]:
    """op, before and after of each event, with or without `payload`."""
    op, before, after, payload = rows.columns
    if payload.null_count == len(payload):
        return op, before, after
    inner = payload.flatten()
    if not payload.null_count:
        return tuple(inner)
    below = payload.is_valid()
    return tuple(pc.if_else(below, i, o) for i, o in zip(inner, (op, before, after), strict=True))


def _is_in(op: pa.Array, known: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = pc.is_in(op, value_set=pa.array(known)).to_numpy(zero_copy_only=False).copy()
    return found


def _no_change(op: str | None) -> str:
    if op is None:
        return "not a change event: the value has no 'op'"
    return f"op {op[:_SHOWN]!r} does not change a single row"


KIND = DecoderKind(
    "debezium",
    DebeziumDecoder,
    for_columns=lambda columns, registry, auth: DebeziumDecoder(columns, key_of(columns)),
    remake=lambda schema, options, auth: DebeziumDecoder(schema, tuple(options["primary_key"])),
    options=lambda decoder: {"primary_key": list(decoder.primary_key)},
)
