"""An independent reader of a table's bytes: nothing of the product's codecs is used.

Manifests are protobuf, read field by field; entries are Arrow IPC, read by pyarrow; records are JSON. An SSTable is the
stand-in of `patches`.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias
from uuid import UUID

import pyarrow as pa

from tests.simulation.consumers import ConsumerPins

_SHARD = re.compile(r"_mem_wal/([0-9a-f-]{36})/(wal|manifest)/([01]{64})\.(?:arrow|binpb)")
_SSTABLE = re.compile(r"_mem_wal/([0-9a-f-]{36}/[^/]+)/_versions/[0-9]{20}\.manifest")
_RECORD = re.compile(r"_headgate/([0-9a-f-]{36})/streams/([^/]+)/(log|folds)/([0-9]{20})\.json")
_EXPIRED = re.compile(r"_headgate/[0-9a-f-]{36}/expired/([0-9a-f-]{36})/[0-9]{20}\.json")
_PIN = re.compile(r"_headgate/[0-9a-f-]{36}/(checkpoint|consumer)s/.*\.json")


TOPIC_ROWS = 1_000_000
"""Ids from here on are the topic's, those below direct writers'."""


def row_id(partition: int, offset: int) -> int:
    """The id of the row that stands in the topic there."""
    return TOPIC_ROWS * (partition + 1) + offset


BaseVersion: TypeAlias = Mapping[str, Any]
"""As the stand-in of Lance writes it."""
_GONE = (-1,)
_BY_PLACE = ("sstable", "data", "checkpoint", "tag", "hint")


@dataclass(frozen=True)
class Manifest:
    """Fields 2, 3, 6 and 8 of the message."""

    epoch: int
    replay_after: int
    generation: int
    sstables: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """A WAL entry: whose it is, and its ids."""

    epoch: int
    barrier: bool
    attempt: str | None
    ids: tuple[int, ...]
    columns: frozenset[str]


@dataclass
class ShardBytes:
    """What of one shard is there."""

    entries: dict[int, Entry] = field(default_factory=dict)
    versions: dict[int, Manifest] = field(default_factory=dict)

    @property
    def manifest(self) -> Manifest | None:
        """The latest."""
        return self.versions[max(self.versions)] if self.versions else None


@dataclass
class LogBytes:
    """What of one stream's log is there."""

    records: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    folds: dict[int, Mapping[str, Any]] = field(default_factory=dict)


@dataclass
class TableBytes:
    """Everything that counts, as bytes say it. `mine`: of these shards; None: of all that are there."""

    table_id: UUID | None = None
    mine: frozenset[UUID] | None = None
    shards: dict[UUID, ShardBytes] = field(default_factory=lambda: defaultdict(ShardBytes))
    logs: dict[str, LogBytes] = field(default_factory=lambda: defaultdict(LogBytes))
    checkpoints: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """By key."""
    consumers: ConsumerPins = field(default_factory=ConsumerPins)
    sstables: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """By shard and folder."""
    versions: dict[int, BaseVersion] = field(default_factory=dict)
    """Of the base."""
    files: dict[str, Mapping[str, Sequence[Any]]] = field(default_factory=dict)
    """Rows of the base, by name of the file."""
    tags: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    hints: dict[UUID, int] = field(default_factory=dict)
    """Per shard the version that native would start from."""
    source: TableBytes | None = None
    """Whose files a shallow clone reads."""
    committed: Counter[int] = field(default_factory=Counter)
    """The rows of all batches whose records were put, whatever was folded since."""
    batches: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)
    """The same per stream and sequence."""
    expired: set[int] = field(default_factory=set)
    """Rows of entries that nobody wants any more: they may go at any time (R18)."""
    promised: set[str] = field(default_factory=set)
    """Columns whose change had returned."""
    faults: list[str] = field(default_factory=list)
    """What is wrong with the records that were put."""
    anew: bool = False
    """Whether another table was here: a checkpoint of Spark's that was started with its offsets may go on (R23)."""
    _watchers: list[set[str]] = field(default_factory=list)
    _gone: set[str] = field(default_factory=set)
    _back: bool = False
    """Whether a manifest came late, after it had been collected."""
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    """Per stream and partition where the log ends."""

    def changed(self, key: str, data: bytes | None) -> bool:
        """An object was put, replaced or deleted (None). Whether it counts for anything."""
        kind, place, number = _place(key)
        if kind == "other" or not self._is_mine(kind, place):
            return False
        if kind in ("consumer", "expired"):
            if data is not None and kind == "consumer":
                self.consumers.put(record(data), self)
            elif data is not None:
                self._expire(place, record(data))
            self._look()
            return False
        objects, name = self._objects(kind, place), place if kind in _BY_PLACE else number
        if data is None:
            objects.pop(name, None)
            self._gone.add(key)
        else:
            self._back |= kind == "manifest" and key in self._gone
            objects[name] = _DECODERS[kind](data)
            if kind == "log":
                self._logged(place[1], number, objects[name])
        self._look()
        return True

    def _expire(self, shard_id: UUID, found: Mapping[str, Any]) -> None:
        for position, one in self.shards[shard_id].entries.items():
            if found["replay_after"] < position <= found["upto"]:
                self.expired.update(one.ids)

    def wanted(self, rows: Counter[int]) -> Counter[int]:
        """Of rows that somebody saw, those that nobody has let expire."""
        return Counter({row: count for row, count in rows.items() if row not in self.expired})

    def _look(self) -> None:
        for seen in self._watchers:
            seen |= self.leftovers()

    @contextmanager
    def watched(self) -> Iterator[set[str]]:
        """The leftovers of any moment from now on."""
        seen = self.leftovers()
        self._watchers.append(seen)
        try:
            yield seen
        finally:
            self._watchers = [one for one in self._watchers if one is not seen]

    def leftovers(self) -> set[str]:
        """What fsck rightly tells though no row is lost: checkpoints whose take died, or has not come, to the tag;
        hints of sleepers that lead native into a gap; a manifest that came late, when those after it were collected;
        consumers that came too late, when a collection had chosen what they need.
        """
        found = {"consumer-broken"} if self.consumers.is_one_too_late(self) else set()
        tags = {f"_refs/tags/headgate-checkpoint-{one['checkpoint_id']}.json" for one in self.checkpoints.values()}
        if tags - self.tags.keys():
            found.add("checkpoint-unpinned")
        for shard_id, shard in self.shards.items():
            hint, versions = self.hints.get(shard_id, 0), shard.versions
            if hint in versions and len([one for one in versions if one > hint]) < max(versions) - hint:
                found.add("manifest-gap")
        return found | ({"manifest-gap"} if self._back else set())

    def has_log_hole(self) -> bool:
        """Whether a record is missing between the newest fold and the last record that is there, or that is named."""
        for stream, log in self.logs.items():
            newest = max(log.folds, default=0)
            above = [sequence for sequence in log.records if sequence > newest]
            if len(above) < max([newest, *above, self.named(stream)]) - newest:
                return True
        return False

    def named(self, stream: str) -> int:
        """The last record of a log that a checkpoint or a consumer's pin names."""
        folds = (one["streams"].get(stream, {}).get("sequence", 0) for one in self.checkpoints.values())
        return max((*folds, self.consumers.read(stream)))

    def _is_mine(self, kind: str, place: Any) -> bool:
        if kind in ("wal", "manifest", "expired"):
            return self.mine is None or place in self.mine
        return kind not in ("log", "folds") or self.table_id is None or place[0] == str(self.table_id)

    def _logged(self, stream: str, sequence: int, found: Mapping[str, Any]) -> None:
        """A record was put."""
        if found["kind"] == "rewind":
            for _topic, partition, _before, start in found["offsets"]:
                self.ends[stream, partition] = start
        if found["kind"] != "batch" or (stream, sequence) in self.batches:
            return
        if sequence <= max(self.logs[stream].folds, default=0):
            return  # into a collected slot: nobody reads it
        rows: list[int] = []
        for _, partition, start, until in found["sources"]:
            first = start if self.anew and not found["batch_id"] else 0
            if start != (end := self.ends.get((stream, partition), first)):
                self.faults.append(
                    f"invariant 1: record {sequence} of {stream} reads partition {partition} from {start}, and the log "
                    f"ends at {end}"
                )
            self.ends[stream, partition] = until
            rows += [row_id(partition, at) for at in range(start, until)]
        for part in found["shards"].values():
            for position in part["positions"]:
                one = self.shards[UUID(part["shard_id"])].entries.get(position)
                if one is not None and (lacks := self.promised - one.columns):
                    self.faults.append(
                        f"R22: record {sequence} of {stream} lists entry {position}, which lacks column {min(lacks)}, "
                        "and the change had returned"
                    )
        self.batches[stream, sequence] = tuple(rows)
        self.committed.update(rows)

    def _objects(self, kind: str, place: Any) -> dict[Any, Any]:
        if kind in ("wal", "manifest"):
            shard = self.shards[place]
            return shard.entries if kind == "wal" else shard.versions
        if kind in ("log", "folds"):
            log = self.logs[place[1]]
            return log.records if kind == "log" else log.folds
        by_kind: dict[str, dict[Any, Any]] = {
            "sstable": self.sstables,
            "base": self.versions,
            "data": self.files,
            "checkpoint": self.checkpoints,
            "tag": self.tags,
            "hint": self.hints,
        }
        return by_kind[kind]

    def listed(self) -> dict[UUID, dict[int, str | None]]:
        """Per shard the positions that commit records list, with their attempts; None: only a fold knows it."""
        found: dict[UUID, dict[int, str | None]] = defaultdict(dict)
        for log in self.logs.values():
            newest = max(log.folds, default=0)
            if newest:
                for shard, one in log.folds[newest]["shards"].items():
                    for first, last in one["visible"]:
                        found[UUID(shard)].update(dict.fromkeys(range(first, last + 1)))
            for sequence, one in log.records.items():
                if sequence > newest and one["kind"] == "batch":
                    for part in one["shards"].values():
                        positions = dict.fromkeys(part["positions"], part["attempt_id"])
                        found[UUID(part["shard_id"])].update(positions)
        return found

    def base_rows(self) -> list[int]:
        """The ids that the newest version of the base holds."""
        if not self.versions:
            return []
        found: list[int] = []
        for fragment in self.versions[max(self.versions)]["fragments"]:
            file = fragment["files"][0]
            ids = (self if file["base_id"] is None else self.source or self).files[file["path"]]["0"]
            gone = set(fragment["deleted"])
            found += [one for at, one in enumerate(ids) if at not in gone] if gone else ids
        return found

    def visible(self) -> Iterator[int]:
        """The id of every row that counts, as often as it does. Raises LookupError for what is missing."""
        listed, base = self.listed(), self.base_rows()
        yield from base
        there = set(base)
        for shard_id, shard in self.shards.items():
            latest = shard.manifest
            if latest is None:
                continue
            for path in latest.sstables:
                # The base takes an SSTable in whole, and every row has an id of its own.
                if not there.issuperset(rows := self.sstables.get(f"{shard_id}/{path}", _GONE)):
                    if rows is _GONE:
                        raise LookupError(f"SSTable {path}")
                    yield from rows
            known = listed.get(shard_id, {})
            for position, attempt in known.items():
                if position > latest.replay_after:
                    one = shard.entries[position]
                    if attempt is not None and one.attempt != attempt:
                        raise LookupError(f"entry {position} is of attempt {one.attempt}, listed is {attempt}")
            for position, one in shard.entries.items():
                if position > latest.replay_after and (one.attempt is None or position in known):
                    yield from one.ids


@lru_cache(50_000)
def _place(key: str) -> tuple[str, Any, int]:
    """What an object is, by its name: its kind, whose it is, and its number."""
    if (match := _SHARD.fullmatch(key)) is not None:
        return match[2], UUID(match[1]), int(match[3][::-1], 2)
    if (match := _SSTABLE.fullmatch(key)) is not None:
        return "sstable", match[1], 0
    if (match := _RECORD.fullmatch(key)) is not None:
        return match[3], (match[1], match[2]), int(match[4])
    if key.startswith("_versions/"):
        return "base", None, 2**64 - 1 - int(key.removeprefix("_versions/").removesuffix(".manifest"))
    if key.startswith("_refs/tags/"):
        return "tag", key, 0
    if key.endswith("/manifest/version_hint.json"):
        return "hint", UUID(key.split("/")[1]), 0
    if key.startswith("data/"):
        return "data", key.removeprefix("data/"), 0
    if (match := _EXPIRED.fullmatch(key)) is not None:
        return "expired", UUID(match[1]), 0
    return ("other" if (match := _PIN.fullmatch(key)) is None else match[1]), key, 0


@lru_cache(50_000)
def entry(data: bytes) -> Entry:
    """An entry of a WAL."""
    with pa.ipc.open_stream(data) as reader:
        schema, batches = reader.schema, list(reader)
    metadata = schema.metadata or {}
    own = schema.field("_tombstone").metadata or {} if "_tombstone" in schema.names else {}
    attempt = own.get(b"headgate:attempt")
    ids = [one for batch in batches for one in batch.column("id").to_pylist()] if "id" in schema.names else []
    return Entry(
        epoch=int(metadata[b"writer_epoch"]),
        barrier=b"fence_sentinel" in metadata,
        attempt=None if attempt is None else attempt.decode(),
        ids=tuple(ids),
        columns=frozenset(schema.names),
    )


@lru_cache(50_000)
def manifest(data: bytes) -> Manifest:
    """A version of a shard's manifest."""
    epoch, replay_after, generation, sstables = 0, 0, 0, []
    for number, value in _fields(data):
        if number == 2:
            epoch = int(value)
        elif number == 3:
            replay_after = int(value)
        elif number == 6:
            generation = int(value)
        elif number == 8:
            sstables.append(next(path for inner, path in _fields(value) if inner == 2).decode())
    return Manifest(epoch, replay_after, generation, tuple(sstables))


@lru_cache(50_000)
def record(data: bytes) -> Mapping[str, Any]:
    """A record, a fold or a checkpoint."""
    found: Mapping[str, Any] = json.loads(data)
    return found


@lru_cache(50_000)
def _ids(data: bytes) -> tuple[int, ...]:
    return tuple(record(data)["rows"]["0"])


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Protobuf: numbers and byte strings by the number of their field."""
    at = 0

    def number() -> int:
        nonlocal at
        result = shift = 0
        while True:
            byte = data[at]
            at += 1
            result |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return result

    while at < len(data):
        tag = number()
        if tag & 7 == 0:
            yield tag >> 3, number()
        elif tag & 7 == 2:
            length = number()
            yield tag >> 3, data[at : at + length]
            at += length
        else:
            raise ValueError(f"wire type {tag & 7}")


_DECODERS: Mapping[str, Callable[[bytes], Any]] = {
    "wal": entry,
    "manifest": manifest,
    "sstable": _ids,
    "log": record,
    "folds": record,
    "checkpoint": record,
    "base": record,
    "tag": record,
    "hint": lambda data: int(record(data)["version"]),
    "data": record,
}
