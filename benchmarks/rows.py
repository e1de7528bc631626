"""The rows that the WAL benchmarks write: about 180 bytes each, hard to compress, as a stream of events has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from headgate.connectors.objects import open_store
from headgate.shards.rows.schema import RowSchema
from headgate.shards.shard import TableHome

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("at", pa.timestamp("us")),
        pa.field("amount", pa.float64()),
        pa.field("customer", pa.string()),
        pa.field("text", pa.string()),
    ]
)
ROW_BYTES = 180
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz      ", dtype=np.uint8)


def event_rows(nbytes: int, seed: int = 0) -> pa.RecordBatch:
    """A batch of about that many bytes; the same for the same seed."""
    count = max(1, nbytes // ROW_BYTES)
    random = np.random.default_rng(seed)
    ids = np.arange(count, dtype=np.int64) + seed * count
    return pa.RecordBatch.from_arrays(
        [
            pa.array(ids),
            pa.array(ids * 1_000_003).cast(pa.timestamp("us")),
            pa.array(random.random(count)),
            _words(random, count, 16),
            _words(random, count, ROW_BYTES - 24 - 16 - 8),
        ],
        schema=SCHEMA,
    )


def home_in(folder: str | Path) -> TableHome:
    """Shards in a folder, without a base dataset: enough for a WAL-only writer."""
    return TableHome.in_store(open_store(str(folder)), RowSchema.of(SCHEMA))


def _words(random: np.random.Generator, count: int, length: int) -> pa.Array:
    letters = _LETTERS[random.integers(0, len(_LETTERS), count * length, dtype=np.uint8)]
    offsets = np.arange(0, (count + 1) * length, length, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(letters)])
