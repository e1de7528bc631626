"""The processes beside the stream that `benchmarks.freshness` measures: one that produces, and those that look.

`python -m benchmarks.freshness_parts produce|see|find …`. Each prints one JSON line when it is done.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

WINDOW = 0.1
"""Seconds of records that share a word: what a search looks for."""
PARTITIONS = 4
WORDS = "order placed by the shop waits for the courier to pick it up at gate number seven of the long road"


def word(number: int) -> str:
    """The word of a window: letters alone, so that a tokenizer keeps it whole."""
    return "w" + "".join(chr(ord("a") + int(digit)) for digit in str(number))


def produce(servers: str, topic: str, rate: float, until: float) -> dict[str, object]:
    """Records at a steady rate, each with the time at which Kafka was given it."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
    began, sent, late = time.time(), 0, 0.0
    while (now := time.time()) < until:
        due = int((now - began) * rate)
        late = max(late, (due - sent) / rate)
        for number in range(sent, due):
            stamp = time.time()
            note = f"{WORDS} {word(int(stamp / WINDOW))}"
            value = json.dumps({"id": number, "sent": int(stamp * 1000), "note": note})
            producer.produce(topic, value, partition=number % PARTITIONS, timestamp=int(stamp * 1000))
        sent = due
        producer.poll(0)
        time.sleep(0.002)
    producer.flush(60)
    return {"records": sent, "longest pause": late}


def see(kind: str, uri: str, since: float, until: float, patience: float) -> dict[str, object]:
    """When a reader sees each record that was sent between the two instants: ask again and again for what is new."""
    fresh = {"headgate": _headgate, "delta": _delta, "lance": _lance}[kind](uri)
    ages: list[pa.ChunkedArray] = []
    last = 0
    while last < until * 1000 - 50 and time.time() < until + patience:
        sent = next(fresh)
        if not len(sent):
            time.sleep(0.005)
            continue
        now, last = int(time.time() * 1000), max(last, pc.max(sent).as_py())
        counted = sent.filter(pc.and_(pc.greater_equal(sent, int(since * 1000)), pc.less(sent, int(until * 1000))))
        ages.append(pc.subtract(now, counted))
    return _quantiles(pa.chunked_array([chunk for one in ages for chunk in one.chunks], pa.int64()))


def find(uri: str, since: float, until: float, patience: float) -> dict[str, object]:
    """When a search finds each window's word, from the end of that window on."""
    import headgate

    table = headgate.open_table(uri)
    ages: list[int] = []
    number = int(since / WINDOW) + 1
    while (number + 1) * WINDOW < until and time.time() < (number + 1) * WINDOW + patience:
        end = (number + 1) * WINDOW
        if time.time() < end:
            time.sleep(end - time.time())
        if table.search(word(number), column="note", k=1, columns=["id"]).num_rows:
            ages.append(int((time.time() - end) * 1000))
            number += 1
            # Skip the windows that came meanwhile but one: each search is one measurement of the newest.
            number = max(number, int(time.time() / WINDOW) - 1)
        else:
            time.sleep(0.005)
    return _quantiles(pa.chunked_array([pa.array(ages, pa.int64())]))


def _headgate(uri: str) -> Iterator[pa.ChunkedArray]:
    import headgate

    table, top = headgate.open_table(uri), -1
    tops = dict.fromkeys(range(PARTITIONS), -1)
    while True:
        rows = table.scan(columns=["id", "sent"], filter=f"id > {top}").read_all()
        yield _newer(rows, tops)
        top = min(tops.values())


def _lance(uri: str) -> Iterator[pa.ChunkedArray]:
    import lance

    version, tops = 0, dict.fromkeys(range(PARTITIONS), -1)
    while True:
        dataset = lance.dataset(uri)
        if dataset.version == version:
            yield pa.chunked_array([[]], pa.int64())
            continue
        version = dataset.version
        rows = dataset.to_table(columns=["id", "sent"], filter=f"id > {min(tops.values())}")
        yield _newer(rows, tops)


def _delta(uri: str) -> Iterator[pa.ChunkedArray]:
    """The quickest reader that Delta can have: new log files, then the data files that they add."""
    import pyarrow.parquet as parquet

    version = 0
    while True:
        log = Path(uri) / "_delta_log" / f"{version:020d}.json"
        if not log.exists():
            yield pa.chunked_array([[]], pa.int64())
            continue
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        added = [Path(uri) / action["add"]["path"] for action in actions if "add" in action]
        version += 1
        if added:
            yield pa.concat_tables([parquet.read_table(path, columns=["sent"]) for path in added]).column("sent")


def _newer(rows: pa.Table, tops: dict[int, int]) -> pa.ChunkedArray:
    """The rows above what was seen of their partition."""
    parts = []
    place = pc.subtract(rows["id"], pc.multiply(pc.divide(rows["id"], PARTITIONS), PARTITIONS))
    for partition, top in tops.items():
        mine = rows.filter(pc.and_(pc.equal(place, partition), pc.greater(rows["id"], top)))
        if mine.num_rows:
            tops[partition] = pc.max(mine["id"]).as_py()
            parts += mine["sent"].chunks
    return pa.chunked_array(parts, pa.int64())


def _quantiles(ages: pa.ChunkedArray) -> dict[str, object]:
    if not len(ages):
        return {"count": 0}
    p50, p95, p99, most = pc.quantile(ages, [0.5, 0.95, 0.99, 1.0]).to_pylist()
    return {"count": len(ages), "p50 ms": p50, "p95 ms": p95, "p99 ms": p99, "longest ms": most}


COMMANDS: dict[str, Callable[..., dict[str, object]]] = {"produce": produce, "see": see, "find": find}
TYPES = {
    "produce": (str, str, float, float),
    "see": (str, str, float, float, float),
    "find": (str, float, float, float),
}

if __name__ == "__main__":
    name, *given = sys.argv[1:]
    print(json.dumps(COMMANDS[name](*(kind(value) for kind, value in zip(TYPES[name], given, strict=True)))))
