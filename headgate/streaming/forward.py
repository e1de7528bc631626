"""Forwards dead letters to a Kafka topic, for other teams and tools: each at least once, with an id.

Progress is stored in numbered records below `forwards/` in the table's records, one series per stream, cluster and
topic. A record is put only after Kafka has acknowledged all letters that it covers. So a crash at any point sends some
letters again, with the same `headgate.id`, and loses none; two runs at the same time also send some twice.
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
"""Folder below the table's own records."""

CHUNK_BYTES = 16 << 20
"""Approximate bytes of letters per progress record: a crash may send this much twice."""


@dataclass(frozen=True)
class Forwarded:
    """Progress of a forwarding: per dead-letter log, the position of the next entry."""

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
    """Letters that were or would be sent: neither forwarded before nor replayed since."""
    records: int = 0
    """Progress records that were put."""

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

    Key, value and headers are those of the record. Additional headers: `headgate.id`, which is the same each time a
    letter is sent; `headgate.table`, `headgate.stream`, `headgate.topic`, `headgate.partition`, `headgate.offset`,
    `headgate.error`. Letters that a replay turned into rows are not sent. Fences nobody: streams may keep running.

    1. read the progress of the last run.
    2. read the letters after it; then for each 16 MB:
    3. send them, and wait until all in-sync replicas have them.
    4. put the next progress record; if another run has its number, continue above that.

    `kafka_options` are those of Spark's Kafka source (`kafka.security.protocol` …). Raises InvalidInput for a topic
    that the stream reads, NotFound (stream, topic), PermissionDenied, Transient: the same call continues.
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
    """The progress records of one forwarding."""

    def __init__(self, store: ObjectStore, stream: str, topic: str, servers: str) -> None:
        self._store = store
        self._stream, self._topic = stream, topic
        cluster = hashlib.sha256(",".join(sorted(servers.split(","))).encode()).hexdigest()[:12]
        folders = folder_name(stream, "stream"), f"{folder_name(topic, 'topic')}.{cluster}"
        self._folder = f"{ROOT}{'/'.join(folders)}/"

    def read(self) -> Forwarded:
        """The newest record. Raises Corrupt."""
        keys = sorted(self._store.list_keys(self._folder))
        if not keys:
            return Forwarded(self._stream, self._topic, 0)
        return decode(Forwarded, self._store.get(keys[-1]), "How far a forwarding is")

    def put(self, wanted: Forwarded) -> Forwarded:
        """Put a record above the newest one, with the progress of both, and delete older ones. Returns what is
        stored.
        """
        while True:
            made = replace(wanted, number=wanted.number + 1)
            with suppress(AlreadyExists):
                self._store.put_if_absent(self._key(made.number), encode(made))
                older = [key for key in self._store.list_keys(self._folder) if key < self._key(made.number)]
                delete_all(self._store, older, "forward")
                return made
            # Another run put it, or the response of this put was lost: both have sent what their records cover.
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
