"""Waiting for a query in your own program, until it ends or a signal arrives."""

from __future__ import annotations

import threading
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from headgate.errors import HeadgateError
from headgate.streaming.running import POLL_SECONDS, query_ended
from headgate.streaming.signals import Stop, stop_signals
from headgate.streaming.sink import ShardSink
from headgate.streaming.spark.session import jvm_gone, quiet_py4j

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def run(query: StreamingQuery, sink: ShardSink | None = None) -> None:
    """Wait until the query ends, and end it cleanly on Ctrl-C and SIGTERM: its batch is committed or abandoned, then
    the sink flushes everything, takes a checkpoint and releases its shards. Returns in both cases; a second signal, a
    second later or more, ends it at once with KeyboardInterrupt. Signals are handled only in the main thread.

    `sink` is the query's ShardSink; a query into `format("headgate")` has none. Raises the error that ended the query:
    the sink's own error, else SparkFailed, without Spark's or py4j's traces.
    """
    quiet_py4j()
    is_main = threading.current_thread() is threading.main_thread()
    failed: Exception | None = None
    with stop_signals() if is_main else nullcontext(Stop()) as stop:
        try:
            while not stop.asked() and not query.awaitTermination(POLL_SECONDS):  # type: ignore[arg-type]
                pass
        except Exception as error:
            failed = None if stop.asked() else error
        # A JVM that has ended has no query to stop.
        with suppress(Exception):
            query.stop()
        try:
            if sink is not None:
                sink.close()
        except HeadgateError:
            if failed is None:
                raise
    if failed is None:
        return
    told = sink.error if sink is not None else None
    raise told or jvm_gone(None, failed) or query_ended(failed) from None
