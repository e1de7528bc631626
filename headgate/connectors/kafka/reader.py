"""Reads offset ranges of a topic with librdkafka straight into Arrow.

A range is read completely, or an error says why not. The reader stops by position: the last offsets of a range may
have no row (compacted, aborted, control records), so it does not wait for one.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from headgate import clock
from headgate.connectors.kafka.consumers import Lent, lend
from headgate.connectors.kafka.options import LOSS_SECONDS, READ_UNCOMMITTED, ConsumerConfig
from headgate.connectors.kafka.rows import COLUMNS, SeeTimes, row_schema, times_of, to_batch
from headgate.errors import DataLoss, HeadgateError, InvalidInput, NotFound, PermissionDenied, Transient

DEADLINE = 60.0
"""Seconds without progress after which a read fails."""
_AS_USUAL = 1 / 3
"""The share of the deadline without data after which a read switches to small fetches. A response arrives completely
or not at all, and on a network with a few KB per second the usual megabyte takes too long.
"""
_SMALL = 16 << 10
"""Bytes of a small fetch: at 1 KB/s it arrives within the rest of the deadline."""
_SMALL_SPELL = 1 / 6
"""The share of the deadline for small fetches before normal ones are tried again, in case the broker has recovered. It
doubles each time, so that a slow network is tried rarely.
"""
_SLICE = 0.02
"""Seconds that one call waits for rows. `consume` waits for the full count, and a range may have fewer rows."""
_SLICE_ROWS = 10_000
_BATCH_BYTES = 32 << 20
"""A batch ends here even if it has few rows, so that memory follows bytes and not row counts."""
_LOOK_AGAIN = 1.0
"""Seconds without data after which the cluster is asked what is wrong."""
_CONFIRMATIONS = 3
"""Offsets count as lost only when seen missing this often: a new leader may not know all offsets yet."""
_GONE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION)
_NO_TOPIC = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
)
_FORBIDDEN = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets [start, until) of one partition."""

    topic: str
    partition: int
    start: int
    until: int

    def __post_init__(self) -> None:
        if self.partition < 0 or not 0 <= self.start <= self.until:
            what = f"Invalid range [{self.start},{self.until}) of partition {self.partition}."
            raise InvalidInput(what, topic=self.topic)


def read_range(
    config: ConsumerConfig,
    topic: str,
    partition: int,
    start: int,
    until: int,
    *,
    max_rows: int = 50_000,
    deadline: float = DEADLINE,
    columns: Sequence[str] = COLUMNS,
    seen: SeeTimes = lambda times: None,
) -> Generator[pa.RecordBatch]:
    """The rows of [start, until) in offset order, in batches of up to `max_rows`; none for an empty range. When this
    returns, the first fetch is under way.

    `deadline` is in seconds without progress. `columns` may add "headers" or omit columns; `seen` is called with some
    timestamps, see `times_of`.
    Raises DataLoss that names the lost range, Transient if the broker does not answer, PermissionDenied, InvalidInput.
    """
    batches = _batches(config, Range(topic, partition, start, until), max_rows, deadline, row_schema(columns), seen)
    next(batches, None)
    return batches


def partitions(config: ConsumerConfig, topic: str, *, deadline: float = DEADLINE) -> list[int]:
    """The topic's partitions. Raises NotFound, Transient, PermissionDenied."""
    with lend(config) as lent:
        return _partitions(lent, config, topic, clock.monotonic() + deadline)


def cluster(config: ConsumerConfig, *, deadline: float = DEADLINE) -> tuple[int, int]:
    """The number of brokers and the number of topics. Raises Transient, PermissionDenied."""
    with lend(config) as lent:
        until = clock.monotonic() + deadline
        found = _ask(lent, config, "any", until, lambda timeout: lent.consumer.list_topics(timeout=timeout))
        return len(found.brokers), len(found.topics)


def offsets(
    config: ConsumerConfig, topic: str, *, deadline: float = DEADLINE, is_over: Callable[[], bool] = lambda: False
) -> dict[int, tuple[int, int]]:
    """Per partition the first offset and the end: the offset after the last one that this isolation level may read.

    Raises NotFound, Transient (before the deadline if `is_over`), PermissionDenied.
    """
    until = clock.monotonic() + deadline
    with lend(config, is_over) as lent:
        return {
            partition: _watermarks(lent, config, topic, partition, until)
            for partition in _partitions(lent, config, topic, until)
        }


def offsets_at(config: ConsumerConfig, topic: str, instant_ms: int, *, deadline: float = DEADLINE) -> dict[int, int]:
    """Per partition the first offset whose record has that timestamp (in milliseconds) or a later one; the end if none
    has.

    Raises NotFound, Transient, PermissionDenied.
    """
    until = clock.monotonic() + deadline
    with lend(config) as lent:
        numbers = _partitions(lent, config, topic, until)
        wanted = [TopicPartition(topic, number, instant_ms) for number in numbers]
        answers = _ask(lent, config, topic, until, lambda timeout: lent.consumer.offsets_for_times(wanted, timeout))
        for answer in answers:
            if answer.error is not None:
                _raise_for(answer.error, lent, config, topic)
        return {
            answer.partition: answer.offset
            if answer.offset >= 0
            else _watermarks(lent, config, topic, answer.partition, until)[1]
            for answer in answers
        }


# -- reading -----------------------------------------------------------------------


def _batches(
    config: ConsumerConfig, wanted: Range, max_rows: int, deadline: float, schema: pa.Schema, seen: SeeTimes
) -> Generator[pa.RecordBatch]:
    """Reads with normal fetches; after some time without data it uses small fetches for a while. Yields None first."""
    position, begins, small, spell = wanted.start, True, False, deadline * _SMALL_SPELL
    while position < wanted.until:
        patience = deadline * (1 - _AS_USUAL if small else _AS_USUAL)
        end = clock.monotonic() + spell if small else math.inf
        try:
            # A consumer that returned nothing is closed here: its large response may still be arriving slowly.
            with lend(config.fetching_at_most(_SMALL) if small else config) as lent:
                reading = _RangeReader(lent, config, wanted, position, deadline, patience)
                if begins:
                    begins = False
                    yield None
                while not reading.done:
                    messages = reading.collect(max_rows, end)
                    position = reading.position
                    if messages:
                        seen(times_of(messages))
                        yield to_batch(messages, wanted.topic, wanted.partition, schema)
                    if clock.monotonic() >= end:
                        break
        except Transient:
            if small:
                raise
        small, spell = not small, spell * (2 if small else 1)


@dataclass(frozen=True, slots=True)
class _Lost:
    """Offsets that are not in the log now."""

    start: int
    until: int
    for_good: bool = False
    """True if they lie below the log's start."""


class _RangeReader:
    """The state of reading one range."""

    def __init__(
        self, lent: Lent, config: ConsumerConfig, wanted: Range, position: int, deadline: float, patience: float
    ) -> None:
        self._lent = lent
        self._consumer: Consumer = lent.consumer
        self._config = config
        self._wanted = wanted
        self._deadline, self._patience = deadline, patience
        self._position = position
        self._moved_on()
        self._assign()

    @property
    def position(self) -> int:
        return self._position

    @property
    def done(self) -> bool:
        return self._position >= self._wanted.until

    def collect(self, max_rows: int, end: float) -> list[Message]:
        """Up to `max_rows` messages of the range; fewer if they are large, or if the range ends. After the time `end`
        it returns the messages it has, or waits for the first.

        1. Take the messages that arrived. 2. Handle the events among them, which are rare. 3. Rows, the end of the log
        and control records advance the position. 4. If the position has not moved for a while, ask the cluster why.
        Rows that arrived before a silence are returned before its error is raised.
        """
        rows: list[Message] = []
        size = 0
        # The time that the caller spent between two batches does not count as the broker's silence.
        self._moved_on()
        while not self.done and len(rows) < max_rows and size < _BATCH_BYTES:
            if rows and clock.monotonic() >= end:
                break
            count = min(max_rows - len(rows), self._wanted.until - self._position, _SLICE_ROWS)
            came = self._consumer.consume(count, _SLICE)
            fresh = self._sorted_out(came)
            if fresh:
                rows += fresh
                size += sum(map(len, fresh))
            elif not self.done and not self._advance(self._control_position()):
                if rows and self._is_silent():
                    break
                self._look_closer()
        return rows

    def _sorted_out(self, came: list[Message]) -> list[Message]:
        """The rows of the range among the messages. Advances the position and handles every event."""
        if not came:
            return came
        fresh = came
        # Events are rare: one C-level pass shows that most lists have none.
        if any(map(Message.error, came)):
            fresh = [message for message in came if message.error() is None]
            for event in came:
                if (error := event.error()) is not None:
                    self._handle(error, _offset(event))
        if fresh:
            last = _offset(fresh[-1])
            self._advance(last + 1)
            if last >= self._wanted.until:
                # The range had fewer rows than offsets, so later rows were fetched too.
                fresh = [message for message in fresh if _offset(message) < self._wanted.until]
        return fresh

    def _advance(self, position: int) -> bool:
        if position <= self._position:
            return False
        self._position = position
        self._moved_on()
        return True

    def _moved_on(self) -> None:
        self._last_progress = self._last_look = clock.monotonic()

    def _control_position(self) -> int:
        """The client's position, after control records too; a number below any offset before it has started."""
        (where,) = self._consumer.position([TopicPartition(self._wanted.topic, self._wanted.partition)])
        return int(where.offset)

    def _assign(self) -> None:
        self._consumer.assign([TopicPartition(self._wanted.topic, self._wanted.partition, self._position)])

    # -- when something is wrong ---------------------------------------------------

    def _handle(self, error: KafkaError, offset: int) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            if not self._advance(offset) and not self.done:
                self._last_look = 0.0  # the log ends before the range does: ask now
        elif error.code() in _GONE:
            with contextlib.suppress(KafkaException):  # Kafka does not answer; the deadline decides
                self._check_for_loss()
            self._assign()
        elif error.code() in _FORBIDDEN:
            raise self._error(PermissionDenied, f"The broker does not allow this user to read: {error.name()}.")
        elif error.code() in _NO_TOPIC:
            self._last_look = 0.0

    def _is_silent(self) -> bool:
        return clock.monotonic() - self._last_progress > self._patience

    def _look_closer(self) -> None:
        """No data arrived. Raise an error if something is wrong; otherwise keep waiting."""
        now = clock.monotonic()
        if self._lent.refused():
            raise self._error(PermissionDenied, "The broker rejected the credentials or the certificate.")
        if self._is_silent():
            raise self._error(
                Transient, f"Kafka sent nothing for {self._deadline:g} s.", last_error=self._lent.last_error()
            )
        if now - self._last_look > _LOOK_AGAIN:
            with contextlib.suppress(KafkaException):  # Kafka does not answer; the deadline decides
                self._check_for_loss()
            self._last_look = clock.monotonic()

    def _check_for_loss(self) -> None:
        """Raise DataLoss if the log lacks part of the rest of the range, KafkaException if Kafka does not answer."""
        began, seen = clock.monotonic(), 0
        while True:
            lost = self._lost()
            if lost is None:
                if seen:
                    # The broker knows the offsets again: the wait for it does not count as silence.
                    self._moved_on()
                return
            seen += 1
            waited = clock.monotonic() - began >= min(LOSS_SECONDS, self._deadline)
            if seen >= _CONFIRMATIONS and (waited or lost.for_good):
                break
            clock.sleep(_SLICE * 10)
        raise self._error(
            DataLoss,
            f"Kafka no longer has offsets [{lost.start},{lost.until}) of {self._wanted.topic!r} "
            f"partition {self._wanted.partition}.",
            lost_from=lost.start,
            lost_until=lost.until,
            advice="restore the topic, or skip the lost offsets on purpose with `headgate rewind`",
        )

    def _lost(self) -> _Lost | None:
        """The part of [position, until) that is not in the log now. Rows of open transactions are in the log."""
        wanted, everything = self._wanted, self._config.with_isolation(READ_UNCOMMITTED)
        where = TopicPartition(wanted.topic, wanted.partition)
        with lend(everything) as other:
            try:
                low, high = other.consumer.get_watermark_offsets(where, timeout=2 * _LOOK_AGAIN)
            except KafkaException as error:
                if error.args[0].code() in _NO_TOPIC:
                    return _Lost(self._position, wanted.until)
                raise
        if self._position < low:
            return _Lost(self._position, min(low, wanted.until), for_good=True)
        if high < wanted.until:
            return _Lost(max(high, self._position), wanted.until)
        return None

    def _error(self, kind: type[HeadgateError], what: str, **facts: object) -> HeadgateError:
        wanted = self._wanted
        error = kind(what, topic=wanted.topic, partition=wanted.partition, range=f"[{wanted.start},{wanted.until})")
        if kind is Transient:
            error.advice = self._config.reach
        return error.with_context(reached=self._position, servers=self._config.servers, **facts)


# -- asking ------------------------------------------------------------------------


def _partitions(lent: Lent, config: ConsumerConfig, topic: str, until: float) -> list[int]:
    found = _ask(lent, config, topic, until, lambda timeout: lent.consumer.list_topics(topic, timeout)).topics[topic]
    if found.error is not None:
        _raise_for(found.error, lent, config, topic)
    return sorted(found.partitions)


def _watermarks(lent: Lent, config: ConsumerConfig, topic: str, partition: int, until: float) -> tuple[int, int]:
    where = TopicPartition(topic, partition)
    low, high = _ask(lent, config, topic, until, lambda timeout: lent.consumer.get_watermark_offsets(where, timeout))
    return low, high


def _ask(lent: Lent, config: ConsumerConfig, topic: str, until: float, question: Callable[[float], Any]) -> Any:
    """Repeat short requests until one is answered: between them the client reports rejected credentials."""
    while True:
        try:
            return question(min(_LOOK_AGAIN, max(0.01, until - clock.monotonic())))
        except KafkaException as error:
            lent.consumer.poll(0)  # calls `error_cb`
            reason = error.args[0]
            if (
                lent.refused()
                or reason.code() in (*_NO_TOPIC, *_FORBIDDEN)
                or clock.monotonic() > until
                or lent.is_over()
            ):
                _raise_for(reason, lent, config, topic)


def _raise_for(reason: KafkaError, lent: Lent, config: ConsumerConfig, topic: str) -> NoReturn:
    where: dict[str, Any] = {"topic": topic, "servers": config.servers}
    if lent.refused() or reason.code() in _FORBIDDEN:
        raise PermissionDenied("Kafka rejected the credentials, the certificate or the request.", **where)
    if reason.code() in _NO_TOPIC:
        raise NotFound(f"Topic {topic!r} not found.", **where, advice="check the name, or create the topic first")
    what = f"Kafka did not answer: {reason.name()}."
    raise Transient(what, **where, last_error=lent.last_error(), advice=config.reach)


def _offset(message: Message) -> int:
    offset = message.offset()
    return -1 if offset is None else offset
