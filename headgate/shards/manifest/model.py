"""One shard's manifest: its value, its bytes, and its validation.

The bytes are native Lance's protobuf `ShardManifest`, exact to the byte. A manifest that decodes without an error has
passed every check here, so callers may rely on it.

Fields that a newer Lance may have added, in the manifest or in an SSTable, are carried along and written back (native
itself drops them). Inside the small messages for a UUID or a shard field they are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from google.protobuf.message import DecodeError

from headgate.connectors.lance.protobuf import message_classes
from headgate.errors import Corrupt, InvalidInput

CLAIM_ID = "headgate.claim_id"
OWNER = "headgate.owner"
TABLE = "headgate.table"
"""Key of the table and shard ids as the claiming writer knew them: a writer that slept may claim where another table
was made (R23). A release that does not know this key carries it into a clone, whose shards have other ids: there it has
no meaning.
"""
WAL_STORE = "headgate.wal_store"
WRITE_ID = "headgate.write_id"

MAX_BYTES = 16 * 2**20
"""Maximum size: a manifest of a hundred thousand SSTables is smaller; a larger file is invalid and would only fill
memory.
"""
MAX_FIELDS, SMALL_BYTES = 250_000, 1 << 20
"""Maximum number of protobuf fields: more than that many SSTables have; each takes memory. A small manifest is not
counted.
"""

_SEALED = 1
_U32, _U64 = 2**32, 2**64
_RESERVED_PATHS = frozenset({".", "..", "wal", "manifest"})


@dataclass(frozen=True, slots=True)
class SsTable:
    """One flushed generation: a small Lance dataset in the folder `path` of the shard."""

    generation: int
    path: str
    in_memory_bytes: int | None = None
    physical_rows: int | None = None
    primary_key_bytes: int | None = None
    unknown: bytes = b""
    """Raw protobuf fields of a newer Lance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One version of a shard's manifest. Epoch 0 means that no writer ever claimed the shard."""

    version: int
    epoch: int
    replay_after: int = 0
    last_seen: int = 0
    generation: int = 1
    sstables: tuple[SsTable, ...] = ()
    spec_id: int = 0
    shard_id: UUID
    fields: tuple[tuple[str, bytes], ...] = ()
    """`shard_field_entries`: native keeps every key in its own writes, but shuffles them."""
    sealed: bool = False
    unknown: bytes = b""
    """Raw protobuf fields of a newer Lance."""

    @property
    def claim_id(self) -> str | None:
        """headgate's last claim. It may have ended: ask `held_by`."""
        return self._text(CLAIM_ID)

    @property
    def owner(self) -> str | None:
        """The stream that owns the shard."""
        return self._text(OWNER)

    @property
    def wal_store(self) -> str | None:
        """The store to which the shard's WAL has moved, without credentials; None if it is where table.json says."""
        return self._text(WAL_STORE)

    @property
    def write_id(self) -> str | None:
        """The id of headgate's write that made this version, or of its last write before a native writer's."""
        return self._text(WRITE_ID)

    def held_by(self, epoch: int, claim_id: str) -> bool:
        """True if this claim still stands. Both count: native's claim raises the epoch and keeps our claim id."""
        return self.epoch == epoch and self.claim_id == claim_id

    def field(self, key: str) -> bytes | None:
        """The value of one shard field, None if it is not set."""
        return next((value for name, value in self.fields if name == key), None)

    def is_of(self, table_id: UUID | None) -> bool:
        """True if the shard belongs to that table, as far as the manifest says."""
        named, _, shard_id = (self._text(TABLE) or "").partition(" ")
        return table_id is None or shard_id != str(self.shard_id) or named == str(table_id)

    def as_of(self, table_id: UUID | None) -> Manifest:
        """The same manifest, marked as that table's."""
        return self if table_id is None else self.with_field(TABLE, f"{table_id} {self.shard_id}".encode())

    def with_field(self, key: str, value: bytes | None) -> Manifest:
        """The same manifest with one shard field set (None removes it); every other field is unchanged."""
        if value is None:
            return replace(self, fields=tuple(pair for pair in self.fields if pair[0] != key))
        if self.field(key) is None:
            return replace(self, fields=(*self.fields, (key, value)))
        return replace(self, fields=tuple((name, value if name == key else old) for name, old in self.fields))

    def _text(self, key: str) -> str | None:
        value = self.field(key)
        return None if value is None else value.decode()


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of a manifest file. Raises InvalidInput if decoding would refuse the manifest."""
    if fault := _fault(manifest):
        raise InvalidInput(f"Invalid manifest: {fault}.", shard=str(manifest.shard_id))
    message = _ShardManifest(
        version=manifest.version,
        writer_epoch=manifest.epoch,
        replay_after_wal_entry_position=manifest.replay_after,
        wal_entry_position_last_seen=manifest.last_seen,
        current_generation=manifest.generation,
        shard_spec_id=manifest.spec_id,
        shard_id={"uuid": manifest.shard_id.bytes},
        shard_field_entries=[{"field_id": key, "value": value} for key, value in manifest.fields],
        status=_SEALED if manifest.sealed else 0,
    )
    for sstable in manifest.sstables:
        part = message.sstables.add(
            generation=sstable.generation,
            path=sstable.path,
            in_memory_bytes=sstable.in_memory_bytes,
            physical_rows=sstable.physical_rows,
            primary_key_bytes=sstable.primary_key_bytes,
        )
        part.MergeFromString(sstable.unknown)
    message.MergeFromString(manifest.unknown)
    return bytes(message.SerializeToString(deterministic=True))


def decode_manifest(data: bytes | memoryview, *, shard_id: UUID, version: int) -> Manifest:
    """The manifest in `data`, read from the file of `version` in the folder of `shard_id`.

    Raises Corrupt, and nothing else, for bytes that are not a manifest, that belong to another shard or version, or
    that no writer writes.
    """
    try:
        return _decode(data, shard_id, version)
    except Corrupt as error:
        error.with_context(shard=str(shard_id), version=version)
        raise


def check_successor(old: Manifest, new: Manifest) -> None:
    """Raises InvalidInput unless `new` may follow `old`: version + 1, and no value that only grows gets smaller."""
    faults = [
        f"{name} goes back from {getattr(old, name)} to {getattr(new, name)}"
        for name in ("epoch", "replay_after", "last_seen", "generation")
        if getattr(new, name) < getattr(old, name)
    ]
    if new.version != old.version + 1:
        faults.append(f"version {new.version} does not follow {old.version}; a gap would hide later versions")
    if new.shard_id != old.shard_id:
        faults.append(f"it is for shard {new.shard_id}")
    if faults:
        what = f"The new manifest cannot follow the current one: {', '.join(faults)}."
        raise InvalidInput(what, shard=str(old.shard_id), epoch=new.epoch, stored_epoch=old.epoch)


def _has_many_fields(data: bytes) -> bool:
    """True if the message has more than MAX_FIELDS fields, each of which becomes an object: an empty one takes two
    bytes. Bytes that are not a message are left to the decoder.
    """
    at, end = 0, len(data)
    for _ in range(MAX_FIELDS):
        kind, length = data[at] & 7, 0
        while data[at] & 128:
            at += 1
            if at == end:
                return False
        at += 1
        if kind == 2:
            shift = 0
            while at < end:
                length |= (data[at] & 127) << shift
                shift += 7
                at += 1
                if not data[at - 1] & 128:
                    break
        elif kind == 0:
            while at < end and data[at] & 128:
                at += 1
            length = 1
        else:
            length = 8 if kind == 1 else 4
        at += length
        if at >= end:
            return False
    return True


def _decode(data: bytes | memoryview, shard_id: UUID, version: int) -> Manifest:
    if len(data) > MAX_BYTES:
        raise Corrupt(f"A manifest of {len(data)} bytes is too large to be valid.")
    if len(data) > SMALL_BYTES and _has_many_fields(bytes(data)):
        raise Corrupt(f"A manifest of more than {MAX_FIELDS:,} fields cannot be valid.")
    message = _ShardManifest()
    try:
        message.MergeFromString(bytes(data))
    except DecodeError as error:
        raise Corrupt(f"The object ({len(data)} bytes) is not a shard manifest.") from error
    if message.shard_id.uuid != shard_id.bytes:
        raise Corrupt(f"The manifest is for shard {message.shard_id.uuid.hex() or '(none)'}.")
    if message.version != version:
        raise Corrupt(f"The manifest says version {message.version}.")
    if message.status not in (0, _SEALED):
        raise Corrupt(f"The shard's status {message.status} is unknown; a newer Lance may have set it.")
    manifest = Manifest(
        version=message.version,
        epoch=message.writer_epoch,
        replay_after=message.replay_after_wal_entry_position,
        last_seen=message.wal_entry_position_last_seen,
        generation=message.current_generation,
        sstables=tuple(_sstable(part) for part in message.sstables),
        spec_id=message.shard_spec_id,
        shard_id=shard_id,
        fields=tuple((part.field_id, part.value) for part in message.shard_field_entries),
        sealed=message.status == _SEALED,
        unknown=_unknown(message),
    )
    if fault := _fault(manifest):
        raise Corrupt(f"The manifest is invalid: {fault}.")
    return manifest


def _sstable(part: Any) -> SsTable:
    if not part.generation:
        raise Corrupt("An SSTable in the manifest has no generation.")
    return SsTable(
        generation=part.generation,
        path=part.path,
        in_memory_bytes=part.in_memory_bytes if part.HasField("in_memory_bytes") else None,
        physical_rows=part.physical_rows if part.HasField("physical_rows") else None,
        primary_key_bytes=part.primary_key_bytes if part.HasField("primary_key_bytes") else None,
        unknown=_unknown(part),
    )


def _unknown(message: Any) -> bytes:
    """The bytes of the message's unknown fields (empties the message)."""
    for field in message.DESCRIPTOR.fields:
        message.ClearField(field.name)
    return bytes(message.SerializeToString())


def _fault(manifest: Manifest) -> str | None:
    """Why no writer writes such a manifest, None if it is valid."""
    if not 1 <= manifest.version < _U64:
        return f"version {manifest.version} is not in 1..2**64-1"
    if not 1 <= manifest.generation < _U64:
        return f"current generation {manifest.generation} is not in 1..2**64-1"
    for name in ("epoch", "replay_after", "last_seen"):
        if not 0 <= getattr(manifest, name) < _U64:
            return f"{name} {getattr(manifest, name)} does not fit into 64 bits"
    if not 0 <= manifest.spec_id < _U32:
        return f"shard spec id {manifest.spec_id} does not fit into 32 bits"
    if manifest.epoch == 0 and (manifest.sstables or manifest.replay_after or manifest.field(CLAIM_ID)):
        return "it has epoch 0, but contains a writer's work"
    return _sstables_fault(manifest) or _fields_fault(manifest)


def _sstables_fault(manifest: Manifest) -> str | None:
    last, paths = 0, set()
    for sstable in manifest.sstables:
        if not last < sstable.generation < manifest.generation:
            return f"SSTable generation {sstable.generation} is not between {last} and {manifest.generation}"
        if not _is_safe(sstable.path) or sstable.path in paths:
            return f"SSTable path {sstable.path[:80]!r} is not a direct subfolder of the shard's folder"
        for size in (sstable.in_memory_bytes, sstable.physical_rows, sstable.primary_key_bytes):
            if size is not None and not 0 <= size < _U64:
                return f"SSTable generation {sstable.generation} has an invalid size {size}"
        last = sstable.generation
        paths.add(sstable.path)
    return None


def _is_safe(path: str) -> bool:
    """True if the path stays inside the shard: garbage collection deletes such folders."""
    return 0 < len(path) <= 255 and path.isprintable() and not {"/", "\\"} & set(path) and path not in _RESERVED_PATHS


def _fields_fault(manifest: Manifest) -> str | None:
    seen = set()
    for key, value in manifest.fields:
        if key in seen:
            return f"shard field {key[:80]!r} is duplicated"
        seen.add(key)
        try:
            key.encode()
            if key in (CLAIM_ID, OWNER, WRITE_ID) and not value.decode():
                return f"shard field {key!r} is empty"
        except UnicodeError:
            return f"shard field {key[:80]!r} is not UTF-8 text"
    return None


_ShardManifest = message_classes(
    {
        "UUID": "uuid=1:bytes",
        "ShardFieldEntry": "field_id=1:str value=2:bytes",
        "SsTable": "generation=1:u64 path=2:str in_memory_bytes=3:u64? physical_rows=4:u64? primary_key_bytes=5:u64?",
        "ShardManifest": "version=1:u64 writer_epoch=2:u64 replay_after_wal_entry_position=3:u64"
        " wal_entry_position_last_seen=4:u64 current_generation=6:u64 sstables=8:SsTable* shard_spec_id=10:u32"
        " shard_id=11:UUID shard_field_entries=14:ShardFieldEntry* status=15:i32",
    }
)["ShardManifest"]
