"""Options that take a length of time: `--min-age 2w`, `--expires 90m`."""

from __future__ import annotations

from datetime import timedelta

from headgate.durations import ALLOWED, seconds_of
from headgate.errors import InvalidInput


def duration(option: str, text: str) -> timedelta:
    """The length of time that an option was given. Raises InvalidInput, which names the option."""
    try:
        return timedelta(seconds=seconds_of(text))
    except (ValueError, OverflowError):
        raise InvalidInput(f"{option} must be {ALLOWED}, got {text[:40]!r}.") from None
