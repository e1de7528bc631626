"""Spark's progress events of one run: durations of each trigger, and Kafka's end offsets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent


def listen(run: Any, report: Callable[[Mapping[str, Any]], None]) -> Callable[[], None]:
    """Report the progress of every trigger of a run, as Spark's JSON, in one of Spark's threads.

    `run` is Spark's own object for one start of a query. The session of its batches is a copy whose listeners are not
    called, so the listener is added to the session that started the run. The returned function ends it; it also ends
    with the run. Idempotent.
    """
    from pyspark.sql.streaming.listener import StreamingQueryListener
    from pyspark.sql.streaming.query import StreamingQueryManager

    run_id = run.runId().toString()
    manager = StreamingQueryManager(run.sparkSession().streams())

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: QueryStartedEvent) -> None:
            pass

        def onQueryProgress(self, event: QueryProgressEvent) -> None:
            if str(event.progress.runId) == run_id:
                report(json.loads(event.progress.json))

        def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
            if str(event.runId) == run_id:
                end()

    listener = Listener()
    manager.addListener(listener)

    def end() -> None:
        # A JVM that has ended has no listeners.
        with suppress(Exception):
            manager.removeListener(listener)

    return end
