"""Storage options of a table whose WALs are in another store: that store's options are named `wal.…`.

One mapping holds both, so that every process that opens a table can open its WALs. Promise: options named `wal.…` never
reach the table's own store, and if there are any, no other option reaches the WALs' store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

WAL = "wal."


def own_options(options: Mapping[str, T] | None) -> dict[str, T]:
    """The options of the table's own store."""
    return {name: value for name, value in (options or {}).items() if not _is_wal(name)}


def wal_options(options: Mapping[str, T] | None) -> dict[str, T]:
    """The options of the WALs' store: its own if there are any, else the table's."""
    given = {name[len(WAL) :]: value for name, value in (options or {}).items() if _is_wal(name)}
    return given or own_options(options)


def joined_options(options: Mapping[str, T] | None, wal: Mapping[str, T] | None) -> dict[str, T] | None:
    """Both in one mapping; `wal` replaces the `wal.…` options that are there. None if there are no options."""
    if not wal:
        return dict(options) if options else None
    return {**own_options(options), **{f"{WAL}{name}": value for name, value in wal.items()}}


def _is_wal(name: str) -> bool:
    return name.lower().startswith(WAL)
