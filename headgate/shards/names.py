"""Names of a shard's objects, as native Lance writes them. Pure; relative to the table's root.

A position or version is named by its 64 bits in reverse, so that neighbours
spread over an object store's key space. Only the exact form counts when names
are read back: a temporary file left beside an entry is a stray, never a position.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from uuid import UUID

from headgate.errors import InvalidInput

NUMBERS = 2**64
"""Positions and versions are unsigned 64-bit numbers."""

_BITS = re.compile(r"[01]{64}")
_SSTABLE = re.compile(r"[0-9A-Za-z]+(?:_epoch_(?P<epoch>[0-9]{1,20}))?_gen_(?P<generation>[0-9]{1,20})")


@dataclass(frozen=True, slots=True)
class SsTableName:
    """Content of an SSTable folder's name: the flush that made it (R20)."""

    generation: int
    epoch: int | None = None
    """Epoch of the claim; None in native's names and those of earlier releases."""


def rev64(n: int) -> str:
    """The 64 bits of `n`, lowest first. Raises InvalidInput unless 0 ≤ n < 2**64."""
    if not 0 <= n < NUMBERS:
        raise InvalidInput(f"The number {n} must fit into 64 bits.")
    return format(n, "064b")[::-1]


def parse_uuid(name: str) -> UUID | None:
    """The id in its canonical form; None if the name is not an id."""
    try:
        parsed = UUID(name)
    except ValueError:
        return None
    return parsed if str(parsed) == name else None


def shard_folder(shard_id: UUID) -> str:
    """`_mem_wal/<uuid>`. Folder names have no trailing '/'; a store's `list` needs one."""
    return f"_mem_wal/{shard_id}"


def wal_folder(shard_id: UUID) -> str:
    """Folder of the entries, and of nothing else: native would take temporary files for positions."""
    return f"{shard_folder(shard_id)}/wal"


def manifest_folder(shard_id: UUID) -> str:
    """Folder of the manifest versions and the hint."""
    return f"{shard_folder(shard_id)}/manifest"


def wal_key(shard_id: UUID, position: int) -> str:
    """Key of the entry at `position`."""
    return f"{wal_folder(shard_id)}/{rev64(position)}.arrow"


def manifest_key(shard_id: UUID, version: int) -> str:
    """Key of manifest `version`."""
    return f"{manifest_folder(shard_id)}/{rev64(version)}.binpb"


def version_hint_key(shard_id: UUID) -> str:
    """Key of the hint from which native searches for the latest manifest. Headgate never reads it for that."""
    return f"{manifest_folder(shard_id)}/version_hint.json"


def new_sstable(generation: int, epoch: int) -> str:
    """An unused folder name for an SSTable. Native takes the name from the manifest as it is."""
    return f"{secrets.token_hex(4)}_epoch_{epoch}_gen_{generation}"


def sstable_name(folder: str) -> SsTableName | None:
    """The parsed folder name: native's `<8 hex>_gen_<n>`, or ours. None if it is not the name of an SSTable."""
    match = _SSTABLE.fullmatch(folder)
    if match is None:
        return None
    epoch = match["epoch"]
    return SsTableName(int(match["generation"]), None if epoch is None else int(epoch))


def wal_position(key: str) -> int | None:
    """Position in a listed key (or bare file name); None for a stray."""
    return _number(key, folder="wal", suffix=".arrow")


def manifest_version(key: str) -> int | None:
    """Version in a listed key (or bare file name); None for a stray."""
    return _number(key, folder="manifest", suffix=".binpb")


def _number(key: str, *, folder: str, suffix: str) -> int | None:
    *above, name = key.split("/")
    if above and above[-1] != folder:
        return None
    bits = name.removesuffix(suffix)
    if bits == name or not _BITS.fullmatch(bits):
        return None
    return int(bits[::-1], 2)
