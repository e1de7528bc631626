"""A stream that runs in this process: started, watched batch by batch, stopped.

Promises:
1. Every batch that the query finishes is told once, in order.
2. Whatever ends the query is a typed error: the sink's own, DataLoss where Kafka no longer has what
   comes next, and SparkFailed for the rest.
3. After a stop the batch in flight is committed or abandoned; a restart goes on either way. A clean stop ends in a
   checkpoint of everything, and native may open the shards.
"""

from __future__ import annotations

import queue
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.checkpoints.commit_log import CommitLog
from headgate.checkpoints.log_state import Head
from headgate.checkpoints.records import BatchRecord
from headgate.connectors.kafka.reading import offsets
from headgate.errors import DataLoss, HeadgateError
from headgate.streaming.kafka_source import KafkaSource
from headgate.streaming.session import SparkFailed, jvm_gone
from headgate.streaming.sink import ShardSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

POLL_SECONDS = 0.2
"""How soon a finished batch, the end of the query or a wish to stop is noticed."""

_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\]")
"""How Spark names a kind of error. The rest of its texts may quote options, hence credentials."""


@dataclass(frozen=True)
class Done:
    """A batch that is in the table."""

    record: BatchRecord
    seconds: float
    """What the sink took for it."""
    skipped: bool
    """It was in the table before this query came to it."""


class RunningStream:
    """One query, and what its sink says. Used by one thread."""

    def __init__(
        self, query: StreamingQuery, watched: _Watched, source: KafkaSource | None, log_file: Path | None
    ) -> None:
        """Use `start`."""
        self._query = query
        self._watched = watched
        self._source = source
        self._log_file = log_file

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
        """Start the query. Its first batch takes the stream over: THIS FENCES AN EARLIER DRIVER.

        `source` is the topic as our own client reaches it, to explain a failure by; None where it cannot.
        `trigger` is what `DataStreamWriter.trigger` takes; `log_file` is where Spark prints, for errors.
        """
        watched = _Watched(sink)
        writer = frame.writeStream.foreachBatch(watched).option("checkpointLocation", checkpoint)
        return cls(writer.trigger(**trigger).start(), watched, source, log_file)

    def batches(self, stop: Callable[[], bool] = lambda: False) -> Iterator[Done]:
        """Each batch as it is done, until the query ends, `stop` says so, or the caller turns away.

        Raises what ended the query, unless a stop was asked for.
        """
        failed: Exception | None = None
        try:
            try:
                while not stop() and not self._ended():
                    yield from self._watched.finished()
            except Exception as error:
                failed = None if stop() else error
            self.stop()
            # Batches that were done just before the query failed are done.
            yield from self._watched.finished()
        finally:
            self.stop()
        if failed is not None:
            raise self._explained(failed) from failed
        self._watched.close()

    def stop(self) -> None:
        """End the query. Returns when its batch is committed or abandoned; twice equals once."""
        # A JVM that is gone has stopped.
        with suppress(Exception):
            self._query.stop()

    def _ended(self) -> bool:
        return bool(self._query.awaitTermination(POLL_SECONDS))  # type: ignore[arg-type]

    def _explained(self, error: Exception) -> HeadgateError:
        if isinstance(error, HeadgateError):
            return error
        if isinstance(self._watched.error, HeadgateError):
            return self._watched.error
        lost = jvm_gone(self._log_file, error) or self._lost()
        if lost is not None:
            return lost
        found = _CONDITION.findall(str(error)) or [type(error).__name__]
        inner = [] if self._watched.error is None else [type(self._watched.error).__name__]
        kinds = ", ".join(dict.fromkeys([*found, *inner]))
        return SparkFailed(
            f"The query ended: {kinds}.",
            log=None if self._log_file is None else str(self._log_file),
            advice="read the end of Spark's log, then start again: what was committed stays, once",
        )

    def _lost(self) -> DataLoss | None:
        """Spark plans from offsets that must be there. Where they are not, that is why it stopped."""
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
                            advice="restore the topic, or skip what is gone with `headgate rewind`; the table stays",
                        )
        return None


class _Watched:
    """The sink, with an eye on it. Called in a thread of Spark's."""

    def __init__(self, sink: ShardSink) -> None:
        self._sink = sink
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self.error: BaseException | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        try:
            self._sink(frame, batch_id)
        except BaseException as error:
            self.error = error
            raise
        record = self._sink.last
        assert record is not None
        self._done.put(Done(record, time.monotonic() - began, skipped=self._sink.skipped))

    def close(self) -> None:
        """The query has ended: flush, pin and release what it wrote. Raises what stands in the way."""
        self._sink.close()

    def finished(self) -> Iterator[Done]:
        """What was done since the last call."""
        with suppress(queue.Empty):
            while True:
                yield self._done.get_nowait()

    def head(self) -> Head:
        """Where the stream stands in the table."""
        home, stream = self._sink.table.home, self._sink.options.stream
        assert stream is not None
        return CommitLog(home.records, stream, home.uri).read().head
