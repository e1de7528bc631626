"""How a process ends while threads of a stream still work.

Python ends a daemon thread where it comes back from a native call to an interpreter that is being torn down, and the
frames of Lance and of pyarrow do not bear that: the process aborts, and its exit code is lost (seen with CPython 3.11,
pylance 14, pyarrow 26). Such threads are Spark's, which call the sink, and those of maintenance. Their work may be cut
off, as by any crash; the native call that runs is waited for.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterator
from functools import cache
from types import FrameType

from headgate import clock

LIMIT = 30.0
"""Seconds that an exit waits at most."""

_PAUSE = 0.005
_SWITCH = 0.1
_CALLERS = ("headgate", "lance", "pyarrow")
"""Whose Python calls natively, as a thread's innermost frame."""
_CALLING_BACK = "lance"
"""Who reads from Python what it writes: its frame may be an outer one."""


@cache
def exit_after_native_calls() -> None:
    """From now on this process ends when none of its threads is in such a call."""
    atexit.register(_wait)


def _wait() -> None:
    until = clock.monotonic() + LIMIT
    # Once this thread has Python's lock again, nobody takes it from it before it has looked and returned.
    sys.setswitchinterval(_SWITCH)
    callers, calling_back = _folders(*_CALLERS), _folders(_CALLING_BACK)
    while True:
        clock.sleep(_PAUSE)
        if clock.monotonic() > until or not _is_calling(callers, calling_back):
            return


def _folders(*packages: str) -> tuple[str, ...]:
    loaded = (sys.modules.get(name) for name in packages)
    return tuple(os.path.dirname(str(module.__file__)) + os.sep for module in loaded if module is not None)


def _is_calling(callers: tuple[str, ...], calling_back: tuple[str, ...]) -> bool:
    for thread, frame in sys._current_frames().items():
        files = list(_files(frame)) if thread != threading.get_ident() else []
        if any(file.startswith(calling_back) for file in files) or any(file.startswith(callers) for file in files[:1]):
            return True
    return False


def _files(frame: FrameType | None) -> Iterator[str]:
    """Where a thread's code is, innermost first."""
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back
