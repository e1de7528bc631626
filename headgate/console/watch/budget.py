"""The console's budget of store requests: two per second over all tables, as the stores themselves count them.

Promises:
1. In any T seconds a console's looks send at most 2 T + START + ADVANCE requests, plus the look in progress. The
   console's own looks never overdraw the budget, except for the first ones; a page that a person opens may overdraw it
   by up to ADVANCE, and then everything waits until that is paid back.
2. Nothing is estimated: the counters of the registered stores say what was spent.
Thread-safe.
"""

from __future__ import annotations

import threading

from headgate import clock
from headgate.connectors.objects import ObjectStore

RATE = 2.0
"""Requests a second."""
SAVED = 20.0
"""Maximum requests that are saved up in quiet seconds."""
START = 120.0
"""Requests for the first looks: enough for about twenty tables."""
ADVANCE = 240.0
"""Maximum overdraft, which is paid back in two minutes: a page with 25 shards takes 75 requests."""


class Budget:
    """The store requests that may still be sent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stores: list[ObjectStore] = []
        self._spent = 0
        self._balance = START
        self._at = clock.monotonic()

    def count(self, *stores: ObjectStore) -> None:
        """Count all requests of these stores, earlier ones too."""
        with self._lock:
            self._stores += (one.counting for one in stores)

    @property
    def spent(self) -> int:
        """Requests so far."""
        with self._lock:
            return self._asked()

    @property
    def balance(self) -> float:
        """Requests that may be sent now; negative if overdrawn."""
        with self._lock:
            return self._settled()

    def may_watch(self) -> bool:
        """True if the console may look by itself."""
        return self.balance >= 0

    def seconds_to_wait(self) -> float:
        """Seconds until a page that a person opened may read; 0 means now."""
        return max(0.0, -(self.balance + ADVANCE) / RATE)

    def _asked(self) -> int:
        return sum(sum(store.operations().values()) for store in self._stores)

    def _settled(self) -> float:
        now, asked = clock.monotonic(), self._asked()
        saved = max(self._balance, min(SAVED, self._balance + (now - self._at) * RATE))
        self._balance = saved - (asked - self._spent)
        self._at, self._spent = now, asked
        return self._balance
