"""Waiting for a query in one's own program, until it ends or a signal asks it to."""

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
    the sink flushes, pins and releases what it wrote. Returns in both cases; a second signal, a second later or more,
    ends it at once by KeyboardInterrupt. In a thread that is not the main one signals are not taken.

    `sink` is what the query writes by; a query into `format("headgate")` has none. Raises what ended the query: the
    sink's own error, else SparkFailed; nothing of Spark's text or of py4j's traces is printed.
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
        # A JVM that is gone has stopped.
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
