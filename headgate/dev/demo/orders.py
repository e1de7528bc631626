"""The orders of the demo: the produced records, and the rows that the table must have in the end.

New orders, changes, cancellations (Kafka tombstones) and a few invalid records, in a fixed sequence for each size. The
expected rows come from here and not from the topic: produced records are compared with stored rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

TOPIC = "orders"
PARTITIONS = 4
DDL = "order_id bigint not null, customer string, status string, note string, amount double, placed_at timestamp"
KEY = "order_id"
TEXT = "note"
WORD = "gift"
"""What the demo searches for."""

_SEED = 20_240_229
_FIRST = datetime(2024, 2, 29, tzinfo=UTC)
_UPDATES, _DELETES, _BAD = 0.25, 0.05, 0.001
"""Shares of the records; the rest are new orders."""
_BAD_VALUES = (b"{not json", b'{"order_id": "seven"}', b'{"customer": "nobody"}', b"[1, 2, 3]")
_NOTES = (
    "leave it at the door",
    "a gift: no invoice in the box, please",
    "ring twice, the bell is weak",
    "fragile, glass inside",
    "call before delivery",
    "second floor, no lift",
    "hand it to the neighbour",
)
_NEW, _UPDATE, _DELETE, _BROKEN = range(4)


@dataclass(frozen=True)
class Orders:
    """Records as columns: what each one does, and to which order."""

    kinds: np.ndarray[Any, Any]
    ids: np.ndarray[Any, Any]
    amounts: np.ndarray[Any, Any]

    @classmethod
    def make(cls, records: int) -> Orders:
        """So many records, always the same."""
        random = np.random.default_rng(_SEED)
        kinds = random.choice(4, records, p=[1 - _UPDATES - _DELETES - _BAD, _UPDATES, _DELETES, _BAD])
        kinds[0] = _NEW
        # A change must be of an existing order.
        made = np.cumsum(kinds == _NEW)
        ids = np.where(kinds == _NEW, made, (random.random(records) * made).astype(np.int64) + 1)
        return cls(kinds, ids, random.integers(100, 100_000, records) / 100)

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def bad(self) -> int:
        """Records that must become dead letters."""
        return int((self.kinds == _BROKEN).sum())

    @property
    def deletes(self) -> int:
        """Cancellations."""
        return int((self.kinds == _DELETE).sum())

    @property
    def updates(self) -> int:
        """Changes of orders."""
        return int((self.kinds == _UPDATE).sum())

    def expected(self, schema: pa.Schema) -> pa.Table:
        """The rows that the table must hold: the last change of each order that was not cancelled since."""
        real = np.flatnonzero(self.kinds != _BROKEN)
        _, back = np.unique(self.ids[real][::-1], return_index=True)
        last = real[len(real) - 1 - back]
        alive = last[self.kinds[last] != _DELETE]
        return pa.Table.from_pylist([self._row(int(at)) for at in alive], schema=schema)

    def produce(self, servers: str, progress: Callable[[int], None]) -> None:
        """Send them all. An order's records go to one partition, so their order is kept."""
        from confluent_kafka import Producer

        from headgate.connectors.kafka.topics import QUIET

        # Without idempotence a retry to a busy broker may double or reorder what was sent.
        settings = {"bootstrap.servers": servers, "linger.ms": 20, "enable.idempotence": True}
        producer = Producer(settings, logger=QUIET)
        for at, (partition, key, value) in enumerate(self._records()):
            while True:
                try:
                    producer.produce(TOPIC, value, key, partition)
                    break
                except BufferError:
                    producer.poll(0.05)
            if at % 5_000 == 0:
                producer.poll(0)
                progress(at)
        producer.flush()
        progress(len(self))

    def _records(self) -> Iterator[tuple[int, bytes, bytes | None]]:
        for at in range(len(self)):
            order, kind = int(self.ids[at]), self.kinds[at]
            value: bytes | None = None
            if kind == _BROKEN:
                value = _BAD_VALUES[at % len(_BAD_VALUES)]
            elif kind != _DELETE:
                row = self._row(at)
                value = json.dumps({**row, "placed_at": row["placed_at"].isoformat()}).encode()
            yield order % PARTITIONS, str(order).encode(), value

    def _row(self, at: int) -> dict[str, Any]:
        order = int(self.ids[at])
        return {
            "order_id": order,
            "customer": f"customer-{order * 7919 % 10_007}",
            "status": "placed" if self.kinds[at] == _NEW else ("paid", "packed", "sent")[at % 3],
            "note": _NOTES[at % len(_NOTES)],
            "amount": float(self.amounts[at]),
            "placed_at": _FIRST + timedelta(microseconds=order * 1_000_003),
        }
