"""Checks and applies filters: SQL text, or an Arrow expression, which pylance passes on as Substrait.

Promises:
1. Only Lance evaluates a filter, and unchanged. Base, SSTables and rows in memory accept and reject the same filters.
2. A text must be one expression. Lance parses one from the start of a text and ignores the rest: in `1=1) or (1=1` it
   ignores the `or`, in `id = 1 limit 1` the limit.
3. A filter must name only columns of the table. Lance's own, such as `_rowid`, differ from layer to layer.
4. The message has Lance's reason, and Lance's error is the cause.
5. A text that nests too deeply is refused. Lance would overflow its stack, and end the process.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headgate.connectors.lance.datasets import dataset_in_memory
from headgate.connectors.objects.secrets import scrubbed, without_secrets
from headgate.errors import InvalidInput

Filter: TypeAlias = str | pc.Expression

_ENCLOSED = ("({}\n)", "CAST({}\n AS BOOLEAN)")
"""A text that is valid in both is one expression: after a shorter expression, the first would need `)` next and the
second `AS`. The line break ends a comment."""

_OWN_COLUMNS = re.compile(r"_row(?:id|addr|offset|_created_at_version|_last_updated_at_version)", re.IGNORECASE)
"""Columns that every Lance scan knows."""

_ON_A_ROW = "Error applying filter expression"
"""In Lance's error if an expression fails on a value, such as a division by zero; the class does not show it."""

_SHOWN = 300
"""Maximum characters of a filter, and of a reason, in a message."""

_PLACE = re.compile(r",? ?/\S+\.rs:\d+:\d+")
"""A location in Lance's source."""


_LEVELS = 200
"""Levels that a filter may nest. Lance 14 ends the process at 500 (`is true is true …`), 800 (casts) or more."""

_TOKEN = re.compile(
    r"""(?P<text>'(?:[^']|'')*'|"[^"]*"|`[^`]*`|--[^\n]*|/\*.*?\*/)"""
    r"|(?P<open>[(\[])|(?P<close>[)\]])|(?P<flat>,|\band\b|\bor\b)"
    r"|(?P<deeper>[-+~!]|[*/%|&^<>=:]+|\b(?:is|not|between|i?like|in)\b)",
    re.IGNORECASE | re.DOTALL,
)
"""`flat`: chains of these stay flat in Lance's plan, however long."""


def check_filter(schema: pa.Schema, filter: Filter) -> None:
    """Check a filter before the first row is read. Raises InvalidInput."""
    if not isinstance(filter, str | pc.Expression):
        raise InvalidInput(f"A filter must be SQL text or a pyarrow.compute.Expression, got {type(filter).__name__}.")
    if isinstance(filter, str) and levels_of(filter) > _LEVELS:
        raise InvalidInput(
            f"The filter {_shown(filter)} nests more than {_LEVELS} levels deep.",
            advice="join conditions with AND or OR, or list values with IN; such chains may have any length",
        )
    empty = dataset_in_memory(schema.empty_table())
    try:
        empty.to_table(filter=filter)
        if isinstance(filter, str) and _OWN_COLUMNS.search(filter):
            # Lance plans an expression for a new column over the table's columns only.
            empty.add_columns({f"c{uuid.uuid4().hex}": filter})
    except (ValueError, OSError, RuntimeError) as error:
        raise InvalidInput(f"Lance rejects the filter {_shown(filter)}: {_reason(error)}") from without_secrets(error)
    if isinstance(filter, str) and not all(_is_planned(empty, text.format(filter)) for text in _ENCLOSED):
        raise InvalidInput(
            f"The filter {_shown(filter)} must be one expression.",
            advice="give one condition with balanced brackets, without order by, limit or a semicolon; nothing was "
            "read",
        )


def levels_of(filter: str) -> int:
    """How deeply a text nests, at most: its brackets, and the operators that apply to one another. Counts no further
    than it must.
    """
    operators, ranges, most = [0], 0, 0
    for token in _TOKEN.finditer(filter):
        match token.lastgroup:
            case "open":
                operators.append(0)
            case "close" if len(operators) > 1:
                operators.pop()
            case "deeper":
                operators[-1] += 1
                ranges += token.group().lower() == "between"
            case "flat" if token.group().lower() == "and" and ranges:
                ranges -= 1
            case "flat":
                operators[-1] = 0
        most = max(most, sum(operators) + len(operators) - 1)
        if most > _LEVELS:
            break
    return most


def filtered(rows: pa.Table, filter: Filter | None) -> pa.Table:
    """The rows in memory that pass the filter, which Lance evaluates. The caller has checked the filter."""
    if filter is None or not rows.num_rows:
        return rows
    with applying(filter):
        return dataset_in_memory(rows).to_table(filter=filter)


@contextmanager
def applying(filter: Filter | None) -> Iterator[None]:
    """Raises InvalidInput if the filter fails on a value of some row."""
    try:
        yield
    except ValueError as error:
        if filter is None or _ON_A_ROW not in str(error):
            raise
        raise InvalidInput(f"The filter {_shown(filter)} fails on a row: {_reason(error)}") from without_secrets(error)


def _is_planned(dataset: Any, filter: str) -> bool:
    try:
        dataset.to_table(filter=filter)
    except (ValueError, OSError):
        return False
    return True


def _shown(filter: Filter) -> str:
    return _clipped(repr(filter) if isinstance(filter, str) else str(filter))


def _reason(error: BaseException) -> str:
    text = _PLACE.sub("", scrubbed(str(error))).removeprefix("Invalid user input: ")
    return _clipped(" ".join(text.split())).rstrip(".") + "."


def _clipped(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
