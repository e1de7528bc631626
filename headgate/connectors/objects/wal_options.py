"""Storage options of a table whose WALs lie in a store with options of its own: those are named `wal.…`.

One mapping travels everywhere, so that whoever opens a table can open its WALs. Promise: what is named `wal.…` never
reaches the table's own store, and where there is any, nothing else reaches the WALs' store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

WAL = "wal."


def own_options(options: Mapping[str, T] | None) -> dict[str, T]:
    """Of the table's own store."""
    return {name: value for name, value in (options or {}).items() if not _is_wal(name)}


def wal_options(options: Mapping[str, T] | None) -> dict[str, T]:
    """Of the WALs' store: its own, else the table's."""
    given = {name[len(WAL) :]: value for name, value in (options or {}).items() if _is_wal(name)}
    return given or own_options(options)


def joined_options(options: Mapping[str, T] | None, wal: Mapping[str, T] | None) -> dict[str, T] | None:
    """Both in one mapping; the WALs' given here come in place of those that are there. None where there are none."""
    if not wal:
        return dict(options) if options else None
    return {**own_options(options), **{f"{WAL}{name}": value for name, value in wal.items()}}


def _is_wal(name: str) -> bool:
    return name.lower().startswith(WAL)
