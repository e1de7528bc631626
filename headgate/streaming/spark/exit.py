"""Delays the exit of a process while threads of a stream are in native calls.

At exit, Python ends a daemon thread when it returns from a native call. The frames of Lance and pyarrow do not survive
that: the process aborts, and its exit code is lost (seen with CPython 3.11, pylance 14, pyarrow 26). Such threads are
Spark's, which call the sink, and those of maintenance. Their work may be cut off, as by any crash, but the exit waits
for the running native call.
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
"""Maximum seconds that an exit waits."""

_PAUSE = 0.005
_SWITCH = 0.1
_CALLERS = ("headgate", "lance", "pyarrow")
"""Packages that make native calls: a thread is in one if its innermost frame belongs to them."""
_CALLING_BACK = "lance"
"""The package whose native code calls back into Python: its frame may be an outer one."""


@cache
def exit_after_native_calls() -> None:
    """Make this process exit only when none of its threads is in such a call, or after LIMIT. Idempotent."""
    atexit.register(_wait)


def _wait() -> None:
    until = clock.monotonic() + LIMIT
    # With a long switch interval, no thread takes the GIL from this one between its last check and its return.
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
    """The source files of a thread's frames, innermost first."""
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back
