"""What a version of the stand-in's datasets says, and which changes stand beside which."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa
from lance.schema import LanceSchema

from headgate.connectors.lance.fields import numbered_schema


class Conflict(OSError):
    """Somebody else's change came in between."""


@dataclass(frozen=True)
class DataFile:
    """Where rows are. `base_id`: in which other dataset, by its URI."""

    path: str
    fields: tuple[int, ...]
    base_id: str | None = None


@dataclass(frozen=True)
class FragmentMetadata:
    """Rows of one or more files; `deleted` are places of rows that are gone."""

    id: int
    files: tuple[DataFile, ...]
    physical_rows: int
    deleted: tuple[int, ...] = ()
    deletion_file: None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, text: str) -> FragmentMetadata:
        return fragment_of(json.loads(text))


def fragment_of(found: Mapping[str, Any]) -> FragmentMetadata:
    files = tuple(DataFile(one["path"], tuple(one["fields"]), one["base_id"]) for one in found["files"])
    return FragmentMetadata(found["id"], files, found["physical_rows"], tuple(found["deleted"]))


@dataclass(frozen=True)
class Fragment:
    """As a dataset shows it."""

    metadata: FragmentMetadata

    @property
    def fragment_id(self) -> int:
        return self.metadata.id

    @property
    def physical_rows(self) -> int:
        return self.metadata.physical_rows

    @property
    def num_deletions(self) -> int:
        return len(self.metadata.deleted)


@dataclass(frozen=True)
class Change:
    """What made a version, as far as conflicts ask."""

    kind: str
    """config, merge, append, upsert, delete, add, project, rewrite or index."""
    keys: tuple[str, ...] = ()
    """Of the configuration."""
    rows: tuple[str, ...] = ()
    """Fragment and place of those that were replaced or deleted."""
    fragments: tuple[int, ...] = ()
    """That a rewrite replaces."""
    marks: Mapping[str, int] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def transaction_properties(self) -> Mapping[str, str]:
        return self.properties


_CONFLICTS: Mapping[str, frozenset[str]] = {
    "config": frozenset(),
    "index": frozenset({"index"}),
    "merge": frozenset({"merge", "append", "upsert", "delete", "add", "project", "rewrite"}),
    "append": frozenset({"merge", "add"}),
    "upsert": frozenset({"merge", "append", "delete", "add", "rewrite"}),
    "delete": frozenset({"merge", "add", "rewrite"}),
    "add": frozenset({"merge", "append", "upsert", "delete", "add", "project"}),
    "project": frozenset({"merge", "add", "project"}),
    "rewrite": frozenset({"merge"}),
}
"""Per change of ours the others that it never stands beside. What depends on keys, rows and marks is in `conflicts`."""


def conflicts(mine: Change, other: Change) -> bool:
    """Whether a change that was made from a version before the other one is refused."""
    if other.kind in _CONFLICTS[mine.kind] or set(mine.keys) & set(other.keys) or set(mine.rows) & set(other.rows):
        return True
    if mine.kind == "rewrite":
        touched = {int(row.partition(":")[0]) for row in other.rows} | set(other.fragments)
        return bool(touched & set(mine.fragments))
    return any(mark <= other.marks.get(shard, -1) for shard, mark in mine.marks.items())


@dataclass(frozen=True)
class Version:
    """One version of a dataset, whole."""

    schema: tuple[str, ...]
    """Lance's own parts of it, as hexadecimal text."""
    change: Change
    config: Mapping[str, str] = field(default_factory=dict)
    mem_wal: Mapping[str, Any] | None = None
    marks: Mapping[str, int] = field(default_factory=dict)
    fragments: tuple[FragmentMetadata, ...] = ()
    highest: int = -1
    """Of the fragments that ever were."""
    rows: Mapping[str, Sequence[Any]] | None = None
    """Of an SSTable: its columns, by field id."""

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@lru_cache(20_000)
def decode(data: bytes) -> Version:
    """A version from its bytes."""
    found = json.loads(data)
    change = found["change"]
    return Version(
        tuple(found["schema"]),
        Change(**{**change, "keys": tuple(change["keys"]), "rows": tuple(change["rows"])}),
        found["config"],
        found["mem_wal"],
        found["marks"],
        tuple(map(fragment_of, found["fragments"])),
        found["highest"],
        found["rows"],
    )


@lru_cache(1_000)
def parts_from(schema: pa.Schema) -> tuple[str, ...]:
    return parts_of(LanceSchema.from_pyarrow(schema))


def parts_of(schema: Any) -> tuple[str, ...]:
    metadata, *fields = schema.__reduce__()[1]
    return (metadata or "{}", *(one.hex() for one in fields))


@lru_cache(1_000)
def schema_of(parts: tuple[str, ...]) -> tuple[Any, pa.Schema, tuple[int, ...]]:
    """Lance's, pyarrow's, and the field ids."""
    own = LanceSchema._from_protos(parts[0], *map(bytes.fromhex, parts[1:]))
    return own, own.to_pyarrow(), tuple(one.id() for one in own.fields())


def renumbered(column: pa.Field, number: int) -> tuple[str, ...]:

    return parts_of(numbered_schema(pa.schema([column]), [number]))[1:]


def renamed(parts: tuple[str, ...], names: Mapping[str, str]) -> tuple[str, ...]:
    _, schema, ids = schema_of(parts)
    return parts_of(numbered_schema(pa.schema([one.with_name(names.get(one.name, one.name)) for one in schema]), ids))


def values_of(rows: pa.Table, ids: Sequence[int]) -> dict[str, list[Any]]:
    return {str(number): column.to_pylist() for number, column in zip(ids, rows.columns, strict=True)}
