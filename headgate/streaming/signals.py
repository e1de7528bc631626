"""Signals as stop requests: the stream first finishes or abandons its batch."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from headgate import clock

STDERR = 2
SIGNALS = (signal.SIGINT, signal.SIGTERM)
ONE_STOP = 1.0
"""Signals within this many seconds are one request: `timeout` sends one to the process and one to its group."""


class Stop:
    """Whether a stop was requested, and by which signal."""

    def __init__(self, waits_for: str = "") -> None:
        self.waits_for = waits_for
        """Printed at the first signal; may change while the command runs."""
        self._signal: int | None = None
        self._since = 0.0

    def asked(self) -> bool:
        """True if a stop was requested."""
        return self._signal is not None

    @property
    def interrupted(self) -> bool:
        """True after Ctrl-C, which the exit code shows; SIGTERM is a clean end."""
        return self._signal == signal.SIGINT

    def listen(self) -> None:
        """Install the handlers. Call it again after a library that installs its own."""
        for number in SIGNALS:
            signal.signal(number, self._came)

    def _came(self, number: int, _frame: FrameType | None) -> None:
        if self._signal is None:
            self._signal, self._since = number, clock.monotonic()
            said = f"Stopping: {self.waits_for}\n".encode() if self.waits_for else b""
            with suppress(OSError):
                # Not through Python's streams: the signal may have come in the middle of a write to them.
                os.write(STDERR, said)
        elif clock.monotonic() - self._since > ONE_STOP:
            # A second request: end at once.
            raise KeyboardInterrupt


@contextmanager
def stop_signals(waits_for: str = "") -> Iterator[Stop]:
    """Within the block, Ctrl-C and SIGTERM request a stop instead of ending the process, and `waits_for` is printed to
    stderr at once. A second signal, a second later or more, raises KeyboardInterrupt.
    """
    before: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}
    stop = Stop(waits_for)
    stop.listen()
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
