"""Byte sizes as people write them: 268435456, 256m, 256 MiB."""

from __future__ import annotations

import re

ALLOWED = "a number of bytes above zero, such as 268435456 or 256m"

_SIZE = re.compile(r"([0-9]+)\s*(?:([kmgt])i?)?b?", re.IGNORECASE)


def bytes_of(text: str) -> int:
    """The size in bytes. Raises ValueError for text that is not ALLOWED."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise ValueError(f"{text!r} is not {ALLOWED}")
    return int(match[1]) << 10 * (" kmgt".index(match[2].lower()) if match[2] else 0)
