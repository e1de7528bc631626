"""How much the console may ask of the stores: two requests a second over all tables, as the port itself counts them.

Promises:
1. Over any time of T seconds the looks of a console send at most 2 T + START + ADVANCE requests, and the look that is
   under way. What it does by itself waits for its turn and takes no advance, but for its first looks; a page that a
   person opens may take up to ADVANCE ahead, and then everything waits until that is paid back.
2. Nothing is estimated: the counters of the stores that were registered say what was spent.
Thread-safe.
"""

from __future__ import annotations

import threading

from headgate import clock
from headgate.connectors.objects import ObjectStore

RATE = 2.0
"""Requests a second."""
SAVED = 20.0
"""Requests that quiet seconds save up at most."""
START = 120.0
"""Requests of the first looks: some twenty tables."""
ADVANCE = 240.0
"""A minute or two of looking, paid in advance: a page with 25 shards is 75 requests."""


class Budget:
    """What may still be asked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stores: list[ObjectStore] = []
        self._spent = 0
        self._balance = START
        self._at = clock.monotonic()

    def count(self, *stores: ObjectStore) -> None:
        """From now on what these stores are asked for counts; what was asked of them before as well."""
        with self._lock:
            self._stores += (one.counting for one in stores)

    @property
    def spent(self) -> int:
        """Requests so far."""
        with self._lock:
            return self._asked()

    @property
    def balance(self) -> float:
        """Requests that may be sent now; negative: what was taken in advance."""
        with self._lock:
            return self._settled()

    def may_watch(self) -> bool:
        """Whether the console may look by itself."""
        return self.balance >= 0

    def seconds_to_wait(self) -> float:
        """Until a page that a person opened may look; 0: now."""
        return max(0.0, -(self.balance + ADVANCE) / RATE)

    def _asked(self) -> int:
        return sum(sum(store.operations().values()) for store in self._stores)

    def _settled(self) -> float:
        now, asked = clock.monotonic(), self._asked()
        saved = max(self._balance, min(SAVED, self._balance + (now - self._at) * RATE))
        self._balance = saved - (asked - self._spent)
        self._at, self._spent = now, asked
        return self._balance
