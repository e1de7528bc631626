"""Kafka messages as Arrow record batches, in the schema of Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message

from headgate.errors import InvalidInput

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The columns of Spark's source; "headers" is returned only on request."""

TIMED = 100
"""One of so many records is asked for its timestamp."""

_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
_FIELDS = {
    "key": pa.field("key", pa.binary()),
    "value": pa.field("value", pa.binary()),
    "topic": pa.field("topic", pa.string()),
    "partition": pa.field("partition", pa.int32()),
    "offset": pa.field("offset", pa.int64()),
    "timestamp": pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    "timestampType": pa.field("timestampType", pa.int32()),
    "headers": pa.field("headers", _HEADERS),
}


SeeTimes: TypeAlias = Callable[[list[int]], object]
"""Called with timestamps of records, in milliseconds."""


def row_schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """The schema of these columns, in this order. Raises InvalidInput for an unknown one."""
    unknown = [name for name in columns if name not in _FIELDS]
    if unknown:
        raise InvalidInput(f"A Kafka row has no column {unknown[0]!r}.", known=" ".join(_FIELDS))
    return pa.schema([_FIELDS[name] for name in columns])


def to_batch(messages: list[Message], topic: str, partition: int, schema: pa.Schema) -> pa.RecordBatch:
    """Messages of one partition as a batch. Reads only the columns of the schema."""
    constants = {"topic": topic, "partition": partition}
    arrays = [
        pa.repeat(pa.scalar(constants[field.name], field.type), len(messages))
        if field.name in constants
        else _ARRAYS[field.name](messages)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def times_of(messages: list[Message]) -> list[int]:
    """Timestamps, in milliseconds, of the first, the last and every TIMED-th message: close to the oldest and newest of
    a partition. Asking every message would add a tenth to the cost of reading.
    """
    found = (message.timestamp()[1] for message in (*messages[::TIMED], messages[-1]))
    return [time for time in found if time >= 0]


def _keys(messages: list[Message]) -> pa.Array:
    return pa.array(map(Message.key, messages), pa.binary(), size=len(messages))


def _values(messages: list[Message]) -> pa.Array:
    return pa.array(map(Message.value, messages), pa.binary(), size=len(messages))


def _offsets(messages: list[Message]) -> pa.Array:
    return pa.array(map(Message.offset, messages), pa.int64(), size=len(messages))


def _timestamps(messages: list[Message]) -> pa.Array:
    stamps = pa.array([message.timestamp()[1] for message in messages], pa.int64())
    known = pc.if_else(pc.less(stamps, 0), None, stamps)
    return known.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))


def _timestamp_types(messages: list[Message]) -> pa.Array:
    # librdkafka counts none, create, append from 0; Kafka, and so Spark, from -1.
    kinds = pa.array([message.timestamp()[0] for message in messages], pa.int32())
    return pc.subtract(kinds, pa.scalar(1, pa.int32()))


def _headers(messages: list[Message]) -> pa.Array:
    return pa.array([message.headers() for message in messages], _HEADERS)


_ARRAYS: Mapping[str, Callable[[list[Message]], pa.Array]] = {
    "key": _keys,
    "value": _values,
    "offset": _offsets,
    "timestamp": _timestamps,
    "timestampType": _timestamp_types,
    "headers": _headers,
}
