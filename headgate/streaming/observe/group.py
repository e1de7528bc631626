"""Where a stream stands, in Kafka as offsets of a consumer group, so that every lag tool sees it.

Promises:
1. Never ahead of the table: only what a commit record says is put there.
2. Off the hot path: `update` notes and returns; a thread of its own talks to Kafka.
3. A broker that is away, or that refuses, never stops the stream: what failed is tried again, and only the newest
   offsets are tried. The log says once that it failed, and once that it works again.
4. No thread and no connection before the first `update`.

The table stays the truth: nothing ever reads these offsets back. A driver that was fenced may put its last offsets
late, after its successor put newer ones; the successor's next batch mends that.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from headgate.connectors.kafka.options import ConsumerConfig
from headgate.errors import HeadgateError
from headgate.streaming.observe.follower import Follower

_log = structlog.get_logger("headgate.streaming")


class KafkaProgress(Follower[Mapping[tuple[str, int], int]]):
    """The offsets of one consumer group, as one stream puts them: per topic and partition, where the next batch
    starts, as the last commit record says.
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
    """The text of an error that is not ours might hold a credential."""
    return str(error) if isinstance(error, HeadgateError) else type(error).__name__
