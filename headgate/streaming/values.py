"""Kinds of option values: description, parsing from text, and checking Python values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headgate.durations import ALLOWED, seconds_of
from headgate.sizes import ALLOWED as SIZES
from headgate.sizes import bytes_of

NEVER = "never"
"""The value that turns an interval off."""

_BYTES = re.compile(r"([0-9]+)\s*(?:([kmgt])i?)?b?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ValueKind:
    """A kind of option values."""

    allowed: str
    """Description for messages."""
    parse: Callable[[str], Any]
    """Parses text. Raises ValueError."""
    accepts: Callable[[Any], bool]
    """Checks a Python value."""


def _parse_flag(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError
    return text.strip().lower() == "true"


def _parse_group(text: str) -> str:
    if not text.strip():
        raise ValueError
    return text


def _whole(allowed: str, least: int, most: float = math.inf) -> ValueKind:
    def accepts(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    def parse(text: str) -> int:
        if not text.strip().isdecimal() or not accepts(int(text)):
            raise ValueError
        return int(text)

    return ValueKind(allowed, parse, accepts)


def interval(value: Any) -> float:
    """The interval in seconds; infinite for never."""
    never = value == math.inf or (isinstance(value, str) and value.strip().lower() == NEVER)
    return math.inf if never else seconds_of(value)


def _is_interval(value: Any) -> bool:
    try:
        interval(value)
    except (TypeError, ValueError):
        return False
    return True


def _period(value: Any) -> float:
    """The interval in seconds, which must be positive."""
    seconds = interval(value)
    if not seconds > 0:
        raise ValueError
    return seconds


def one_of(*known: str) -> ValueKind:
    def parse(text: str) -> str:
        if text not in known:
            raise ValueError
        return text

    return ValueKind(" or ".join(known), parse, lambda value: value in known)


TEXT = ValueKind("text", str, lambda value: isinstance(value, str))
GROUP = ValueKind(
    "the name of a consumer group", _parse_group, lambda value: isinstance(value, str) and bool(value.strip())
)
FLAG = ValueKind("true or false", _parse_flag, lambda value: isinstance(value, bool))
SIZE = ValueKind(
    SIZES,
    bytes_of,
    lambda value: isinstance(value, int) and not isinstance(value, bool) and value > 0,
)
PORT = _whole("a port number, or 0", 0, (1 << 16) - 1)
COUNT = _whole("a whole number, at least 1", 1)
INTERVAL = ValueKind(f"{ALLOWED}, or {NEVER!r}", interval, _is_interval)
PERIOD = ValueKind(
    f"{ALLOWED} above zero, or {NEVER!r}", _period, lambda value: _is_interval(value) and interval(value) > 0
)
LENGTH = ValueKind(ALLOWED, seconds_of, lambda value: _is_interval(value) and interval(value) < math.inf)
MAPPING = ValueKind("a mapping of names to values", str, lambda value: isinstance(value, Mapping))
