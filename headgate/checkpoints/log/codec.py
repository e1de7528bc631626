"""The records and folds of a commit log as bytes: which kinds there are, and the format that each needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate import records
from headgate.checkpoints.log.records import BatchRecord, Fold, LogRecord, OpenRecord, RewindRecord, SchemaRecord
from headgate.errors import Corrupt
from headgate.records import FIRST_FORMAT, FORMAT, REWIND_FORMAT

_WHAT = "A record of the commit log"
_KINDS: Mapping[str, type[LogRecord | Fold]] = {
    one.KIND: one for one in (OpenRecord, BatchRecord, RewindRecord, SchemaRecord, Fold)
}


def encode(record: LogRecord | Fold) -> bytes:
    """JSON with one key per line and compact values."""
    return records.encode(record, format_of(record))


def format_of(*found: LogRecord | Fold) -> int:
    """The lowest format version whose readers understand the records."""
    if any(isinstance(one, SchemaRecord) for one in found):
        return FORMAT
    with_rewinds = any(isinstance(one, RewindRecord) or getattr(one, "rewound", None) for one in found)
    return REWIND_FORMAT if with_rewinds else FIRST_FORMAT


def decode_record(data: bytes | memoryview) -> LogRecord:
    """A record of the log. Raises Corrupt, and InvalidInput for a newer format."""
    return _record(_decode(data))


def decode_fold(data: bytes | memoryview) -> Fold:
    """A fold. Raises Corrupt, and InvalidInput for a newer format."""
    fold = _decode(data)
    if not isinstance(fold, Fold):
        raise Corrupt("Found a record in the place of a fold of the commit log.")
    return fold


def stream_of(data: bytes | memoryview) -> str:
    """The stream that a record or fold belongs to. Raises as the others do."""
    return _decode(data).stream


def record_from(found: Any) -> LogRecord:
    """The record in parsed JSON. Raises Corrupt, and InvalidInput for a newer format."""
    return _record(_understood(records.checked(found, _WHAT)))


def _record(found: LogRecord | Fold) -> LogRecord:
    if isinstance(found, Fold):
        raise Corrupt("Found a fold in the place of a record of the commit log.")
    return found


def _decode(data: bytes | memoryview) -> LogRecord | Fold:
    return _understood(records.fields_of(data, _WHAT))


def _understood(found: Mapping[str, Any]) -> LogRecord | Fold:
    with records.understood(_WHAT):
        return records.build(_KINDS[found["kind"]], found)
