"""Records for the other examples: what each of them reads, into a topic of two partitions.

python examples/sample_records.py logs --servers localhost:9092 --topic logs
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 2
Record = tuple[int, dict[str, Any] | None]
"""What decides the partition and is the record's key, and the value; None: a record without one."""


def logs(count: int) -> Iterator[Record]:
    """Lines of two services, one in ten of them an error."""
    began = datetime(2026, 11, 1, tzinfo=UTC)
    for number in range(count):
        yield (
            number,
            {
                "at": (began + timedelta(seconds=number)).isoformat(),
                "service": ("checkout", "shipping")[number % 2],
                "level": "ERROR" if number % 10 == 0 else "INFO",
                "message": f"request {number} took {number % 97} ms",
            },
        )


def orders(count: int) -> Iterator[Record]:
    """Orders by a key that comes again and again; every twentieth record deletes its key."""
    notes = ("late delivery, refund asked", "paid", "gift wrap", "delivery on time")
    for number in range(count):
        key = number * 7 % max(1, count // 2)
        deleted = number % 20 == 19
        note = f"{notes[number % len(notes)]}, order {number}"
        yield key, None if deleted else {"id": key, "note": note, "amount": number * 0.5}


def customers(count: int) -> Iterator[Record]:
    """Change events: a snapshot, then updates and deletes."""
    for key in range(count):
        row = {"id": key, "name": f"customer {key}", "email": f"{key}@example.com"}
        yield key, {"op": "r", "before": None, "after": row}
    for key in range(0, count, 3):
        row = {"id": key, "name": f"customer {key}", "email": f"new-{key}@example.com"}
        yield key, {"op": "u", "before": {"id": key}, "after": row}
    for key in range(0, count, 5):
        yield key, {"op": "d", "before": {"id": key}, "after": None}
        yield key, None


KINDS: dict[str, Callable[[int], Iterator[Record]]] = {"logs": logs, "orders": orders, "customers": customers}


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the topic where it is not there yet, and fill it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--servers", required=True, help="Kafka's bootstrap addresses")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--count", type=int, default=1000, help="lines, orders or customers")
    given = parser.parse_args(arguments)
    client = AdminClient({"bootstrap.servers": given.servers})  # held until the answer is there
    try:
        client.create_topics([NewTopic(given.topic, PARTITIONS, 1)])[given.topic].result(60)
    except KafkaException as error:
        if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise
    # Idempotent: a retry never puts a record behind a later one.
    producer = Producer({"bootstrap.servers": given.servers, "enable.idempotence": True})
    for key, value in KINDS[given.kind](given.count):
        encoded = None if value is None else json.dumps(value).encode()
        producer.produce(given.topic, encoded, str(key).encode(), partition=key % PARTITIONS)
        producer.poll(0)
    if left := producer.flush(60):
        raise SystemExit(f"{left} records were not acknowledged within a minute.")


if __name__ == "__main__":
    main()
