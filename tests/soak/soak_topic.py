"""The topic of a soak: who fills it, and what a table must show of any prefix of it. The topic itself is the truth."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from headgate.connectors.kafka.topics import QUIET
from tests.soak.soak_world import PARTITIONS, TOPIC

KEYS = 3000
DELETED, BAD = -1, -2
Numbers = npt.NDArray[np.int64]


def produce(servers: str, rate: int, chance: random.Random, stop: threading.Event) -> None:
    """About so many records a second, until it is to stop and all of them are in the topic.

    A broker that is away may take a record twice: then the topic has it twice, and so must the table.
    """
    settings = {"bootstrap.servers": servers, "acks": "all", "linger.ms": 5, "max.in.flight": 1}
    producer = Producer({**settings, "message.timeout.ms": 600_000, "reconnect.backoff.max.ms": 500}, logger=QUIET)
    number = 0
    while not stop.is_set():
        for _ in range(max(1, rate // 20)):
            key = chance.randrange(KEYS)
            value: bytes | None = json.dumps({"id": key, "note": f"order {number}", "amount": number * 0.5}).encode()
            kind = chance.random()
            if kind < 0.01:
                value = chance.choice([b"garbage{", b'{"id": "text"}', b'{"note": "no id"}'])
            elif kind < 0.04:
                value = None
            producer.produce(TOPIC, value, b"%d" % key, partition=key % PARTITIONS)
            number += 1
        producer.poll(0)
        stop.wait(0.05)
    left = producer.flush(120)
    assert left == 0, f"{left} records are in doubt: the broker did not answer"


class Topic:
    """All records of the topic, read beside the stream by a client of its own. Thread-safe."""

    def __init__(self, servers: str, keyed: bool) -> None:
        self.keyed = keyed
        self._servers = servers
        self._keys: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self._numbers: list[list[int]] = [[] for _ in range(PARTITIONS)]
        """Per partition and offset the number of the order, or DELETED or BAD."""

    def read(self, stop: threading.Event) -> None:
        """Follow the topic until it is to stop."""
        settings = {"group.id": "soak", "enable.auto.commit": False, "reconnect.backoff.max.ms": 500}
        consumer = Consumer({"bootstrap.servers": self._servers, **settings}, logger=QUIET)
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        while not stop.is_set():
            for message in consumer.consume(5000, 0.1):
                if message.error() is None:
                    self._add(message)
        consumer.close()

    def _add(self, message: Message) -> None:
        partition, offset, key = message.partition(), message.offset(), message.key()
        assert partition is not None
        assert key is not None
        assert offset == len(self._numbers[partition]), "the topic has a hole"
        self._keys[partition].append(int(key))
        self._numbers[partition].append(_number(message.value()))

    def wait_for(self, ends: Mapping[int, int], seconds: float = 180) -> None:
        """Until it was read so far."""
        until = time.monotonic() + seconds
        while any(len(self._numbers[partition]) < end for partition, end in ends.items()):
            assert time.monotonic() < until, f"the topic could not be read up to {ends}"
            time.sleep(0.05)

    def records(self, partition: int, start: int, end: int) -> tuple[list[int], list[int]]:
        """Keys and numbers of some offsets."""
        return self._keys[partition][start:end], self._numbers[partition][start:end]

    def bad(self, ends: Mapping[int, int]) -> Counter[tuple[int, int]]:
        """Partition and offset of what must be a dead letter: what is no row, and without a key also deletes."""
        worst = BAD if self.keyed else DELETED
        return Counter(
            (partition, offset)
            for partition, end in ends.items()
            for offset, number in enumerate(self._numbers[partition][:end])
            if number <= worst
        )


class Cursor:
    """What a table shows of a prefix that only grows."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._ends = dict.fromkeys(range(PARTITIONS), 0)
        self._newest: dict[int, int] = {}

    def at(self, ends: Mapping[int, int]) -> Numbers:
        """Key and number of every row, in order of both. A prefix that is shorter than before is an AssertionError."""
        for partition, end in ends.items():
            shown = self._ends[partition]
            assert end >= shown, f"the table went back: partition {partition} from {shown} to {end}"
        self._topic.wait_for(ends)
        before = dict(self._ends)
        self._ends.update(ends)
        if not self._topic.keyed:
            parts = [self._topic.records(partition, 0, end) for partition, end in ends.items()]
            pairs = _pairs(*(np.concatenate([_array(part[column]) for part in parts]) for column in (0, 1)))
            return pairs[pairs[:, 1] >= 0]
        for partition, end in ends.items():
            for key, number in zip(*self._topic.records(partition, before[partition], end), strict=True):
                if number >= 0:
                    self._newest[key] = number
                elif number == DELETED:
                    self._newest.pop(key, None)
        return _pairs(_array([*self._newest]), _array([*self._newest.values()]))


def shown(rows: pa.Table) -> Numbers:
    """Key and number of every row of a table, in order of both."""
    amounts = rows["amount"].to_numpy()
    return _pairs(rows["id"].to_numpy().astype(np.int64), np.rint(amounts * 2).astype(np.int64))


def difference(wanted: Numbers, found: Numbers) -> dict[str, int]:
    """How many rows are lost, there twice, or not what was put."""
    want, have = Counter(map(tuple, wanted.tolist())), Counter(map(tuple, found.tolist()))
    extra = have - want
    twice = sum(count for row, count in extra.items() if row in want)
    return {"lost": (want - have).total(), "duplicates": twice, "unknown": extra.total() - twice}


def _array(values: list[int]) -> Numbers:
    return np.array(values, dtype=np.int64)


def _pairs(keys: Numbers, numbers: Numbers) -> Numbers:
    order = np.lexsort((numbers, keys))
    return np.stack([keys[order], numbers[order]], axis=1)


def _number(value: bytes | None) -> int:
    if value is None:
        return DELETED
    try:
        found = json.loads(value)
    except ValueError:
        return BAD
    return round(found["amount"] * 2) if isinstance(found.get("id"), int) else BAD
