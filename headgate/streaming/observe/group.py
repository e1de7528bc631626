"""A stream's offsets as a Kafka consumer group, for lag tools.

Promises:
1. Never ahead of the table: only committed offsets are written.
2. Off the hot path: `update` only stores and returns; a separate thread talks to Kafka.
3. An unreachable or refusing broker never stops the stream: the newest offsets are retried. The log says once that it
   failed, and once that it works again.
4. No thread and no connection before the first `update`.

headgate never reads these offsets back. A fenced driver may write its last offsets late, after its successor wrote
newer ones; the successor's next batch corrects that.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from headgate.connectors.kafka.options import ConsumerConfig
from headgate.errors import HeadgateError
from headgate.streaming.observe.follower import Follower

_log = structlog.get_logger("headgate.streaming")


class KafkaProgress(Follower[Mapping[tuple[str, int], int]]):
    """The consumer group's offsets of one stream: per topic and partition the start of the next batch, from the last
    commit record.
    """

    def __init__(self, config: ConsumerConfig, group: str, stream: str, query: str | None = None) -> None:
        facts = {"stream": stream, "query": query, "group": group}
        super().__init__("kafka-progress", self._commit, self._log_try, facts)
        self._config = config
        self._group = group

    def _commit(self, ends: Mapping[tuple[str, int], int]) -> None:
        # Loaded here: a process that only plans or pickles the sink needs no client.
        from headgate.connectors.kafka.groups import commit_group

        commit_group(self._config, self._group, ends)

    def _log_try(self, failed: Exception | None, first: bool) -> None:
        if failed is None and self.is_failing:
            _log.info("writing the consumer group's offsets to Kafka works again")
        elif failed is not None and first:
            _log.warning("writing the consumer group's offsets to Kafka failed; it is retried", error=short(failed))


def short(error: Exception | None) -> str:
    """A short text of an error; foreign error texts may contain credentials, so only their class is shown."""
    return str(error) if isinstance(error, HeadgateError) else type(error).__name__
