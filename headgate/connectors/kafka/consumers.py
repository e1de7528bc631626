"""A pool of Kafka consumers, which live as long as the process: one per configuration, more if several are in use.

A caller has a consumer for itself. After an error the consumer is closed and not used again. A forked child never uses
or frees its parent's consumers: a fork does not copy their threads, and freeing one would wait for them.
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
    # A lost offset is an error; the consumer must not jump over it.
    "auto.offset.reset": "error",
    # The last offsets of a range may have no row; then only the end of the log shows that the range is complete.
    "enable.partition.eof": "true",
    "allow.auto.create.topics": "false",
    # Nobody polls between two tasks; that is not an error.
    "max.poll.interval.ms": "86400000",
}
_UNLESS_GIVEN = {
    # Rows fetched ahead take a task's memory, which has several consumers.
    "queued.max.messages.kbytes": "8192",
    # Rows fetched ahead: about one fetch. More rows would be fetched past a range's end and thrown away: 20,000 cost a
    # range of 12,500 rows a sixth more CPU, and librdkafka's default of 100,000 far more. librdkafka looks at a full
    # queue again after 1 s by default; here it does so sooner.
    "queued.min.messages": "5000",
    "fetch.queue.backoff.ms": "10",
    # A fetch that waits at the end of the log holds up the next range, since a connection has one fetch at a time.
    "fetch.wait.max.ms": "10",
    # Reconnect to a restarted broker within 0.5 s, not 10 s.
    "reconnect.backoff.max.ms": "500",
}


@dataclass(slots=True)
class Lent:
    """A consumer in use, and the errors that concerned no partition."""

    consumer: Consumer
    errors: list[KafkaError] = field(default_factory=list)
    is_over: Callable[[], bool] = lambda: False
    """True if no caller waits for the answer any more."""

    def refused(self) -> bool:
        """True if the broker rejected the credentials, or its certificate is not trusted."""
        return any(error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL) for error in self.errors)

    def last_error(self) -> str | None:
        """The last error's name, without its text, which may contain credentials."""
        return self.errors[-1].name() if self.errors else None


_lock = threading.Lock()
_idle: defaultdict[tuple[int, ConsumerConfig], list[Lent]] = defaultdict(list)
os.register_at_fork(after_in_child=lambda: globals().__setitem__("_lock", threading.Lock()))


@contextmanager
def lend(config: ConsumerConfig, is_over: Callable[[], bool] = lambda: False) -> Iterator[Lent]:
    """Lend a consumer with this configuration. It has no assignment. Raises InvalidInput."""
    key = (os.getpid(), config)
    with _lock:
        lent = _idle[key].pop() if _idle[key] else None
    lent = lent or _make(config)
    lent.errors.clear()
    lent.is_over = is_over
    try:
        yield lent
    except GeneratorExit:
        # The reader stopped early on purpose: the consumer is still good.
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
        # The error's text may quote a value: report only the option's name.
        raise InvalidInput(
            f"librdkafka rejected the value of {named[0]!r}." if named else "librdkafka rejected the configuration.",
            servers=config.servers,
        ) from None
    # This reference is never released: a forked child would free its copy when it ends, and hang.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(consumer))
    return Lent(consumer, errors)
