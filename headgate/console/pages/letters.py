"""Dead letters, the newest first, read one page at a time however many there are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from headgate.checkpoints.log.dead_letters import DeadEntry, newest_entries
from headgate.checkpoints.log.state import LogState
from headgate.console.pages import words
from headgate.console.watch.watcher import WatchedTable
from headgate.errors import NotFound
from headgate.table.table import Table

LETTERS_SHOWN = 25
COUNTED_ENTRIES, COUNTED = 60, 5_000
"""Maximum entries and letters, the newest, whose reasons are counted."""
RAW_SHOWN, MORE_SHOWN = 160, 4_000
"""Bytes shown of a value, and of an expanded one."""

_VARIES = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\d[\d.,]*")
"""Parts of a reason that differ from record to record."""


@dataclass(frozen=True)
class Letter:
    """One record that did not become a row."""

    topic: str
    partition: int
    offset: int
    error: str
    key: str
    value: str
    more: str
    """More of the value; empty if it was shown completely."""
    hexadecimal: str
    nbytes: int | None
    at: datetime | None
    replayed: bool


def letters_page(table: WatchedTable, asked: Mapping[str, str]) -> dict[str, Any]:
    """One page of a stream's dead letters. Raises NotFound if the stream does not exist."""
    names = sorted(table.now.streams)
    name = asked.get("stream") or next(iter(names), None)
    values: dict[str, Any] = {
        "streams": names,
        "stream": name,
        "letters": [],
        "next": None,
        "reasons": [],
        "counted": 0,
    }
    if name is None:
        return values
    with table.reading() as reader:
        state = next((one for one in reader.cache.logs(reader.home) if one.stream == name), None)
        if state is None:
            raise NotFound(f"The table has no stream {words.cut(name, 80)!r}.", advice="go back to the overview")
        after = asked.get("after", "")
        letters, following = _letters(reader, state, after)
        values |= {"letters": letters, "next": following, "after": after}
        if letters and not after:
            values |= _reasons(reader, state)
    return values


def _letters(table: Table, state: LogState, after: str) -> tuple[list[Letter], str | None]:
    """Letters from a place on, and the place where the next page begins; None if these were the last."""
    start, row = _place(after)
    found: list[Letter] = []
    for entry in newest_entries(table.home, state, start):
        room = LETTERS_SHOWN - len(found)
        if room:
            found += _of(entry, row, room)
        if row + room < entry.rows.num_rows:
            return found, f"{entry.position}.{row + room}.{entry.log}"
        row = 0
    return found, None


def _place(after: str) -> tuple[tuple[str, int] | None, int]:
    """An entry, and the number of a letter in it."""
    position, _, rest = after.partition(".")
    row, _, log = rest.partition(".")
    if not (position.isdecimal() and row.isdecimal() and log and len(after) < 1_000):
        return None, 0
    return (log, int(position[:19])), int(row[:9])


def _of(entry: DeadEntry, first: int, most: int) -> list[Letter]:
    rows = entry.rows.slice(first, most).to_pylist()
    return [_letter(row, bool(waiting)) for row, waiting in zip(rows, entry.waiting[first:], strict=False)]


def _letter(row: Mapping[str, Any], waiting: bool) -> Letter:
    value = row["value"]
    size = None if value is None else len(value)
    return Letter(
        row["topic"],
        row["partition"],
        row["offset"],
        row["error"],
        words.raw(row["key"], RAW_SHOWN),
        words.raw(value, RAW_SHOWN),
        words.raw(value, MORE_SHOWN) if size is not None and size > RAW_SHOWN else "",
        "" if value is None else value[:512].hex(" "),
        size,
        row["timestamp"],
        not waiting,
    )


def _reasons(table: Table, state: LogState) -> dict[str, Any]:
    """How often each reason occurs among the newest letters."""
    counts: Counter[str] = Counter()
    for number, entry in enumerate(newest_entries(table.home, state)):
        if number >= COUNTED_ENTRIES or counts.total() >= COUNTED:
            break
        counts.update(_VARIES.sub("…", one or "") for one in entry.rows.column("error").to_pylist())
    total = counts.total()
    return {"reasons": [(why, count, count / total) for why, count in counts.most_common(8)], "counted": total}
