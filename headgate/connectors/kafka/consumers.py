"""Consumers that live as long as the process, one per configuration unless several are in use at once.

A consumer is lent, never shared; one that met an error is closed instead of being lent again. None is ever used, or
even freed, in another process than its own: its threads stay behind at a fork, and freeing it would wait for them.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException

from headgate.connectors.kafka.options import ConsumerConfig
from headgate.connectors.kafka.topics import QUIET
from headgate.errors import InvalidInput

_ALWAYS = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    # An offset that is gone is an error, never a place to jump to.
    "auto.offset.reset": "error",
    # A range may end in offsets that hold no row: the end of the log is then the only sign.
    "enable.partition.eof": "true",
    "allow.auto.create.topics": "false",
    # Nobody polls between two tasks, and that is nobody's failure.
    "max.poll.interval.ms": "86400000",
}
_UNLESS_GIVEN = {
    # What is fetched ahead counts into a task's memory; 16 MB keep two cores busy.
    "queued.max.messages.kbytes": "16384",
    # Rows that lie ready. More means that more is fetched past a range's end and thrown away: with librdkafka's
    # 100,000, ranges of 25,000 rows were a third slower; short ones did not care. And a queue that is full is looked
    # at again soon, not after librdkafka's second.
    "queued.min.messages": "20000",
    "fetch.queue.backoff.ms": "10",
    # A fetch that waits at the end of the log holds up the next range, since a connection has one fetch at a time.
    "fetch.wait.max.ms": "10",
    # A broker that comes back is found within half a second, not within ten.
    "reconnect.backoff.max.ms": "500",
}


@dataclass(slots=True)
class Lent:
    """A consumer in use, and the last error that concerned no partition."""

    consumer: Consumer
    errors: list[KafkaError] = field(default_factory=list)
    is_over: Callable[[], bool] = lambda: False
    """True if no caller waits for its answer any more."""

    def refused(self) -> bool:
        """The broker did not accept the credentials, or its certificate is not trusted."""
        return any(error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL) for error in self.errors)

    def last_error(self) -> str | None:
        """The last error's name; its text could hold more than a name should."""
        return self.errors[-1].name() if self.errors else None


_lock = threading.Lock()
_idle: defaultdict[tuple[int, ConsumerConfig], list[Lent]] = defaultdict(list)
os.register_at_fork(after_in_child=lambda: globals().__setitem__("_lock", threading.Lock()))


@contextmanager
def lend(config: ConsumerConfig, is_over: Callable[[], bool] = lambda: False) -> Iterator[Lent]:
    """Lend a consumer of this process for the configuration, without an assignment. Raises InvalidInput."""
    key = (os.getpid(), config)
    with _lock:
        lent = _idle[key].pop() if _idle[key] else None
    lent = lent or _make(config)
    lent.errors.clear()
    lent.is_over = is_over
    try:
        yield lent
    except GeneratorExit:
        # The reader stopped early of its own will: nothing is wrong with the consumer.
        _take_back(key, lent)
        raise
    except BaseException:
        lent.consumer.close()
        raise
    else:
        _take_back(key, lent)


def _take_back(key: tuple[int, ConsumerConfig], lent: Lent) -> None:
    lent.consumer.unassign()
    with _lock:
        _idle[key].append(lent)


def _make(config: ConsumerConfig) -> Lent:
    errors: list[KafkaError] = []
    properties: dict[str, object] = {**_UNLESS_GIVEN, **config.librdkafka(), **_ALWAYS, "error_cb": errors.append}
    try:
        consumer = Consumer(properties, logger=QUIET)
    except KafkaException as error:
        text = str(error)
        named = [name for name in sorted(config.librdkafka(), key=len, reverse=True) if name in text]
        # The text may quote a value; the name is enough.
        raise InvalidInput(
            f"librdkafka rejected the value of {named[0]!r}." if named else "librdkafka rejected the configuration.",
            servers=config.servers,
        ) from None
    # One reference that is never given back: a forked child would free its copy when it ends, and hang.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(consumer))
    return Lent(consumer, errors)
