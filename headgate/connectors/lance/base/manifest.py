"""Reads facts from a base's manifest that pylance does not return: native's compacted marks, the last fragment id, and
the files of a version.

`mem_wal_index_details()` omits the marks, so they are read from the index section of the dataset's manifest file. The
files of a version come from the manifest alone, without pylance, so that a version can be checked that Lance cannot
open.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote
from uuid import UUID

from google.protobuf.message import DecodeError

from headgate.connectors.lance.base.files import walked
from headgate.connectors.lance.protobuf import message_classes
from headgate.connectors.objects import ObjectStore
from headgate.errors import Corrupt, NotFound

_MEM_WAL = "__lance_mem_wal"
_MAX_SECTION = 1 << 30
"""A longer index section means that its length is damaged."""
_FOOTER = struct.Struct("<QHH4s")
"""The end of a manifest file: the manifest's offset, two version numbers of the format, and Lance's magic."""
_MAGIC = b"LANC"
_DELETIONS = ("arrow", "bin")
"""File extensions of deletion files, by type."""


@dataclass(frozen=True)
class VersionFiles:
    """The files of one version of a base on local disk, by absolute path."""

    config: Mapping[str, str]
    rows: Mapping[str, int | None]
    """Data and deletion files, with their size if the manifest has it."""
    indexes: Mapping[str, int | None]
    transaction: str | None
    """The file of the transaction that made this version. Reading rows does not need it."""

    @property
    def files(self) -> Mapping[str, int | None]:
        """All files that readers need."""
        return {**self.rows, **self.indexes}


def faults(files: Mapping[str, int | None], known: Collection[str] = ()) -> Iterator[str]:
    """Describes each file that is missing or shorter than it was written. Does not check the `known` ones."""
    for path, size in files.items():
        if path not in known:
            try:
                found = os.stat(path).st_size
            except FileNotFoundError:
                yield f"{path} is missing"
            else:
                if found < (size or 1):
                    yield f"{path} has {found} bytes" + (f" of {size}" if size else "")


def native_marks(store: ObjectStore, dataset: Any) -> Mapping[UUID, int]:
    """Per shard the highest generation that this version's native marks contain. Reads two ranges of one object.

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
            raise Corrupt("The manifest of the base table is cut off.", store=store.uri, key=key) from error
        if length > _MAX_SECTION:
            raise Corrupt(
                f"The index section of the base table has {length} bytes, which is invalid.", store=store.uri, key=key
            )
        return _marks(bytes(store.get_range(key, position + 4, length)))
    raise NotFound(f"The manifest of version {dataset.version} of the base table is missing.", store=store.uri)


def max_fragment_id(dataset: Any) -> int:
    """The highest id that any fragment ever had; -1 if there was none. Ids are never reused: indexes refer to them."""
    manifest = _parsed(_Manifest, dataset._ds.serialized_manifest())
    there = max((fragment.fragment_id for fragment in dataset.get_fragments()), default=-1)
    return max(there, manifest.max_fragment_id if manifest.HasField("max_fragment_id") else -1)


def manifest_keys(version: int) -> tuple[str, str]:
    """The manifest's two possible keys: Lance's current naming, which counts down, and the older one."""
    return f"_versions/{2**64 - 1 - version:020d}.manifest", f"_versions/{version}.manifest"


def version_files(root: str, manifest: str) -> VersionFiles:
    """The files of a version of the base at `root`, given the path of its manifest.

    Includes a shallow clone's files in its source. Raises Corrupt if the manifest is invalid, FileNotFoundError if it
    does not exist.
    """
    with open(manifest, "rb") as file:
        data = file.read()
    try:
        position, _, _, magic = _FOOTER.unpack(data[-_FOOTER.size :])
        if magic != _MAGIC:
            raise Corrupt("The manifest of a version of the base is cut off.", path=manifest)
        found = _parsed(_Manifest, _section(data, position))
        indexes = _parsed(_IndexSection, _section(data, found.index_section)).indices if _has_indexes(found) else ()
    except struct.error as error:
        what = f"The manifest of a version of the base is cut off: {len(data)} bytes."
        raise Corrupt(what, path=manifest) from error
    bases = {one.id: one for one in found.base_paths}
    change = os.path.join(root, "_transactions", found.transaction_file) if found.transaction_file else None
    return VersionFiles(
        config={one.key: one.value for one in found.config},
        rows=dict(_row_files(root, bases, found)),
        indexes=dict(_index_files(root, bases, indexes)),
        transaction=change,
    )


def _has_indexes(manifest: Any) -> bool:
    return bool(manifest.HasField("index_section"))


def _section(data: bytes, position: int) -> bytes:
    (length,) = struct.unpack_from("<I", data, position)
    if position + 4 + length > len(data):
        raise struct.error("longer than the file")
    return data[position + 4 : position + 4 + length]


def _row_files(root: str, bases: Mapping[int, Any], manifest: Any) -> Iterator[tuple[str, int | None]]:
    for fragment in manifest.fragments:
        for file in fragment.files:
            yield os.path.join(_place(root, bases, file, "data"), file.path), file.size or None
        if fragment.HasField("deletion_file"):
            gone = fragment.deletion_file
            name = f"{fragment.id}-{gone.read_version}-{gone.id}.{_DELETIONS[gone.file_type]}"
            yield os.path.join(_place(root, bases, gone, "_deletions"), name), None


def _index_files(root: str, bases: Mapping[int, Any], indexes: Any) -> Iterator[tuple[str, int | None]]:
    for index in indexes:
        folder = os.path.join(_place(root, bases, index, "_indices"), str(UUID(bytes=index.id.uuid)))
        for file in index.files:
            yield os.path.join(folder, file.path), file.size or None
        if not index.files:  # an older Lance did not list them; Lance's own system indexes have none
            yield from ((path, None) for path in walked(folder))


def _place(root: str, bases: Mapping[int, Any], one: Any, folder: str) -> str:
    """The folder of a kind of file: in the dataset, or in the source of a shallow clone."""
    if not one.HasField("base_id"):
        return os.path.join(root, folder)
    base = bases[one.base_id]
    path = unquote(base.path.removeprefix("file://")) if base.path.startswith("file://") else base.path
    return os.path.join(path, folder) if base.is_dataset_root else path


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
        raise Corrupt("The manifest of the base table is invalid.") from error
    return message


_MESSAGES = message_classes(
    {
        "UUID": "uuid=1:bytes",
        "Any": "value=2:bytes",
        "File": "path=1:str size=6:u64 base_id=7:u32?",
        "DeletionFile": "file_type=1:u32 read_version=2:u64 id=3:u64 base_id=7:u32?",
        "Fragment": "id=1:u64 files=2:File* deletion_file=3:DeletionFile?",
        "Pair": "key=1:str value=2:str",
        "BasePath": "id=1:u32 is_dataset_root=3:u32 path=4:str",
        "Manifest": "fragments=2:Fragment* index_section=6:u64? max_fragment_id=11:u32? transaction_file=12:str "
        "config=16:Pair* base_paths=18:BasePath*",
        "IndexFile": "path=1:str size=2:u64",
        "Index": "id=1:UUID name=3:str details=6:Any base_id=9:u32? files=10:IndexFile*",
        "IndexSection": "indices=1:Index*",
        "Compacted": "shard=1:UUID generation=2:u64",
        "Details": "compacted=9:Compacted*",
    }
)
_Manifest, _IndexSection, _Details = (_MESSAGES[name] for name in ("Manifest", "IndexSection", "Details"))
