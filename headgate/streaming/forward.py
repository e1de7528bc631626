"""Dead letters to a Kafka topic, where other teams and tools look for them: each at least once, with an id.

How far it is stands in numbered records below `forwards/` in the table's records, one series per stream, cluster and
topic. A record is put only after Kafka has acknowledged all that it names. So a crash anywhere sends some letters a
second time, with the same `headgate.id`, and leaves none out; two runs at once send some twice as well.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.dead_letters import DeadEntry, dead_entries
from headgate.checkpoints.log.names import check_stream, folder_name
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.connectors.kafka.producer import OutRecord, check_topic, send
from headgate.connectors.objects import ObjectStore
from headgate.connectors.objects.deletion import delete_all
from headgate.errors import AlreadyExists, InvalidInput
from headgate.records import decode, encode
from headgate.shards.home.stores import Place
from headgate.steps import step
from headgate.table.table import Table, as_table

ROOT = "forwards/"
"""Below the folder of the table's own records."""

CHUNK_BYTES = 16 << 20
"""Letters of one record of progress, about: what a crash may send twice."""


@dataclass(frozen=True)
class Forwarded:
    """How far a forwarding is: per dead-letter log the position of the entry that comes next."""

    KIND: ClassVar = "forward"
    stream: str
    topic: str
    number: int
    next: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ForwardReport:
    """What a forwarding did, or would do."""

    stream: str
    topic: str
    applied: bool
    letters: int = 0
    """That were sent, or would be: neither forwarded before nor replayed since."""
    records: int = 0
    """Of progress."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return dict(self.__dict__)


def forward_dead_letters(
    table: Table | Place,
    *,
    stream: str,
    topic: str,
    servers: str,
    kafka_options: Mapping[str, str] | None = None,
    apply: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> ForwardReport:
    """Send the stream's dead letters to a topic, from where the last run ended. Without `apply` it only counts them.

    Key, value and headers are the record's own. Headers beside: `headgate.id`, the same whenever a letter is sent;
    `headgate.table`, `headgate.stream`, `headgate.topic`, `headgate.partition`, `headgate.offset`, `headgate.error`.
    Letters that a replay has made rows of are left out. Fences nobody: streams run on.

    1. read how far the last run came.
    2. read the letters behind that; per 16 MB:
    3. send them, and wait until every replica in sync has them.
    4. put the next record of progress; where another run has its number, go on above that.

    `kafka_options` are those of Spark's Kafka source (`kafka.security.protocol` …). Raises InvalidInput for a topic
    that the stream reads, NotFound (stream, topic), PermissionDenied, Transient: the same call goes on.
    """
    table = as_table(table, storage_options)
    check_stream(table.home.records, stream, table.uri)
    config = ConsumerConfig.from_spark({"kafka.bootstrap.servers": servers, **(kafka_options or {})})
    state = CommitLog(table.home.records, stream, table.uri).read()
    if any(topic == read for read, _ in state.head.ends):
        raise InvalidInput(
            f"The stream reads the topic {topic!r}: its dead letters would come back to it.",
            table=table.uri,
            stream=stream,
            advice="forward them to a topic of their own; nothing was sent",
        )
    progress = _Progress(table.home.records, stream, topic, servers)
    done = ForwardReport(stream, topic, applied=apply)
    if apply:
        check_topic(config, topic)
    found = progress.read()
    for chunk in _chunks(dead_entries(table.home, state), found):
        letters = sum(int(entry.waiting.sum()) for entry in chunk)
        done = replace(done, letters=done.letters + letters)
        if not apply:
            continue
        step("send")
        send(config, topic, (record for entry in chunk for record in _records(table, entry)))
        step("sent")
        ends = {entry.log: entry.position + 1 for entry in chunk}
        found = progress.put(replace(found, next={**found.next, **ends}))
        step("noted")
        done = replace(done, records=done.records + 1)
    return done


class _Progress:
    """The records of one forwarding."""

    def __init__(self, store: ObjectStore, stream: str, topic: str, servers: str) -> None:
        self._store = store
        self._stream, self._topic = stream, topic
        cluster = hashlib.sha256(",".join(sorted(servers.split(","))).encode()).hexdigest()[:12]
        folders = folder_name(stream, "stream"), f"{folder_name(topic, 'topic')}.{cluster}"
        self._folder = f"{ROOT}{'/'.join(folders)}/"

    def read(self) -> Forwarded:
        """The newest. Raises Corrupt."""
        keys = sorted(self._store.list_keys(self._folder))
        if not keys:
            return Forwarded(self._stream, self._topic, 0)
        return decode(Forwarded, self._store.get(keys[-1]), "How far a forwarding is")

    def put(self, wanted: Forwarded) -> Forwarded:
        """One above the newest, with what both know; then the older ones go. As it is stored."""
        while True:
            made = replace(wanted, number=wanted.number + 1)
            with suppress(AlreadyExists):
                self._store.put_if_absent(self._key(made.number), encode(made))
                older = [key for key in self._store.list_keys(self._folder) if key < self._key(made.number)]
                delete_all(self._store, older, "forward")
                return made
            # Another run, or a lost response of this one: both have sent what they name.
            newest = self.read()
            both = {*newest.next, *wanted.next}
            ends = {log: max(newest.next.get(log, 0), wanted.next.get(log, 0)) for log in both}
            if ends == dict(newest.next):
                return newest
            wanted = replace(newest, next=ends)

    def _key(self, number: int) -> str:
        return f"{self._folder}{number:020d}.json"


def _chunks(entries: Iterator[DeadEntry], done: Forwarded) -> Iterator[list[DeadEntry]]:
    chunk: list[DeadEntry] = []
    held = 0
    for entry in entries:
        if entry.position >= done.next.get(entry.log, 0):
            chunk.append(entry)
            held += entry.rows.nbytes
        if held >= CHUNK_BYTES:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk


def _records(table: Table, entry: DeadEntry) -> Iterator[OutRecord]:
    numbers = np.flatnonzero(entry.waiting)
    letters = entry.rows.filter(pa.array(entry.waiting)).to_pylist()
    for number, letter in zip(numbers, letters, strict=True):
        ours = {
            "id": f"{table.table_id}/{json.dumps(entry.stream)}/{entry.log}/{entry.position}/{number}",
            "table": table.uri,
            "stream": entry.stream,
            **{name: str(letter[name]) for name in ("topic", "partition", "offset", "error")},
        }
        own = tuple((one["key"], one["value"]) for one in letter["headers"] or ())
        at = letter["timestamp"]
        yield OutRecord(
            letter["key"],
            letter["value"],
            (*own, *((f"headgate.{name}", text.encode()) for name, text in ours.items())),
            None if at is None else int(at.timestamp() * 1000),
        )
