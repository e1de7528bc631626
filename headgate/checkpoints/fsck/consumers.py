"""fsck of the pins of the commit logs' consumers: each record, and that what it pins exists. Reads only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from headgate import clock
from headgate.checkpoints.fsck.findings import Finding, finding
from headgate.checkpoints.fsck.log import Named
from headgate.checkpoints.log.archive.archive import LogArchive
from headgate.checkpoints.log.archive.format import covers
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.names import list_streams
from headgate.checkpoints.log.pins import ConsumerPin, PinStore, StoredPin, decode_pin
from headgate.checkpoints.log.records import BatchRecord, Span
from headgate.connectors.objects import ObjectInfo
from headgate.errors import Corrupt, HeadgateError, InvalidInput, NotFound
from headgate.shards.shard import Shard, TableHome
from headgate.shards.wal.listing import positions


@dataclass(frozen=True)
class ConsumerLook:
    named: Mapping[str, Named]
    """Per stream the highest record that a consumer has read."""
    findings: tuple[Finding, ...]
    objects: int


def check_consumers(home: TableHome, under: str) -> ConsumerLook:
    """Read the newest pin of each consumer; if it has not expired, check the records and entries that it pins."""
    found: list[Finding] = []
    named: dict[str, Named] = {}
    folders = PinStore(home.records, home.uri).listed()
    held = _Held(home, under)
    for infos in folders.values():
        info = infos[-1]
        try:
            pin = decode_pin(home.records.get(info.key))
        except NotFound:
            continue  # renewed or collected since
        except InvalidInput as error:
            found.append(finding("record-newer", under + info.key, error.what))
        except Corrupt as error:
            found.append(finding("consumer-damaged", under + info.key, error.what))
        else:
            for stream, sequence in pin.done.items():
                named[stream] = max((sequence, f"consumer {pin.consumer!r}"), named.get(stream, (0, "")))
            found += _judged(pin, info, held)
    return ConsumerLook(named, tuple(found), sum(map(len, folders.values())))


def _judged(pin: ConsumerPin, info: ObjectInfo, held: _Held) -> Iterator[Finding]:
    if not StoredPin(pin, info.modified, info.key).expired(clock.now()):
        yield from held.missing(pin)


@dataclass
class _Held:
    home: TableHome
    under: str
    _entries: dict[UUID, set[int]] = field(default_factory=dict)
    _archives: dict[str, list[Span]] = field(default_factory=dict)

    def missing(self, pin: ConsumerPin) -> Iterator[Finding]:
        """Per stream the first thing that the pin should hold and that is gone."""
        try:
            streams = list_streams(self.home.records)
        except HeadgateError:
            return  # the check of the logs reports it
        for stream in streams:
            if pin.records_of not in (None, stream):
                continue
            log = CommitLog(self.home.records, stream, self.home.uri)
            tip = max(log.sequences(), default=0)
            for sequence in range(pin.done.get(stream, 0) + 1, tip + 1):
                try:
                    record = log.record(sequence)
                except NotFound:
                    # A ledger continues in the archive, which has what was collected after its pin had expired.
                    if pin.records_of is not None and covers(self._archived(stream), sequence):
                        continue
                    place = f"{self.under}{log.folder}/log/{sequence:020d}.json"
                    what = f"Consumer {pin.consumer!r} still needs record {sequence} of {stream!r}, which is missing."
                    yield finding("consumer-broken", place, what)
                    break
                except HeadgateError:
                    continue  # the check of the logs reports it
                if not isinstance(record, BatchRecord) or pin.records_of is not None:
                    continue
                if (lost := next(self._lost(record), None)) is not None:
                    shard, position = lost
                    what = f"Consumer {pin.consumer!r} still needs entry {position}, which is missing."
                    yield finding("consumer-broken", f"{shard.wal_key(position)} (position {position})", what)
                    break

    def _archived(self, stream: str) -> list[Span]:
        if stream not in self._archives:
            self._archives[stream] = LogArchive(self.home.records, stream, self.home.uri).runs()
        return self._archives[stream]

    def _lost(self, record: BatchRecord) -> Iterator[tuple[Shard, int]]:
        for part in record.shards.values():
            shard = Shard(self.home, part.shard_id)
            if shard.id not in self._entries:
                self._entries[shard.id] = positions(shard)
            for position in part.positions:
                if position not in self._entries[shard.id]:
                    yield shard, position
