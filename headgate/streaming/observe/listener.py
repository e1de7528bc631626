"""Spark's own word about each trigger of one run, as it comes: what its parts took, and what Kafka still has."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent


def listen(run: Any, report: Callable[[Mapping[str, Any]], None]) -> Callable[[], None]:
    """Report the progress of every trigger of a run from now on, as Spark's JSON has it, in a thread of Spark's.

    `run` is Spark's own object for one start of a query. The session that its batches see is a copy whose listeners
    hear nothing of the query, so it is the run that is asked for the session that started it.
    What is returned ends it; it also ends by itself with the run. Twice equals once.
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
        # A JVM that is gone has no listeners.
        with suppress(Exception):
            manager.removeListener(listener)

    return end
