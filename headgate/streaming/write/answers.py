"""Results of tasks, combined into the parts of a commit record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from headgate.checkpoints.log.dead_letters import dead_letter_name
from headgate.checkpoints.log.records import ShardPart

Parts = dict[str, ShardPart]
"""Parts by the name of the shard, or of its dead-letter log."""


def shard_parts(
    answers: Iterable[Mapping[str, Any]], shards: Mapping[str, UUID], dead_letters: Mapping[str, UUID]
) -> tuple[Parts, Parts]:
    """The parts of shards and of dead-letter logs: everything that the tasks wrote to each. See `Attempt.finish`."""
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
