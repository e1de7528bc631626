"""The marker of a finalized segment, `metadata.lance`: reads, checks and makes it.

Native Lance reads the same object first. headgate's marker has one more key, which describes the segment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from headgate.connectors.lance.files import end_of, small_file
from headgate.errors import Corrupt, NotFound
from headgate.records import fields_of, sealed
from headgate.search.finalize.segment import (
    MARKER,
    OURS,
    SUFFIXES,
    Built,
    IndexFolder,
    Segment,
    described,
    differing,
    final_name,
    partition_ids,
    segment_from,
    settings_of,
)

_WHAT = "The marker of an index segment"

NO_DELETED_FRAGMENTS = bytes.fromhex("3a30000000000000")
"""An empty roaring bitmap, as native writes it."""


@dataclass(frozen=True)
class Marker:
    """A readable marker."""

    parts: tuple[int, ...]
    settings: Mapping[str, str]
    segment: Segment | None
    """None if native wrote the marker."""


def read_marker(folder: IndexFolder) -> Marker | None:
    """The marker of a segment; None if it is missing or invalid."""
    try:
        data = folder.objects.get(MARKER)
        metadata = end_of(data).metadata
        parts, settings = tuple(partition_ids(metadata)), settings_of(metadata)
        if OURS not in metadata:
            return Marker(parts, settings, None)
        segment = segment_from(folder.index_id, fields_of(metadata[OURS], _WHAT, sealed=False), settings, len(data))
    except (NotFound, Corrupt):
        return None
    names = {final_name(part, suffix) for part in parts for suffix in SUFFIXES}
    return Marker(parts, settings, segment) if names == set(segment.files) else None


def read_segment(folder: IndexFolder) -> Segment | None:
    """The segment that headgate's marker describes, if all its files exist with their sizes, else None.

    Also None if native wrote the marker, which then does not describe the segment.
    """
    marker = read_marker(folder)
    if marker is None or marker.segment is None:
        return None
    return marker.segment if not missing(marker.segment.files, folder.sizes()) else None


def is_whole(folder: IndexFolder, segment: Segment) -> bool:
    """True if a finished segment is complete: its marker, if it has one, is valid, and every file has its size."""
    if segment.marker_size:
        marker = read_marker(folder)
        if marker is None or differing(marker.settings, segment.settings):
            return False
    return not missing(segment.listed, folder.sizes())


def marker_bytes(built: Built) -> bytes:
    """The marker of a segment: native's keys, and headgate's, which describes the segment."""
    metadata = {
        **built.settings,
        "partitions": json.dumps(list(range(len(built.parts)))),
        OURS: json.dumps(sealed(described(built))),
    }
    schema = pa.schema([pa.field("deleted_fragments", pa.binary(), nullable=False)])
    return small_file(pa.record_batch([pa.array([NO_DELETED_FRAGMENTS], pa.binary())], schema=schema), metadata)


def missing(files: Mapping[str, int], sizes: Mapping[str, int]) -> str | None:
    """The first file that is missing or has another size; None if there is none."""
    return next((name for name in sorted(files) if sizes.get(name) != files[name]), None)
