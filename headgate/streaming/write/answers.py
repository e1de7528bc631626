"""What tasks answer, as a commit record lists it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from headgate.checkpoints.log.dead_letters import dead_letter_name
from headgate.checkpoints.log.records import ShardPart

Parts = dict[str, ShardPart]
"""By the name of a shard, or of its dead-letter log."""


def shard_parts(
    answers: Iterable[Mapping[str, Any]], shards: Mapping[str, UUID], dead_letters: Mapping[str, UUID]
) -> tuple[Parts, Parts]:
    """Shards, and dead-letter logs, with all that was written to each by position; see `Attempt.finish`."""
    by_log: dict[tuple[str, bool], list[Mapping[str, Any]]] = {}
    for answer in answers:
        by_log.setdefault((answer["shard"], answer["dead"]), []).append(answer)
    found: tuple[Parts, Parts] = {}, {}
    for (shard, dead), several in by_log.items():
        found[dead][dead_letter_name(shard) if dead else shard] = ShardPart(
            shard_id=(dead_letters if dead else shards)[shard],
            attempt_id=several[0]["attempt"],
            positions=tuple(sorted(position for one in several for position in one["positions"])),
            rows=sum(one["rows"] for one in several),
            nbytes=sum(one["nbytes"] for one in several),
        )
    return found
