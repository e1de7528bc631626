"""Streams of a table by name: the existing ones, and the folder of each.

A name comes from outside and may be any text. Its folder is always exactly one level below ROOT, and two names never
share a folder, except on a file system that ignores case; there the log itself refuses the second name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from headgate import parallel
from headgate.checkpoints.log.codec import stream_of
from headgate.connectors.objects import ObjectInfo, ObjectStore
from headgate.errors import InvalidInput, NotFound

ROOT = "streams/"
"""Below the folder of the table's own records."""
ARCHIVE = "archive.json"
"""In a stream's folder: says that records are archived before they are deleted (see `archive`)."""

BATCH_STREAM = "batch-writes"
"""Stream of the batch writes; no query's stream may have this name."""

_MAX_NAME = 120
"""Longest folder name, in bytes: file systems end at 255, and some encrypt into longer names."""

_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_NUMBERED = re.compile(re.escape(ROOT) + r"[^/]+/(log|folds)/([0-9]{20})\.json")
_CUT_ESCAPE = re.compile("%[0-9A-F]?$")


def list_streams(
    store: ObjectStore,
    known: Mapping[str, str] = MappingProxyType({}),
) -> tuple[str, ...]:
    """The names of all streams that ever opened a log here, sorted. The name is in the records, not in the path:
    it is read there, unless the folder is one of the `known` names'.
    """
    folders = list(store.list_folders(ROOT))
    found = parallel.each("logs", lambda folder: known.get(folder) or _name_in(store, f"{ROOT}{folder}/"), folders)
    return tuple(sorted(name for name in found if name is not None))


def check_stream(store: ObjectStore, stream: str, table: str) -> None:
    """Raises NotFound, with the existing streams, if this stream never opened a log here."""
    if stream not in (known := list_streams(store)):
        raise no_stream(stream, known, table)


def no_stream(stream: str | None, known: Iterable[str], table: str) -> NotFound:
    """The error for a stream that a table does not have, or for a table without streams (None)."""
    if stream is None:
        return NotFound("No stream has written to this table.", table=table, advice="run `headgate ingest` first")
    advice = f"its streams are: {', '.join(known) or 'none yet'}; nothing was written"
    return NotFound(f"Stream {stream!r} not found in the table.", table=table, advice=advice)


def stream_folder(stream: str) -> str:
    """The folder of a stream, without a trailing '/'. Raises InvalidInput for an empty name or bad Unicode."""
    return ROOT + folder_name(stream, "stream")


def record_number(key: str) -> int | None:
    """Sequence of the record with this listed key of a stream's folder; None for any other key."""
    return _number(key, "log")


def fold_number(key: str) -> int | None:
    """Sequence of the fold with this key. Anything but records, folds and ARCHIVE is a stray."""
    return _number(key, "folds")


def by_number(infos: Iterable[ObjectInfo]) -> tuple[dict[int, ObjectInfo], dict[int, ObjectInfo]]:
    """The records and the folds in a listing of a stream's folder, by sequence."""
    listed = list(infos)
    records = {number: info for info in listed if (number := record_number(info.key)) is not None}
    return records, {number: info for info in listed if (number := fold_number(info.key)) is not None}


def folder_name(name: str, what: str) -> str:
    """A name from outside (of a `what`) as one part of a path; two names never share one. Raises InvalidInput."""
    try:
        data = name.encode()
    except UnicodeEncodeError:
        data = b""
    if not data:
        raise InvalidInput(f"Invalid {what} name {name[:80]!r}: it is empty or not valid Unicode.")
    escaped = "".join(chr(byte) if chr(byte) in _PLAIN else f"%{byte:02X}" for byte in data[: _MAX_NAME + 1])
    if len(escaped) > _MAX_NAME:
        # '.' is in no escaped name, so a short name never equals a cut one.
        escaped = f"{_CUT_ESCAPE.sub('', escaped[:80])}.{hashlib.sha256(data).hexdigest()[:32]}"
    return escaped


def _number(key: str, kind: str) -> int | None:
    match = _NUMBERED.fullmatch(key)
    return int(match[2]) if match and match[1] == kind else None


def _name_in(store: ObjectStore, folder: str) -> str | None:
    """The stream's name from any record in the folder. Starts with the newest: it is collected last."""
    keys = store.list_keys(folder)
    for key in sorted(filter(_NUMBERED.fullmatch, keys), reverse=True):
        try:
            return stream_of(store.get(key))
        except NotFound:
            continue
    return None
