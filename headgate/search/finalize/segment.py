"""Values for segments of a full-text index: folder, parts, the result of a build, the description in a marker.

A segment is one folder below `_indices/`. Builders write parts to `staging/part_<id>_*`. A finalized segment has
`part_0_*`, `part_1_*` … and the marker `metadata.lance`, which native Lance reads first. headgate's marker also has, in
its own key, everything that a commit needs to know about the segment.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from headgate.connectors.objects import ObjectStore
from headgate.connectors.objects.folder import FolderStore
from headgate.errors import Corrupt, InvalidInput

MARKER = "metadata.lance"
STAGING = "staging/"
SUFFIXES = ("docs", "invert", "tokens")
"""The files of one part, besides its staged metadata."""

OURS = "headgate.segment"
"""headgate's key in the marker, which native Lance ignores."""

_PART_FILE = re.compile(r"part_(\d+)_(docs|invert|tokens|metadata)\.lance")
_EMPTY_METADATA = re.compile(r"part_empty_\d+_metadata\.lance")
_NOT_SETTINGS = re.compile(r"partitions|build_.*|headgate\..*")
"""Keys that differ between parts or builds, and do not affect how rows were indexed."""


@dataclass(frozen=True)
class IndexFolder:
    """The folder of one segment."""

    store: ObjectStore
    """The table's store."""
    index_id: uuid.UUID

    @cached_property
    def objects(self) -> ObjectStore:
        """The folder as a store of its own."""
        return FolderStore(self.store, f"_indices/{self.index_id}")

    def where(self) -> dict[str, Any]:
        """Table and index, for errors."""
        return {"table": self.store.uri, "index": str(self.index_id)}

    def sizes(self) -> dict[str, int]:
        """Every object and its size, by one LIST."""
        return {info.key: info.size for info in self.objects.list("")}


@dataclass(frozen=True, slots=True)
class Part:
    """One staged part: its id, the sizes of its files in the order of SUFFIXES, and its number of documents."""

    id: int
    sizes: tuple[int, int, int]
    documents: int

    def staged(self) -> dict[str, int]:
        """Its data files in staging, with their sizes."""
        return {staged_name(self.id, suffix): size for suffix, size in zip(SUFFIXES, self.sizes, strict=True)}


@dataclass(frozen=True, slots=True)
class Facts:
    """What a commit needs besides a segment's files, as native returned it."""

    fields: tuple[int, ...]
    dataset_version: int
    index_version: int
    details: tuple[str, bytes]
    """The protobuf message by which native compares the segments of one index."""


@dataclass(frozen=True)
class Built:
    """What a build wrote: staging is checked against this expected manifest before it is finalized."""

    fragments: tuple[int, ...]
    parts: tuple[Part, ...]
    """Ordered by id. Empty if no row has a word."""
    settings: Mapping[str, str]
    """Parameters and format, the same in every part."""
    facts: Facts
    empty: tuple[str, ...] = ()
    """Staged metadata of builders that had no document."""

    def staged(self) -> dict[str, int | None]:
        """Every staged object, with its size if known in advance."""
        known: dict[str, int | None] = {name: None for name in self.empty}
        for part in self.parts:
            known |= {**part.staged(), staged_name(part.id, "metadata"): None}
        return known

    def final(self) -> dict[str, int]:
        """The files of the finalized segment, without the marker. Part ids in ascending order become 0, 1, 2 …"""
        return {
            final_name(new, suffix): size
            for new, part in enumerate(self.parts)
            for suffix, size in zip(SUFFIXES, part.sizes, strict=True)
        }

    def copies(self) -> list[tuple[str, str]]:
        """The staged and the final name of every file."""
        return [
            (staged_name(part.id, suffix), final_name(new, suffix))
            for new, part in enumerate(self.parts)
            for suffix in SUFFIXES
        ]

    @property
    def documents(self) -> int:
        """Rows with text."""
        return sum(part.documents for part in self.parts)


@dataclass(frozen=True)
class Segment:
    """A finished segment: all that a commit needs, and its files with their sizes."""

    index_id: uuid.UUID
    fragments: tuple[int, ...]
    files: Mapping[str, int]
    """Without the marker, which cannot contain its own size."""
    marker_size: int
    """0 for a vector index, which has no marker: native writes its files completely."""
    documents: int
    """Rows with text, or with a vector."""
    settings: Mapping[str, str]
    facts: Facts

    @property
    def part_count(self) -> int:
        """Number of parts."""
        return len(self.files) // len(SUFFIXES)

    @property
    def listed(self) -> dict[str, int]:
        """The files that a commit lists, without staging and strays."""
        return {**self.files, MARKER: self.marker_size} if self.marker_size else dict(self.files)

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(self.listed.values())

    def to_json(self) -> dict[str, Any]:
        """The form in which a task returns it to the driver."""
        return {
            "index_id": str(self.index_id),
            "marker_size": self.marker_size,
            "settings": dict(self.settings),
            **described(self),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Segment:
        """The segment from `to_json`."""
        return segment_from(uuid.UUID(data["index_id"]), data, data["settings"], data["marker_size"])


def together(built: Iterable[Built]) -> Built:
    """The expected manifest of a folder that several builders staged into.

    Raises InvalidInput if two of them wrote the same part or fragment, or used different parameters.
    """
    first, *rest = built
    parts, fragments, empty = list(first.parts), list(first.fragments), list(first.empty)
    for one in rest:
        if name := differing(first.settings, one.settings):
            raise InvalidInput(f"Parts of one index were built with different {name}.")
        if first.facts.details != one.facts.details or first.facts.fields != one.facts.fields:
            raise InvalidInput("Parts of one index were built with different details, or of different columns.")
        parts += one.parts
        fragments += one.fragments
        empty += one.empty
    for what, ids in (("part", [part.id for part in parts]), ("fragment", fragments)):
        if len(set(ids)) != len(ids):
            twice = next(one for one in ids if ids.count(one) > 1)
            raise InvalidInput(f"Two builders wrote {what} {twice} of one index.")
    ordered = tuple(sorted(parts, key=lambda part: part.id))
    return Built(tuple(sorted(fragments)), ordered, first.settings, first.facts, tuple(empty))


def settings_of(metadata: Mapping[str, str]) -> dict[str, str]:
    """The settings in a part's or a marker's metadata that affect how rows were indexed."""
    return {key: value for key, value in metadata.items() if not _NOT_SETTINGS.fullmatch(key)}


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    """The first difference between two settings, None if they are equivalent. Parameters are compared one by one."""
    for key in sorted({*one, *other}):
        left, right = one.get(key), other.get(key)
        if left == right:
            continue
        if key != "params":
            return f"{key} ({left} and {right})"
        mine, theirs = _parameters(left), _parameters(right)
        for name in sorted({*mine, *theirs}):
            if mine.get(name) != theirs.get(name):
                return f"{name} ({mine.get(name)!r} and {theirs.get(name)!r})"
    return None


def partition_ids(metadata: Mapping[str, str]) -> list[int]:
    """The parts that a part's or a marker's metadata list. Raises Corrupt."""
    try:
        ids = json.loads(metadata["partitions"])
    except (KeyError, ValueError, RecursionError) as error:
        raise Corrupt("The metadata of an index does not list its parts.") from error
    if not isinstance(ids, list) or any(type(one) is not int or one < 0 for one in ids):
        raise Corrupt("The metadata of an index does not list its parts.")
    return ids


def staged_name(part: int, suffix: str) -> str:
    """The name of a part's file in staging."""
    return f"{STAGING}part_{part}_{suffix}.lance"


def final_name(part: int, suffix: str) -> str:
    """The name of a finalized part's file."""
    return f"part_{part}_{suffix}.lance"


def is_staged_part(name: str) -> bool:
    """True if native would also treat this object as a staged part."""
    inside = name.removeprefix(STAGING)
    return name.startswith(STAGING) and bool(_PART_FILE.fullmatch(inside) or _EMPTY_METADATA.fullmatch(inside))


def is_empty_metadata(name: str) -> bool:
    """True for the staged metadata of a builder without documents."""
    return bool(_EMPTY_METADATA.fullmatch(name.removeprefix(STAGING)))


def is_stray(name: str, kept: Iterable[str]) -> bool:
    """True if an object in a finalized segment's folder is a leftover: staging, another part, a temporary file."""
    if name in kept or name == MARKER:
        return False
    return name.startswith(STAGING) or bool(_PART_FILE.fullmatch(name)) or ".tmp" in name


def described(segment: Segment | Built) -> dict[str, Any]:
    """The content of headgate's key in the marker."""
    facts = segment.facts
    return {
        "fragments": list(segment.fragments),
        "files": dict(segment.final() if isinstance(segment, Built) else segment.files),
        "documents": segment.documents,
        "fields": list(facts.fields),
        "dataset_version": facts.dataset_version,
        "index_version": facts.index_version,
        "details": [facts.details[0], base64.b64encode(facts.details[1]).decode()],
    }


def segment_from(
    index_id: uuid.UUID, data: Mapping[str, Any], settings: Mapping[str, str], marker_size: int
) -> Segment:
    """The segment from the fields that `described` returned. Raises Corrupt."""
    try:
        facts = Facts(
            fields=tuple(data["fields"]),
            dataset_version=int(data["dataset_version"]),
            index_version=int(data["index_version"]),
            details=(str(data["details"][0]), base64.b64decode(data["details"][1], validate=True)),
        )
        files = {str(name): int(size) for name, size in data["files"].items()}
        fragments = tuple(int(fragment) for fragment in data["fragments"])
        return Segment(index_id, fragments, files, marker_size, int(data["documents"]), dict(settings), facts)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise Corrupt("The marker of an index segment does not match the segment.", index=str(index_id)) from error


def _parameters(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {"params": text}
    return found if isinstance(found, dict) else {"params": text}
