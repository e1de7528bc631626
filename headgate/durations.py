"""Durations as people write them: "10 minutes", "90s", "7d", "600"."""

from __future__ import annotations

import re
from datetime import timedelta

ALLOWED = "a duration such as 600 (seconds), 90s, 10 minutes or 7d"

_LENGTH = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", re.IGNORECASE)
_SECONDS = {
    "": 1.0,
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
    **dict.fromkeys(("w", "week", "weeks"), 604_800.0),
}


def timedelta_of(length: str | float | timedelta) -> timedelta:
    """The duration as a timedelta. Raises ValueError as `seconds_of` does, and for more than a timedelta can hold."""
    try:
        return timedelta(seconds=seconds_of(length))
    except OverflowError:
        raise ValueError(f"{length!r:.80} is not {ALLOWED}") from None


def seconds_of(length: str | float | timedelta) -> float:
    """The duration in seconds. Raises ValueError for text that is no duration, and for negative ones."""
    if isinstance(length, timedelta):
        seconds = length.total_seconds()
    elif isinstance(length, str):
        match = _LENGTH.fullmatch(length.strip())
        if match is None or match[2].lower() not in _SECONDS:
            raise ValueError(f"{length[:80]!r} is not {ALLOWED}")
        seconds = float(match[1]) * _SECONDS[match[2].lower()]
    elif isinstance(length, bool):
        raise ValueError(f"{length!r} is not {ALLOWED}")
    else:
        seconds = float(length)
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{length!r} is not {ALLOWED}")
    return seconds
