"""Signals as a wish to stop: a stream that is asked to end finishes or abandons its batch first."""

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
"""Seconds in which signals are one wish to stop: `timeout` sends one to the process and one to its group."""


class Stop:
    """True if somebody wants the command to end, and by which signal."""

    def __init__(self, waits_for: str = "") -> None:
        self.waits_for = waits_for
        """What the first signal is answered with; may change while the command runs."""
        self._signal: int | None = None
        self._since = 0.0

    def asked(self) -> bool:
        """True if a signal came."""
        return self._signal is not None

    @property
    def interrupted(self) -> bool:
        """True if it was Ctrl-C, which is told by the exit code; SIGTERM is a clean end."""
        return self._signal == signal.SIGINT

    def listen(self) -> None:
        """Take the signals. Again after a library that takes them too."""
        for number in SIGNALS:
            signal.signal(number, self._came)

    def _came(self, number: int, _frame: FrameType | None) -> None:
        if self._signal is None:
            self._signal, self._since = number, clock.monotonic()
            said = f"Stopping: {self.waits_for}\n".encode() if self.waits_for else b""
            with suppress(OSError):
                # Past the streams of Python: the signal may have come in the middle of a line to them.
                os.write(STDERR, said)
        elif clock.monotonic() - self._since > ONE_STOP:
            # Asked again: no more patience.
            raise KeyboardInterrupt


@contextmanager
def stop_signals(waits_for: str = "") -> Iterator[Stop]:
    """Ctrl-C and SIGTERM ask the command to end instead of ending it, until the block is left, and it says at once on
    stderr what it waits for. A second one, a second later or more, ends it by KeyboardInterrupt.
    """
    before: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}
    stop = Stop(waits_for)
    stop.listen()
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
