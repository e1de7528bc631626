"""A rewind as plain values, for the commands that tell of one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headgate.checkpoints.log.records import OffsetMove, RewindRecord


def rewind_value(record: RewindRecord) -> dict[str, Any]:
    """The record, as it is in the log."""
    return {
        "stream": record.stream,
        "record": record.sequence,
        "rewound_at": record.rewound_at,
        "by": record.by,
        "reason": record.reason,
        "offsets_again": sum(one.again for one in record.offsets),
        "offsets_skipped": sum(one.skipped for one in record.offsets),
        "offsets": moves_value(record.offsets),
    }


def moves_value(moves: Iterable[OffsetMove]) -> list[dict[str, Any]]:
    """Per partition where it stood and goes on, and the ranges that come again or are left out."""
    return [
        {
            "topic": one.topic,
            "partition": one.partition,
            "before": one.before,
            "after": one.after,
            "again": f"[{one.after}, {one.before})" if one.again else None,
            "skipped": f"[{one.before}, {one.after})" if one.skipped else None,
        }
        for one in moves
    ]
