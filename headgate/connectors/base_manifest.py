"""The few facts of a base's manifest that pylance does not show: native's compacted marks and the last fragment id.

`mem_wal_index_details()` leaves the marks out. They stand in the index section of the dataset's manifest file, from
where they are read here.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from google.protobuf.message import DecodeError

from headgate.connectors.messages import message_classes
from headgate.connectors.objects import ObjectStore
from headgate.errors import Corrupt, NotFound

_MEM_WAL = "__lance_mem_wal"
_MAX_SECTION = 1 << 30
"""An index section above 1 GiB is a damaged length."""


def native_marks(store: ObjectStore, dataset: Any) -> Mapping[UUID, int]:
    """Per shard the highest generation that native notes in this version. Reads two ranges of one object.

    `store` has the dataset's directory as its root. Raises NotFound, Corrupt.
    """
    if dataset.mem_wal_index_details() is None:
        return {}
    position = _parsed(_Manifest, dataset._ds.serialized_manifest()).index_section
    for key in manifest_keys(dataset.version):
        try:
            (length,) = struct.unpack("<I", store.get_range(key, position, 4))
        except NotFound:
            continue
        except struct.error as error:
            raise Corrupt("The manifest of the base table is cut short.", store=store.uri, key=key) from error
        if length > _MAX_SECTION:
            raise Corrupt(f"The index section of the base table takes {length} bytes.", store=store.uri, key=key)
        return _marks(bytes(store.get_range(key, position + 4, length)))
    raise NotFound(f"The manifest of version {dataset.version} of the base table is gone.", store=store.uri)


def max_fragment_id(dataset: Any) -> int:
    """The highest id that any fragment ever had; -1 before the first. An id is never used twice: indexes know them."""
    manifest = _parsed(_Manifest, dataset._ds.serialized_manifest())
    there = max((fragment.fragment_id for fragment in dataset.get_fragments()), default=-1)
    return max(there, manifest.max_fragment_id if manifest.HasField("max_fragment_id") else -1)


def manifest_keys(version: int) -> tuple[str, str]:
    """Lance's two namings: today's, which counts down, and the older one."""
    return f"_versions/{2**64 - 1 - version:020d}.manifest", f"_versions/{version}.manifest"


def _marks(section: bytes) -> Mapping[UUID, int]:
    marks: dict[UUID, int] = {}
    for index in _parsed(_IndexSection, section).indices:
        if index.name == _MEM_WAL:
            for done in _parsed(_Details, index.details.value).compacted:
                shard = UUID(bytes=done.shard.uuid)
                marks[shard] = max(marks.get(shard, 0), done.generation)
    return marks


def _parsed(kind: Any, data: bytes) -> Any:
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise Corrupt("The manifest of the base table cannot be read.") from error
    return message


_MESSAGES = message_classes(
    {
        "UUID": "uuid=1:bytes",
        "Any": "value=2:bytes",
        "Manifest": "index_section=6:u64 max_fragment_id=11:u32?",
        "Index": "name=3:str details=6:Any",
        "IndexSection": "indices=1:Index*",
        "Compacted": "shard=1:UUID generation=2:u64",
        "Details": "compacted=9:Compacted*",
    }
)
_Manifest, _IndexSection, _Details = (_MESSAGES[name] for name in ("Manifest", "IndexSection", "Details"))
