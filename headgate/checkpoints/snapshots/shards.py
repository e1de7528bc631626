"""Names of shards, as the commit logs of streams have them: the only source for those of partitions."""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.dead_letters import PREFIX
from headgate.checkpoints.log.names import list_streams
from headgate.checkpoints.log.state import LogState
from headgate.errors import HeadgateError
from headgate.shards.shard import TableHome


def shard_names(state: LogState) -> dict[UUID, str]:
    """Shard names by id, from a stream's log."""
    opened = state.head.opened
    known = {} if opened is None else {claim.shard_id: name for name, claim in opened.shards.items()}
    return known | {shard_id: one.shard for shard_id, one in state.shards.items() if not one.shard.startswith(PREFIX)}


def names_in_logs(home: TableHome) -> dict[UUID, str]:
    """Shard names by id, from the logs of all streams. An unreadable log is skipped."""
    known: dict[UUID, str] = {}
    with suppress(HeadgateError):
        for stream in list_streams(home.records):
            with suppress(HeadgateError):
                known |= shard_names(CommitLog(home.records, stream, home.uri).read())
    return known
