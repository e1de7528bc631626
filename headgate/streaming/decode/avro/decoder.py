"""Avro in the wire format of a schema registry: a zero byte, the id of the writer's schema in four, then the value.

The writer's schema describes the bytes; the table's columns are read from it by name. Fields that the table does not
have are skipped; columns that the writer does not have become null. A record is bad if a value does not fit its column
exactly, if its bytes end early or are left over, or if the registry does not have its schema or the schema's types can
never become the table's. If the registry does not answer, the task fails with Transient and Spark tries it again.

| Avro | columns |
|---|---|
| boolean, int, long, float, double | the same; wider numbers; int and long also decimals; narrower ones if it fits |
| string, enum | string |
| bytes, fixed | binary |
| decimal (bytes or fixed) | decimal128 that holds it |
| date, timestamp-millis/-micros/-nanos, local-timestamp-… | date32; timestamp with, and without a zone; or a number |
| array, map, record | list, map, struct |
| union of null and one type | that type |

All records of a schema are read side by side, column by column, without a loop over rows. Other logical
types are read as the type below them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.connectors.kafka.registry import SchemaRegistry
from headgate.errors import InvalidInput, NotFound
from headgate.shards.rows.schema import RowSchema
from headgate.streaming.decode.avro.columns import Cursors
from headgate.streaming.decode.avro.schema import Node, Record, parse
from headgate.streaming.decode.contract import Decoded, DecoderKind, as_bytes, bad_records
from headgate.streaming.decode.json.screen import layout
from headgate.streaming.decode.keys import decode_keys as plain_keys

HEADER = 5
"""Bytes of the header before the value."""


@dataclass(frozen=True)
class WriterSchemas:
    """Writers' schemas by id: from a registry, or passed in."""

    registry: SchemaRegistry | None = None
    given: tuple[tuple[int, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, registry: str | None, schemas: Mapping[int, str] | None, auth: str | None) -> WriterSchemas:
        """Raises InvalidInput if there is neither a registry nor a schema, and for a schema that cannot be read."""
        if registry is None and not schemas:
            raise InvalidInput(
                "The Avro decoder needs the schemas of the values.",
                advice="pass registry='http://…', or schemas={id: schema}",
            )
        given = tuple(sorted((schemas or {}).items()))
        for _, text in given:
            parse([text])
        return cls(None if registry is None else SchemaRegistry(registry, auth), given)

    def parsed(self, number: int) -> Node:
        """The schema with this id. Raises InvalidInput, NotFound, Transient."""
        known = dict(self.given).get(number)
        if known is not None:
            return parse([known])
        if self.registry is None:
            raise NotFound(f"Schema {number} is not in schemas=.")
        return parse(self.registry.schemas(number))


@dataclass(frozen=True)
class AvroDecoder:
    """Decodes Avro records into the columns of `schema`."""

    schema: pa.Schema
    schemas: WriterSchemas

    def decode(self, values: pa.Array) -> Decoded:
        """The rows of the values. Raises Transient or PermissionDenied if the registry does not answer.

        1. Null values are tombstones; the header of each other value names its schema.
        2. The values of each schema are read side by side; a bad value affects no other.
        """
        return _decoded(as_bytes(values), self.schema, self.schemas)

    def decode_keys(self, keys: pa.Array, schema: RowSchema) -> Decoded:
        """Keys in the same wire format: a record of the key columns, or the bare value of the only one. Keys without
        that header are decoded as for JSON.
        """
        keys = as_bytes(keys)
        offsets, data = layout(keys)
        starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
        ours = np.flatnonzero((ends - starts > HEADER) & (_bytes_at(data, starts) == 0))
        wanted = pa.schema([pa.field(n, schema.logical.field(n).type, nullable=False) for n in schema.primary_key])
        found = _decoded(keys.take(pa.array(ours)), wanted, self.schemas)
        others = np.setdiff1d(np.arange(len(keys)), ours)
        plain = plain_keys(keys.take(pa.array(others)), schema)
        at = np.concatenate([ours[found.indices.to_numpy()], others[plain.indices.to_numpy()]])
        order = np.argsort(at, kind="stable")
        errors = dict(zip(ours[found.bad.indices.to_numpy()].tolist(), found.bad.errors.to_pylist(), strict=True))
        errors |= dict(zip(others[plain.bad.indices.to_numpy()].tolist(), plain.bad.errors.to_pylist(), strict=True))
        rows = pa.concat_batches([found.rows, plain.rows.cast(wanted)]).take(pa.array(order))
        return Decoded(rows, pa.array(at[order]), bad_records(errors), pa.array([], pa.int64()))


def _decoded(values: pa.Array, schema: pa.Schema, schemas: WriterSchemas) -> Decoded:
    is_null = values.is_null().to_numpy(zero_copy_only=False)
    offsets, data = layout(values)
    starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    errors: dict[int, str] = {}
    headed = ~is_null & (ends - starts >= HEADER) & (_bytes_at(data, starts) == 0)
    no_header = np.flatnonzero(~is_null & ~headed).tolist()
    errors.update(
        dict.fromkeys(no_header, "not Avro with a registry id: it must begin with a zero byte and a schema id")
    )
    numbers = np.zeros(len(values), np.int64)
    for place in range(1, HEADER):
        numbers = numbers << 8 | _bytes_at(data, starts + place)
    good: list[pa.RecordBatch] = [pa.RecordBatch.from_pylist([], schema=schema)]
    good_at: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
    for number in np.unique(numbers[headed]).tolist():
        rows = np.flatnonzero(headed & (numbers == number))
        try:
            node = schemas.parsed(number)
            cursors = Cursors(data, starts + HEADER, ends)
            columns = _columns(cursors, node, rows, schema)
        except (InvalidInput, NotFound) as error:
            errors.update(dict.fromkeys(rows.tolist(), f"schema {number}: {error.what}"))
            continue
        cursors.check_ends(rows)
        errors |= cursors.errors
        fits = np.array([row not in cursors.errors for row in rows.tolist()]) if cursors.errors else None
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        good.append(batch if fits is None else batch.filter(pa.array(fits)))
        good_at.append(rows if fits is None else rows[fits])
    at = np.concatenate(good_at)
    batch = pa.concat_batches(good)
    if len(good) > 2:
        order = np.argsort(at, kind="stable")
        at, batch = at[order], batch.take(pa.array(order))
    return Decoded(batch, pa.array(at, pa.int64()), bad_records(errors), pa.array(np.flatnonzero(is_null), pa.int64()))


def _columns(cursors: Cursors, node: Node, rows: npt.NDArray[np.int64], schema: pa.Schema) -> list[pa.Array]:
    if isinstance(node, Record):
        return cursors.columns(node, rows, schema)
    if len(schema) != 1:
        raise InvalidInput("it is not a record, but the table has several columns")
    found = cursors.read(node, rows, schema.types[0])
    assert found is not None
    return [found]


def _bytes_at(data: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if not len(data):
        return np.full(len(places), -1, np.int64)
    return data[np.minimum(places, len(data) - 1)].astype(np.int64)


def _options(decoder: AvroDecoder) -> dict[str, Any]:
    registry = decoder.schemas.registry
    given = {str(number): text for number, text in decoder.schemas.given}
    return {"registry": None if registry is None else registry.url, "schemas": given}


def _remake(schema: pa.Schema, options: Mapping[str, Any], auth: str | None) -> AvroDecoder:
    given = {int(number): text for number, text in options["schemas"].items()}
    return AvroDecoder(schema, WriterSchemas.of(options["registry"], given, auth))


KIND = DecoderKind(
    "avro",
    AvroDecoder,
    for_columns=lambda columns, registry, auth: AvroDecoder(columns, WriterSchemas.of(registry, None, auth)),
    remake=_remake,
    options=_options,
    takes_registry=True,
)
