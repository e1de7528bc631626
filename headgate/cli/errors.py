"""Exit codes by class of error. The only table; `--help` shows it too."""

from __future__ import annotations

from dataclasses import dataclass

import click

from headgate.errors import (
    DataLoss,
    Fenced,
    HeadgateError,
    InvalidInput,
    NotFound,
    PermissionDenied,
    Poisoned,
    StoreFull,
    Transient,
)

INTERRUPTED = 130
"""What a shell reports for a command ended by Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Exit:
    """An exit code, the class of errors it stands for (and subclasses without a row), and its meaning."""

    code: int
    kind: type[HeadgateError]
    meaning: str


EXITS = (
    Exit(1, HeadgateError, "any other failure, or the output pipe was closed"),
    Exit(2, InvalidInput, "invalid arguments; nothing was changed"),
    Exit(3, NotFound, "table, shard or object not found"),
    Exit(4, Fenced, "another writer owns the shard"),
    Exit(5, Transient, "the store is unreachable or busy; try again"),
    Exit(6, DataLoss, "something durable is missing or damaged"),
    Exit(7, Poisoned, "the outcome of a write is unknown; run the command again"),
    Exit(8, PermissionDenied, "the store rejected the credentials"),
    Exit(9, StoreFull, "no space or quota left"),
)

_CODES = {row.kind: row.code for row in EXITS}


def exit_code(kind: type[HeadgateError]) -> int:
    """The code of the nearest class in the table."""
    return next(_CODES[ancestor] for ancestor in kind.__mro__ if ancestor in _CODES)


def exit_table() -> str:
    """The table as `--help` shows it."""
    rows = [
        (0, "done"),
        *((row.code, row.meaning) for row in EXITS),
        (INTERRUPTED, "Ctrl-C, or a second signal during a stop"),
    ]
    return "\n".join(f"  {code:>3}  {meaning}" for code, meaning in rows)


def usage_error(error: click.ClickException) -> InvalidInput:
    """A click usage error as a HeadgateError that names the --help to read."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "headgate"
    sentence = error.format_message()
    return InvalidInput(sentence if sentence.endswith((".", "?")) else f"{sentence}.", advice=f"see `{path} --help`")
