"""Finds the tables that a console shows: the given ones, and those in the given folders."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headgate.connectors.objects import ObjectStore, redact
from headgate.errors import HeadgateError
from headgate.shards.home.record import record_ids

MOST_TABLES = 1_000
"""Maximum tables of one folder: a person cannot oversee more."""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,80}")


@dataclass(frozen=True)
class TablePlace:
    """The URI of a table or folder, and storage options, which may contain credentials."""

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def shown(self) -> str:
        """The URI without credentials."""
        return redact(self.uri)

    @property
    def name(self) -> str:
        """The last part of the URI."""
        return self.shown.rstrip("/").rpartition("/")[2] or self.shown


def tables_at(place: TablePlace, store: ObjectStore) -> tuple[TablePlace, ...]:
    """The place itself if it is a table, else the tables in the folder: those with headgate's records, by name.

    Costs one LIST; for a folder one more, and one for each folder in it. Raises StoreError.
    """
    if record_ids(store):
        return (place,)
    below = sorted(name for name in store.list_folders("") if not name.startswith((".", "_")))[:MOST_TABLES]
    found = [name for name in below if _is_table(store, name)]
    return tuple(TablePlace(f"{place.uri.rstrip('/')}/{name}", place.options) for name in found)


def keys_of(places: Iterable[TablePlace], known: Mapping[str, str]) -> dict[str, str]:
    """A short unique name for each place, used in addresses; known names do not change."""
    keys = {uri: key for uri, key in known.items()}
    for place in places:
        if place.uri not in keys:
            name = place.name if _PLAIN.fullmatch(place.name) else "table"
            taken = set(keys.values())
            keys[place.uri] = next(one for one in _numbered(name) if one not in taken)
    return keys


def _numbered(name: str) -> Iterable[str]:
    yield name
    number = 2
    while True:
        yield f"{name}-{number}"
        number += 1


def _is_table(store: ObjectStore, name: str) -> bool:
    try:
        return next(iter(store.list_folders(f"{name}/_headgate/")), None) is not None
    except HeadgateError:
        return False
