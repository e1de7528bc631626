"""Formats values for pages. Every text from outside passes `clean`, in every template."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import pyarrow as pa
from markupsafe import Markup, escape

from headgate import clock
from headgate.console.watch.verdict import span

MOST_SHOWN = 2_000
"""Characters of one text on a page; a cell shows fewer."""

# Control characters, invisible ones and those that change the direction of text: shown as escapes.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)


def clean(value: Any) -> Any:
    """A value for a template: text with hidden characters as escapes, and not longer than MOST_SHOWN."""
    if value is None:
        return "–"
    if isinstance(value, Markup):
        return value
    if isinstance(value, str):
        return cut(value, MOST_SHOWN)
    return value


def cut(text: str, most: int) -> str:
    """The text with hidden characters as escapes; of a longer one the beginning, and its length."""
    shown = _HIDDEN.sub(lambda found: f"\\u{ord(found.group()):04x}", text[:most])
    return shown if len(text) <= most else f"{shown}… ({len(text):,} characters)"


def whole(text: str) -> Markup:
    """A text that a person typed, for the field that it came from: not cut, with hidden characters as escapes."""
    return escape(cut(text, len(text)))


def number(value: float | int | None) -> str:
    """A number with separators; small ones with a fraction."""
    if value is None:
        return "–"
    if isinstance(value, int) or value >= 100:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if value else "0"


def size(nbytes: float | None) -> str:
    """Bytes with a unit."""
    if nbytes is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(nbytes) < 1024 or unit == "TiB":
            return f"{nbytes:,.0f} {unit}" if unit == "B" or nbytes >= 100 else f"{nbytes:,.1f} {unit}"
        nbytes /= 1024
    raise AssertionError


def seconds(value: float | None) -> str:
    """A duration: 12 ms, 1.4 s, 3 min."""
    if value is None:
        return "–"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 10 else span(value)


def ago(value: datetime | str | float | None) -> str:
    """How long ago that was."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return "–"
    if value is None:
        return "–"
    passed = value if isinstance(value, float) else (clock.now() - value).total_seconds()
    if passed < 0:
        return f"in {span(-passed)}"
    return "just now" if passed < 2 else f"{span(passed)} ago"


def instant(value: datetime | str | None) -> str:
    """A time in UTC, to the second."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return "–"
    return "–" if value is None else f"{value:%Y-%m-%d %H:%M:%S} UTC"


def plural(count: int, one: str, many: str | None = None) -> str:
    """3 rows, 1 row."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def cell(value: Any, most: int = 160) -> str:
    """A value of a row, short enough for a table."""
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return raw(value, most)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list) and len(value) > 6:
        return cut(f"[{', '.join(cell(one, 20) for one in value[:6])}, … {len(value)} values]", most)
    return cut(str(value), most)


def raw(data: bytes | None, most: int) -> str:
    """Bytes as text if they are UTF-8, else in hex."""
    if data is None:
        return "null"
    try:
        # The cut may split a character.
        text = data[:most].decode() if len(data) <= most else data[:most].decode(errors="ignore")
    except UnicodeDecodeError:
        shown = data[: most // 3].hex(" ")
        return shown if len(data) <= most // 3 else f"{shown} … ({len(data):,} bytes)"
    shown = cut(text, most)
    return shown if len(data) <= most else f"{shown}… ({len(data):,} bytes)"


def is_right(kind: pa.DataType) -> bool:
    """True if a column has numbers, which are aligned to the right."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


FILTERS = {
    "number": number,
    "size": size,
    "seconds": seconds,
    "ago": ago,
    "instant": instant,
    "plural": plural,
    "cell": cell,
    "raw": raw,
    "span": span,
    "cut": cut,
    "whole": whole,
}
