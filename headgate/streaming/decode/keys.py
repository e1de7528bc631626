"""The keys of Kafka tombstones as key columns of the table.

A key is a JSON object with the key columns. If there is only one key column, a key may also be its plain value: text
for a string, the bytes for a binary, digits for an integer, true or false.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.shards.rows.schema import RowSchema
from headgate.streaming.decode.contract import BadRecords, Decoded
from headgate.streaming.decode.json.decoder import JsonDecoder

_NO_KEY = "a record without a value has no key, so there is nothing to delete"


def decode_keys(keys: pa.Array, schema: RowSchema) -> Decoded:
    """The key columns of each record; a missing or invalid key is bad."""
    wanted = pa.schema([pa.field(name, schema.logical.field(name).type, nullable=False) for name in schema.primary_key])
    here = np.arange(len(keys))
    is_object = pc.fill_null(pc.starts_with(keys, "{"), False).to_numpy(zero_copy_only=False)
    missing = pc.is_null(keys).to_numpy(zero_copy_only=False)
    objects = JsonDecoder(wanted).decode(keys.take(pa.array(here[is_object])))
    tables = [pa.Table.from_batches([objects.rows])]
    indices = [here[is_object][objects.indices.to_numpy()]]
    bad = {
        int(here[is_object][i]): e
        for i, e in zip(objects.bad.indices.to_numpy(), objects.bad.errors.to_pylist(), strict=True)
    }
    bad.update(dict.fromkeys(here[missing].tolist(), _NO_KEY))
    bare = here[~is_object & ~missing]
    if len(bare):
        fits, values = _bare(keys.take(pa.array(bare)), wanted)
        tables.append(values)
        indices.append(bare[fits])
        why = f"the key must be a JSON object with {wanted.names} or a plain {wanted.types[0]}"
        bad.update(dict.fromkeys(bare[~fits].tolist(), why))
    joined = np.concatenate(indices)
    order = np.argsort(joined, kind="stable")
    rows = pa.concat_tables(tables).take(pa.array(order)).combine_chunks().to_batches()
    at = sorted(bad)
    return Decoded(
        rows[0] if rows else pa.RecordBatch.from_pylist([], schema=wanted),
        pa.array(joined[order]),
        BadRecords(pa.array(at, pa.int64()), pa.array([bad[i] for i in at], pa.string())),
        pa.array([], pa.int64()),
    )


def _bare(keys: pa.Array, wanted: pa.Schema) -> tuple[np.ndarray, pa.Table]:
    """Which keys are a plain value of the one key column, and these values."""
    if len(wanted) > 1:
        return np.zeros(len(keys), bool), wanted.empty_table()
    kind = wanted.types[0]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return np.ones(len(keys), bool), pa.Table.from_arrays([keys.cast(kind)], schema=wanted)
    fits = np.ones(len(keys), bool)
    try:
        values = keys.cast(pa.string()).cast(kind)
    except pa.ArrowInvalid:
        # Some do not fit: only then is each checked alone.
        fits = np.array([_casts(key, kind) for key in keys], bool)
        values = keys.filter(pa.array(fits)).cast(pa.string()).cast(kind)
    return fits, pa.Table.from_arrays([values], schema=wanted)


def _casts(key: pa.Scalar, kind: pa.DataType) -> bool:
    try:
        key.cast(pa.string()).cast(kind)
    except pa.ArrowInvalid:
        return False
    return True
