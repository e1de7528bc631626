"""A stream that runs in this process: started, watched batch by batch, stopped.

Promises:
1. Every batch that the query finishes is reported once, in order.
2. Every end of the query is a typed error: the sink's own, DataLoss if Kafka no longer has the next offsets,
   PermissionDenied or StoreFull if Spark failed to write its checkpoint, otherwise SparkFailed.
3. After a stop the batch in flight is committed or abandoned; a restart continues either way. A clean stop ends with a
   checkpoint of everything, and native Lance may open the shards.
4. A second driver takes over the stream even if both use the same checkpoint directory. Spark ends the query that is
   second to write a file there. The new driver, which has committed nothing yet, starts its query again. The old driver
   waits until the new one has opened the stream, and ends with Fenced; if that does not happen, it starts its query
   again.
"""

from __future__ import annotations

import queue
import re
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from headgate import clock
from headgate.checkpoints.log.commit_log import read_head
from headgate.checkpoints.log.records import BatchRecord
from headgate.checkpoints.log.state import Head
from headgate.checkpoints.spark.directory import SparkCheckpoint
from headgate.connectors.kafka.reading import offsets
from headgate.connectors.objects import open_store
from headgate.connectors.objects.deletion import delete
from headgate.errors import DataLoss, Fenced, HeadgateError, PermissionDenied, StoreFull
from headgate.streaming.kafka.source import KafkaSource
from headgate.streaming.sink import ShardSink
from headgate.streaming.spark.session import SparkFailed, jvm_gone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_log = structlog.get_logger("headgate.streaming")

POLL_SECONDS = 0.2
"""Seconds between checks for a finished batch, the end of the query, or a stop request."""

_CONTENDED = ("CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming queries are concurrently using")
"""Spark's message when another query was first to write offsets or commit; the latter has no error condition."""
_NEWCOMER = 30.0
"""Seconds to wait until the query that wrote to the checkpoint has opened the stream."""
_AGAIN = 5
"""Maximum restarts: a fenced driver interferes once or twice at most."""
_PROBE = 64 << 10
"""Bytes of the probe file; fewer might fit on a disk where Spark's file did not."""

_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\]")
"""Spark's error conditions. The rest of its messages may contain options, and so credentials."""


@dataclass(frozen=True)
class Done:
    """A batch that is in the table."""

    record: BatchRecord
    seconds: float
    """The sink's timings for it."""
    skipped: bool
    """True if the table had it already."""


class RunningStream:
    """One query and its sink. Used by one thread."""

    def __init__(
        self,
        begin: Callable[[], StreamingQuery],
        watched: _Watched,
        source: KafkaSource | None = None,
        log_file: Path | None = None,
        checkpoint: SparkCheckpoint | None = None,
    ) -> None:
        """Use `start`. `begin` starts the query."""
        self._begin = begin
        self._watched = watched
        self._source = source
        self._log_file = log_file
        self._checkpoint = checkpoint
        self._again = 0
        self._query = self._begun()

    @classmethod
    def start(
        cls,
        sink: ShardSink,
        source: KafkaSource | None,
        frame: DataFrame,
        checkpoint: str,
        trigger: Mapping[str, Any],
        log_file: Path | None = None,
    ) -> RunningStream:
        """Start the query. Its first batch takes over the stream: THIS FENCES AN EARLIER DRIVER.

        `source` is for headgate's own Kafka client, to explain failures; None if not supported. `trigger` as in
        `DataStreamWriter.trigger`; `log_file` is Spark's log, named in errors.
        """
        watched = _Watched(sink)
        writer = frame.writeStream.foreachBatch(watched).option("checkpointLocation", checkpoint).trigger(**trigger)
        place = SparkCheckpoint(checkpoint, sink.options.storage_options)
        return cls(writer.start, watched, source, log_file, place)

    def batches(self, stop: Callable[[], bool] = lambda: False) -> Iterator[Done]:
        """Each finished batch, until the query ends, `stop` is called, or the caller stops iterating.

        Raises the error that ended the query, unless a stop was requested.
        """
        try:
            while (failed := (yield from self._until_it_ends(stop))) is not None:
                if not self._is_contended(failed) or self._again == _AGAIN:
                    raise self._explained(failed) from failed
                self._give_way(stop, failed)
                if stop():
                    break
                _log.warning("another query wrote to this Spark checkpoint; starting the query again")
                self._again += 1
                self._query = self._begun()
        except GeneratorExit:
            self.stop()
            raise
        self._watched.close()

    def _until_it_ends(self, stop: Callable[[], bool]) -> Generator[Done, None, Exception | None]:
        """Yield finished batches; then raise the query's error."""
        failed: Exception | None = None
        try:
            while not stop() and not self._ended():
                yield from self._watched.finished()
        except Exception as error:
            failed = None if stop() else error
        self.stop()
        # Batches that finished just before the query failed count as finished.
        yield from self._watched.finished()
        return failed

    def stop(self) -> None:
        """End the query. Returns when its batch is committed or abandoned; idempotent."""
        # A JVM that has ended has no query to stop.
        with suppress(Exception):
            self._query.stop()

    def _begun(self) -> StreamingQuery:
        self._watched.begin()
        try:
            return self._begin()
        except Exception as error:
            raise self._explained(error) from error

    def _is_contended(self, error: Exception) -> bool:
        """True if another query wrote a file of the checkpoint first."""
        text = str(error)
        return self._watched.error is None and any(sign in text for sign in _CONTENDED)

    def _give_way(self, stop: Callable[[], bool], error: Exception) -> None:
        """Wait for the new driver to open the stream. Raises Fenced when it has."""
        until = clock.monotonic() + _NEWCOMER
        while self._watched.has_committed and not stop() and clock.monotonic() < until:
            if (fenced := self._watched.fenced()) is not None:
                raise fenced from error
            clock.sleep(POLL_SECONDS)

    def _ended(self) -> bool:
        return bool(self._query.awaitTermination(POLL_SECONDS))  # type: ignore[arg-type]

    def _explained(self, error: Exception) -> HeadgateError:
        if isinstance(error, HeadgateError):
            return error
        if isinstance(self._watched.error, HeadgateError):
            return self._watched.error
        lost = jvm_gone(self._log_file, error) or self._lost() or self._unwritable()
        if lost is not None:
            return lost
        return query_ended(error, self._watched.error, self._log_file)

    def _unwritable(self) -> HeadgateError | None:
        """Find out, with a probe file, why Spark failed to write its checkpoint."""
        if self._checkpoint is None:
            return None
        try:
            store = open_store(self._checkpoint.location, self._checkpoint.options)
            key = f".headgate-{uuid.uuid4().hex}"
            try:
                store.put_if_absent(key, bytes(_PROBE))
            finally:
                delete(store, key, "probe")
        except (PermissionDenied, StoreFull) as error:
            kind = type(error)
            return kind(f"Spark failed to write its checkpoint: {error.what}", checkpoint=self._checkpoint.uri)
        except HeadgateError:
            pass
        return None

    def _lost(self) -> DataLoss | None:
        """Check whether Kafka lost the offsets from which Spark plans: then that is why the query ended."""
        if self._source is None:
            return None
        with suppress(HeadgateError):
            head = self._watched.head()
            for topic in sorted({topic for topic, _ in head.ends}):
                there = offsets(self._source.consumer, topic, deadline=5.0)
                ends = {number: end for (name, number), end in head.ends.items() if name == topic}
                for partition, end in sorted(ends.items()):
                    first = there.get(partition, (0, 0))[0]
                    if first > end:
                        return DataLoss(
                            f"Kafka no longer has offsets [{end}, {first}) of {topic!r} partition {partition}.",
                            topic=topic,
                            partition=partition,
                            lost=f"[{end}, {first})",
                            advice="restore the topic, or skip the lost offsets with `headgate rewind`; the table "
                            "keeps its rows",
                        )
        return None


def query_ended(error: BaseException, inner: BaseException | None = None, log_file: Path | None = None) -> SparkFailed:
    """The error that ended a query, from error conditions only; `inner` is the sink's error."""
    found = _CONDITION.findall(str(error)) or [type(error).__name__]
    kinds = ", ".join(dict.fromkeys([*found, *([] if inner is None else [type(inner).__name__])]))
    return SparkFailed(
        f"The query ended: {kinds}.",
        log=None if log_file is None else str(log_file),
        advice="read the end of Spark's log, then start again: committed rows stay, exactly once",
    )


class _Watched:
    """The sink, observed. Called in one of Spark's threads."""

    def __init__(self, sink: ShardSink) -> None:
        self._sink = sink
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self._reported = 0
        self.error: BaseException | None = None
        self.has_committed = False
        """True if this start of the query has committed a batch."""

    def begin(self) -> None:
        self.error = None
        self.has_committed = False

    def fenced(self) -> Fenced | None:
        """Fenced if another driver has opened the stream since this one did, else None."""
        own, opened = self._sink.open_record, self.head().opened
        if own is None or opened is None or opened.record_id == own:
            return None
        return Fenced(
            "Another driver took over the stream.",
            table=self._sink.table.uri,
            stream=opened.stream,
            successor_query_id=opened.query_id,
            successor_record_id=opened.record_id,
            advice="stop this query; another driver runs the stream. Start it again only if you want to stop the "
            "other driver",
        )

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        began = clock.monotonic()
        try:
            self._sink(frame, batch_id)
        except BaseException as error:
            self.error = error
            raise
        record = self._sink.last
        assert record is not None
        self.has_committed |= not self._sink.skipped
        if record.sequence > self._reported:
            # A restarted query repeats its last batch, which was reported already.
            self._reported = record.sequence
            self._done.put(Done(record, clock.monotonic() - began, skipped=self._sink.skipped))

    def close(self) -> None:
        """After the end of the query: flush, checkpoint and release the stream."""
        self._sink.close()

    def finished(self) -> Iterator[Done]:
        """Batches finished since the last call."""
        with suppress(queue.Empty):
            while True:
                yield self._done.get_nowait()

    def head(self) -> Head:
        """The stream's head in the table."""
        home, stream = self._sink.table.home, self._sink.options.stream
        assert stream is not None
        return read_head(home, stream)
