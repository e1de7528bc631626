"""Asks Kafka in its own thread where topics end, and derives how long rows wait there.

This sends no store request, and an unreachable broker delays nothing: pages then show why the lag is unknown.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from headgate import clock, parallel
from headgate.connectors.kafka.reading import offsets
from headgate.console.watch.log import Place
from headgate.errors import HeadgateError
from headgate.table.status import Consumer

EVERY = 5.0
"""Seconds between two looks at a topic's ends."""
PATIENCE = 5.0
REMEMBERED = 720
"""Looks that are kept: one hour."""


class TopicEnds:
    """The known ends of the topics that streams read. Thread-safe."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._lock = threading.Lock()
        self._seen: dict[Place, deque[tuple[float, int]]] = {}
        self._firsts: dict[Place, int] = {}
        self._errors: dict[str, str] = {}

    def look(self, topics: Iterable[str], stopping: Callable[[], bool] = lambda: False) -> None:
        """Ask for the ends of these topics."""
        for topic in sorted(set(topics)):
            try:
                found = offsets(self._consumer(topic), topic, deadline=PATIENCE, is_over=stopping)
            except HeadgateError as error:
                with self._lock:
                    self._errors[topic] = error.what
                continue
            now = clock.monotonic()
            with self._lock:
                self._errors.pop(topic, None)
                for partition, (first, end) in found.items():
                    self._firsts[topic, partition] = first
                    self._seen.setdefault((topic, partition), deque(maxlen=REMEMBERED)).append((now, end))

    def lag(self, committed: Mapping[Place, int]) -> dict[Place, int]:
        """Per partition of the stream's topics, how many offsets are in Kafka and not in the table."""
        topics = {topic for topic, _ in committed}
        with self._lock:
            return {
                place: max(0, seen[-1][1] - committed.get(place, self._firsts[place]))
                for place, seen in self._seen.items()
                if place[0] in topics
            }

    def end(self, place: Place) -> int | None:
        """The end of a partition; None if unknown."""
        with self._lock:
            seen = self._seen.get(place)
            return seen[-1][1] if seen else None

    def waiting(self, committed: Mapping[Place, int], now: float) -> float | None:
        """Seconds since the first look that saw a row which is not in the table yet; 0 if there is none, None if
        unknown."""
        topics = {topic for topic, _ in committed}
        waited = []
        with self._lock:
            for place, seen in self._seen.items():
                if place[0] in topics:
                    read = committed.get(place, self._firsts[place])
                    waited.append(next((now - at for at, end in seen if end > read), 0.0))
        return max(waited, default=None)

    def error(self, topics: Iterable[str]) -> str | None:
        """Why the end of one of the topics is unknown; None if all are known."""
        with self._lock:
            return next((self._errors[topic] for topic in sorted(set(topics)) if topic in self._errors), None)


class KafkaWatch:
    """A thread that asks for the ends periodically until it is stopped."""

    def __init__(self, ends: TopicEnds, topics: Callable[[], Iterable[str]]) -> None:
        self._ends, self._topics = ends, topics
        self._over = threading.Event()
        self._thread = parallel.thread("console-kafka", self._run)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. Idempotent."""
        self._over.set()
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        while not self._over.is_set():
            self._ends.look(self._topics(), self._over.is_set)
            self._over.wait(EVERY)
