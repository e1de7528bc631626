"""Parsed Avro schemas, which say what a value's bytes mean. Pure; knows nothing of columns.

Supports the specification's types, the logical types that a table can hold, names and namespaces, and recursive types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from headgate.errors import InvalidInput

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_LOGICAL = {
    "int": {"date", "time-millis"},
    "long": {
        "time-micros",
        "timestamp-millis",
        "timestamp-micros",
        "timestamp-nanos",
        "local-timestamp-millis",
        "local-timestamp-micros",
        "local-timestamp-nanos",
    },
    "bytes": {"decimal"},
    "fixed": {"decimal"},
    "string": {"uuid"},
}


@dataclass(frozen=True)
class Primitive:
    """null, boolean, int, long, float, double, bytes or string."""

    kind: str
    logical: str | None = None
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True)
class Fixed:
    """A fixed number of bytes."""

    size: int
    logical: str | None = None
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True)
class Enum:
    """One of these symbols."""

    symbols: tuple[str, ...]


@dataclass(frozen=True)
class Items:
    """An array."""

    item: Node


@dataclass(frozen=True)
class Pairs:
    """A map with string keys."""

    value: Node


@dataclass(frozen=True)
class Union:
    """One of these types."""

    branches: tuple[Node, ...]


@dataclass(frozen=True)
class Record:
    """Fields in order. They are set after the record's name is known, because a record may contain itself."""

    name: str
    fields: list[tuple[str, Node]] = field(default_factory=list, compare=False, repr=False)


Node: TypeAlias = Primitive | Fixed | Enum | Items | Pairs | Union | Record


def parse(schemas: Sequence[str]) -> Node:
    """Parse the last schema; the earlier ones are those that it refers to. Raises InvalidInput."""
    names: dict[str, Node] = {}
    found: Node | None = None
    for text in schemas:
        try:
            found = _node(json.loads(text), "", names)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidInput(f"Invalid Avro schema: {type(error).__name__} {error!s:.60}.") from error
    if found is None:
        raise InvalidInput("The Avro schema is missing.")
    return found


def _node(definition: Any, space: str, names: dict[str, Node]) -> Node:
    if isinstance(definition, list):
        return Union(tuple(_node(one, space, names) for one in definition))
    if isinstance(definition, str):
        if definition in PRIMITIVES:
            return Primitive(definition)
        known = names.get(_full(definition, space)) or names.get(definition)
        if known is None:
            raise ValueError(f"type {definition!r:.40}")
        return known
    kind = definition["type"]
    if isinstance(kind, (list, dict)):
        return _node(kind, space, names)
    if kind in PRIMITIVES:
        return Primitive(kind, *_logical(kind, definition))
    if kind == "array":
        return Items(_node(definition["items"], space, names))
    if kind == "map":
        return Pairs(_node(definition["values"], space, names))
    if kind not in ("record", "error", "enum", "fixed"):
        return _node(kind, space, names)
    full = _full(definition["name"], definition.get("namespace", space))
    space = full.rpartition(".")[0]
    if kind == "enum":
        names[full] = Enum(tuple(map(str, definition["symbols"])))
    elif kind == "fixed":
        names[full] = Fixed(int(definition["size"]), *_logical(kind, definition))
    else:
        record = Record(full)
        names[full] = record
        record.fields.extend((str(one["name"]), _node(one["type"], space, names)) for one in definition["fields"])
    return names[full]


def _full(name: str, space: str | None) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _logical(kind: str, definition: Mapping[str, Any]) -> tuple[str | None, int, int]:
    """The logical type; None if it is unknown or not allowed here, as the specification requires."""
    logical = definition.get("logicalType")
    if logical not in _LOGICAL.get(kind, ()):
        return None, 0, 0
    return str(logical), int(definition.get("precision", 0)), int(definition.get("scale", 0))
