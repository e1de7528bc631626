"""Where a stream stands, told to Kafka as offsets of a consumer group, so that every lag tool sees it.

Promises:
1. Never ahead of the table: only what a commit record says is told.
2. Off the hot path: `tell` notes and returns; a thread of its own talks to Kafka.
3. A broker that is away, or that refuses, never stops the stream: what failed is tried again, and only the newest
   offsets are tried. The log says once that it failed, and once that it works again.
4. No thread and no connection before the first `tell`.

The table stays the truth: nothing ever reads these offsets back. A driver that was fenced may tell its last offsets
late, after its successor told newer ones; the successor's next batch mends that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import structlog

from headgate.connectors.kafka.options import ConsumerConfig
from headgate.errors import HeadgateError

_log = structlog.get_logger("headgate.streaming")

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds between tries while Kafka does not take the offsets: doubled from the first to the longest."""

LAST_TRY = 5.0
"""Seconds that a clean stop waits for the last offsets."""


class KafkaProgress:
    """The offsets of one consumer group, as one stream tells them."""

    def __init__(self, config: ConsumerConfig, group: str, stream: str) -> None:
        self._config = config
        self._group = group
        self._stream = stream
        self._wanted: Mapping[tuple[str, int], int] = {}
        self._told: Mapping[tuple[str, int], int] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._failing = False
        self.failures = 0
        """Tries that failed since the start."""

    def tell(self, ends: Mapping[tuple[str, int], int]) -> None:
        """Per topic and partition, where the next batch starts, as the last commit record says. Returns at once."""
        with self._changed:
            self._wanted = dict(ends)
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._run, name="headgate-kafka-progress", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    @property
    def is_told(self) -> bool:
        """Whether Kafka has what was told last."""
        with self._changed:
            return self._told == self._wanted

    def stop(self, seconds: float = LAST_TRY) -> bool:
        """End the thread, after the last offsets or so many seconds. Whether Kafka has them."""
        until = time.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(lambda: self._thread is None or self._told == self._wanted, seconds)
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(max(0.0, until - time.monotonic()))
        return self.is_told

    # -- the thread ----------------------------------------------------------------

    def _run(self) -> None:
        pause = 0.0
        while (wanted := self._next(pause)) is not None:
            failed = self._try(wanted)
            pause = 0.0 if failed is None else min(LONGEST_PAUSE, max(FIRST_PAUSE, 2 * pause))
            self._say(failed, first=failed is not None and pause == FIRST_PAUSE)

    def _next(self, pause: float) -> Mapping[tuple[str, int], int] | None:
        """What to tell next, after a pause; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped, pause)
            self._changed.wait_for(lambda: self._stopped or self._told != self._wanted)
            return None if self._stopped else self._wanted

    def _try(self, wanted: Mapping[tuple[str, int], int]) -> Exception | None:
        # Loaded here: a process that only plans or pickles the sink needs no client.
        from headgate.connectors.kafka.groups import commit_group

        try:
            commit_group(self._config, self._group, wanted)
        except Exception as error:  # whatever it is, the stream goes on
            self.failures += 1
            return error
        with self._changed:
            self._told = wanted
            self._changed.notify_all()
        return None

    def _say(self, failed: Exception | None, *, first: bool) -> None:
        facts: dict[str, Any] = {"stream": self._stream, "group": self._group}
        if failed is None and self._failing:
            _log.info("the offsets of the consumer group are in Kafka again", **facts)
        elif first:
            _log.warning("the offsets of the consumer group were not taken; tried again", error=_short(failed), **facts)
        self._failing = failed is not None


def _short(error: Exception | None) -> str:
    """The text of an error that is not ours might hold a credential."""
    return str(error) if isinstance(error, HeadgateError) else type(error).__name__
