"""Spark's progress of one query, told to its counts. Where Spark has a JVM here: not on Spark Connect."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from headgate.streaming.metrics import StreamMetrics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ProgressListener(StreamingQueryListener):
    """Never raises: what a listener raises is nobody's to catch."""

    def __init__(self, query_id: str, metrics: StreamMetrics) -> None:
        self._query_id = query_id
        self._metrics = metrics

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Of no interest."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """After every trigger."""
        if str(event.progress.id) == self._query_id:
            try:
                self._metrics.progress(json.loads(event.progress.json))
            except (ValueError, TypeError, AttributeError, KeyError):
                return

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Of no interest: nothing new was in Kafka."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Of no interest: the sink is closed by whoever stops the query."""


def listen(spark: SparkSession, query_id: str, metrics: StreamMetrics) -> ProgressListener | None:
    """Add a listener for the query; None where this session takes none here."""
    if getattr(spark, "_jsparkSession", None) is None:
        return None
    listener = ProgressListener(query_id, metrics)
    spark.streams.addListener(listener)
    return listener
