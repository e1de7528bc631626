"""Pins of the consumers of a table's commit logs: what a consumer has not read yet stays (R15).

A consumer is identified by its name. Its pin says how far it has read: per stream the last sequence, per shard the last
position. Pins are numbered records, `consumers/<name>/<number>.json` in the folder of the table's records, put if
absent; the newest counts. Promises:
1. Under one name one run reads at a time: the next one takes the next number, and the earlier run gets Fenced.
2. The store's clock gives a pin's age: it expires a number of seconds after the store took it, and then holds nothing.
3. A crash anywhere leaves the pin as it was, or a newer one beside it that counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, ClassVar
from uuid import UUID

from headgate.checkpoints.log.names import folder_name
from headgate.connectors.objects import ObjectInfo, ObjectStore
from headgate.connectors.objects.deletion import delete_all
from headgate.errors import AlreadyExists, Fenced, HeadgateError, NotFound
from headgate.records import LEFT_OUT, decode, encode

ROOT = "consumers/"
"""Below the folder of the table's own records."""

_PIN = re.compile(r"(?P<folder>[^/]+)/(?P<number>[0-9]{20})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPin:
    """How far a consumer has read. What lies above is held for it."""

    KIND: ClassVar = "consumer"
    consumer: str
    number: int
    run_id: str
    done: Mapping[str, int] = field(default_factory=dict)
    """Per stream the last sequence that it no longer needs; a stream that is missing is held whole."""
    positions: Mapping[UUID, Annotated[int, -1]] = field(default_factory=dict)
    """Per shard the last position that it no longer needs; -1 if it needs all. If a shard is missing, all its committed
    entries are held.
    """
    expires_after: float
    """Seconds after the store took the record."""
    records_of: str | None = field(default=None, metadata=LEFT_OUT)
    """If set, the pin holds the records of this one stream, and no entry: for those who read the log and not the rows.
    (A release that does not know this field treats the pin as one that holds everything, which is safe.)
    """
    note: str = field(default="", metadata=LEFT_OUT)
    """For people: who reads, and how it is doing."""


@dataclass(frozen=True, slots=True)
class StoredPin:
    """A pin as it is stored; only the newest of a consumer counts."""

    pin: ConsumerPin
    taken_at: datetime
    """Time by the store's clock."""
    key: str
    older: tuple[str, ...] = ()
    """Keys of the older pins that still exist."""

    @property
    def expires_at(self) -> datetime:
        """Time by the store's clock."""
        return self.taken_at + timedelta(seconds=self.pin.expires_after)

    def expired(self, now: datetime) -> bool:
        """True if the pin no longer holds anything."""
        return self.expires_at <= now


# -- what pins hold ------------------------------------------------------------------


def needed_above(pins: Iterable[ConsumerPin], stream: str) -> int | None:
    """The sequence above which every record of the stream is held; None if no pin holds any."""
    held = (pin for pin in pins if pin.records_of in (None, stream))
    return min((pin.done.get(stream, 0) for pin in held), default=None)


def read_upto(pins: Iterable[ConsumerPin], shard_id: UUID) -> tuple[int | None, bool]:
    """The position up to which all consumers that know the shard have read it (None if none knows it); and True if some
    consumer does not know it, so that every entry that a stream wrote to it is held.
    """
    known = [pin.positions.get(shard_id) for pin in pins if pin.records_of is None]
    return min((one for one in known if one is not None), default=None), None in known


# -- the store -----------------------------------------------------------------------


class PinStore:
    """The consumers' pins of one table, in the store of its records."""

    def __init__(self, records: ObjectStore, table_uri: str) -> None:
        self._store = records
        self._table = table_uri

    def list(self) -> list[StoredPin]:
        """The newest pin of each consumer, expired ones too. Raises Corrupt: an unreadable pin may hold anything."""
        found = (self._newest(infos) for infos in self.listed().values())
        return [one for one in found if one is not None]

    def newest(self, consumer: str) -> StoredPin | None:
        """A consumer's pin, expired or not; None if it never had one, or it was collected."""
        return self._newest(self.listed(consumer).get(folder_name(consumer, "consumer"), ()))

    def put(self, pin: ConsumerPin, older: Sequence[str] = ()) -> str:
        """Store a pin, then remove those it replaces. Returns its key. A lost response is not an error.

        Raises Fenced if another run of the consumer has the number.
        """
        key, data = pin_key(pin.consumer, pin.number), encode(pin)
        try:
            self._store.put_if_absent(key, data)
        except AlreadyExists as error:
            if decode_pin(self._store.get(key)).run_id != pin.run_id:
                raise another_run(pin.consumer, self._table) from error
        delete_all(self._store, older, "consumer")
        return key

    def listed(self, consumer: str | None = None) -> dict[str, tuple[ObjectInfo, ...]]:
        """The existing pins per folder, oldest first; of one consumer or of all."""
        prefix = ROOT if consumer is None else f"{ROOT}{folder_name(consumer, 'consumer')}/"
        folders: dict[str, list[tuple[int, ObjectInfo]]] = {}
        for info in self._store.list(prefix):
            if match := _PIN.fullmatch(info.key.removeprefix(ROOT)):
                folders.setdefault(match["folder"], []).append((int(match["number"]), info))
        return {
            folder: tuple(info for _, info in sorted(some, key=lambda one: one[0])) for folder, some in folders.items()
        }

    def _newest(self, infos: Sequence[ObjectInfo]) -> StoredPin | None:
        for place in reversed(range(len(infos))):
            info = infos[place]
            try:
                pin = decode_pin(self._store.get(info.key))
            except NotFound:
                # A newer pin replaced it since the LIST, or it was collected.
                return self._again(info)
            except HeadgateError as error:
                error.with_context(table=self._table, key=info.key)
                raise
            return StoredPin(pin, info.modified, info.key, tuple(older.key for older in infos[:place]))
        return None

    def _again(self, gone: ObjectInfo) -> StoredPin | None:
        folder = gone.key.removeprefix(ROOT).partition("/")[0]
        infos = [info for info in self.listed().get(folder, ()) if info.key != gone.key]
        return self._newest(infos)


def live_pins(records: ObjectStore, table_uri: str, now: datetime) -> list[ConsumerPin]:
    """The pins that have not expired at that time of the store's clock. Raises Corrupt."""
    return [one.pin for one in PinStore(records, table_uri).list() if not one.expired(now)]


def another_run(consumer: str, table_uri: str) -> Fenced:
    """The error for an earlier run of a consumer."""
    return Fenced(
        f"Another query reads the commit log as consumer {consumer!r}.",
        table=table_uri,
        advice="stop this query, or give each query its own consumer name",
    )


def pin_key(consumer: str, number: int) -> str:
    """Key of a pin. Raises InvalidInput for an empty name or bad Unicode."""
    return f"{ROOT}{folder_name(consumer, 'consumer')}/{number:020d}.json"


def decode_pin(data: bytes | memoryview) -> ConsumerPin:
    """The pin in the bytes. Raises Corrupt, and InvalidInput for one of a newer release."""
    return decode(ConsumerPin, data, "A consumer's pin")
