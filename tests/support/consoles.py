"""Tables for a console to show, without Spark, and what a browser would ask it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import headgate
from headgate.cli.options.kafka import consumer_of
from headgate.console.server import Address, Console, open_console
from headgate.console.watch.places import TablePlace
from headgate.console.watch.watcher import Watcher
from headgate.table.table import Table
from tests.support.streams import Record, Stream

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string()), ("amount", pa.float64())])
WORDS = (
    "late delivery",
    "gift wrap",
    "call before delivery",
    "fragile",
    "leave at the door",
    "express",
    "refund asked",
)
HOSTILE = "<script>alert(1)</script>\u202eevil\u200f\x00'\"><img src=x onerror=alert(1)>"


def value(number: int, **more: Any) -> bytes:
    """An order as JSON."""
    words = f"{WORDS[number % 7]}, order {number} for {WORDS[(number * 3) % 7]}"
    return json.dumps({"id": number, "note": words, "amount": number * 1.5, **more}).encode()


def orders(path: Path, *, batches: int = 6, rows: int = 40, partitions: int = 4, bad_every: int = 0) -> Table:
    """A table of orders with a stream `orders`, each partition a shard."""
    table = headgate.create_table(str(path), COLUMNS, sharding=headgate.by_partition(), full_text="note")
    fill(Stream(table, "orders", partitions), batches, rows, partitions, bad_every)
    return table


def fill(stream: Stream, batches: int, rows: int, partitions: int, bad_every: int = 0, first: int = 0) -> None:
    """Batches of so many rows in each partition, from a batch on."""
    for batch in range(first, first + batches):
        ranges = [(part, batch * rows, (batch + 1) * rows) for part in range(partitions)]
        records = [
            Record(part, offset, b'{"id": "x"}' if bad_every and offset % bad_every == 3 else value(offset * 10 + part))
            for part, start, until in ranges
            for offset in range(start, until)
        ]
        stream.commit(ranges, records)


@dataclass(frozen=True)
class Answer:
    """What a server said."""

    status: int
    headers: dict[str, str]
    text: str


def ask(
    console: Console,
    path: str,
    method: str = "GET",
    body: str | None = None,
    *,
    host: str | None = None,
    **headers: str,
) -> Answer:
    """One request, as it is; nothing is followed."""
    connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=60)
    try:
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        connection.request(method, path, body, {"Host": host or f"127.0.0.1:{console.port}", **named})
        answer = connection.getresponse()
        found = {name.lower(): text for name, text in answer.getheaders()}
        return Answer(answer.status, found, answer.read().decode())
    finally:
        connection.close()


@contextmanager
def console_of(
    *places: Path | str,
    address: Address | None = None,
    looks: int = 40,
    options: Mapping[str, str] | None = None,
    servers: str | None = None,
) -> Iterator[Console]:
    """A console of these places that has looked at them. `options` reach their store, `servers` Kafka."""
    watcher = Watcher([TablePlace(str(place), options or {}) for place in places], consumer_of(servers, {}))
    for _ in range(looks):
        if not watcher.step():
            break
    console = open_console((), address or Address(port=0), watcher=watcher)
    try:
        yield console
    finally:
        console.close()


def texts(answers: Sequence[Answer]) -> str:
    """All of them, one after the other."""
    return "\n".join(answer.text for answer in answers)
