"""Which tables a console shows: those that were named, and those that lie in the folders that were named."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headgate.connectors.objects import ObjectStore, redact
from headgate.errors import HeadgateError
from headgate.shards.home.record import record_ids

MOST_TABLES = 1_000
"""Of one folder. A person finds nothing among more."""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,80}")


@dataclass(frozen=True)
class TablePlace:
    """One table by its place; options may hold credentials."""

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def shown(self) -> str:
        """Without credentials."""
        return redact(self.uri)

    @property
    def name(self) -> str:
        """The last part of its place."""
        return self.shown.rstrip("/").rpartition("/")[2] or self.shown


def tables_at(place: TablePlace, store: ObjectStore) -> tuple[TablePlace, ...]:
    """The table in its store, or the tables in the folder: those with a folder of headgate's records, by name.

    One LIST, and where it is a folder one more for itself and one for each folder in it. Raises StoreError.
    """
    if record_ids(store):
        return (place,)
    below = sorted(name for name in store.list_folders("") if not name.startswith((".", "_")))[:MOST_TABLES]
    found = [name for name in below if _is_table(store, name)]
    return tuple(TablePlace(f"{place.uri.rstrip('/')}/{name}", place.options) for name in found)


def keys_of(places: Iterable[TablePlace], known: Mapping[str, str]) -> dict[str, str]:
    """A short name for each place, as it stands in addresses; those that are known stay."""
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
