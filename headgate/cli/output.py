"""Output of commands. A command computes values; an Output prints them as text or JSON.

Values are mappings with plain contents. Both outputs print every value: `record` prints one thing, `rows` a stream of
things as they arrive, `error` a failure on stderr.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headgate.cli.errors import exit_code
from headgate.errors import HeadgateError
from headgate.text import printable

AN_ID = 36
"""Longest word that a table never wraps: a UUID."""

Value = Mapping[str, Any]
Command = TypeVar("Command")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a stream of rows in text. `width` is fixed because later rows are unknown; 0 for the last."""

    key: str
    width: int
    right: bool = False
    text: Callable[[Any], str] | None = None
    """How to print a value that is neither number nor text."""

    @property
    def head(self) -> str:
        return self._placed(self.key)

    def cell(self, row: Value) -> str:
        """The row's value, padded; never cut."""
        item = row.get(self.key)
        return self._placed(printable(self.text(item)) if self.text and item else _text(item))

    def _placed(self, text: str) -> str:
        return text.rjust(self.width) if self.right else text.ljust(self.width)


@dataclass(frozen=True, slots=True)
class Marked:
    """Text with highlighted parts on a terminal; elsewhere plain text."""

    pieces: Sequence[tuple[str, bool]]

    def __str__(self) -> str:
        return "".join(piece for piece, _ in self.pieces)


class Output(ABC):
    """Where a command prints results and errors."""

    @abstractmethod
    def record(self, title: str, value: Value) -> None:
        """Print one thing with all its fields."""

    @abstractmethod
    def rows(self, columns: Sequence[Column], rows: Iterable[Value]) -> None:
        """Print many things, each as soon as it arrives. Text shows the columns, JSON every field."""

    @abstractmethod
    def error(self, error: HeadgateError) -> None:
        """Print a failure to stderr: what happened, where, and what to do next."""


class TextOutput(Output):
    """For people. Colours only on a terminal."""

    def record(self, title: str, value: Value) -> None:
        """One line per field; lists of things as separate tables."""
        table = Table(show_header=False)
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        inner = {key: item for key, item in value.items() if _is_table(item)}
        for key, item in value.items():
            if key not in inner:
                table.add_row(key, Text(_text(item)))
        console = _console()
        # Not the table's own title: that would be folded to the width of the table.
        console.print(Text(printable(title), style="italic"), soft_wrap=True)
        console.print(table)
        for key, items in inner.items():
            # Not cropped: a line that is too long wraps on a terminal, and a number is never cut.
            console.print(_table(key, items), crop=False)

    def table(self, rows: Sequence[Value], names: Sequence[str]) -> None:
        """Rows of a user's table, under its column names."""
        _console().print(_table(None, rows, names), crop=False)

    def rows(self, columns: Sequence[Column], rows: Iterable[Value]) -> None:
        """Aligned lines under one header. Not a rich table, which needs all rows first."""
        console = _console()
        head = "  ".join(column.head for column in columns)
        console.print(Text(head.rstrip(), style="bold"), soft_wrap=True)
        for row in rows:
            line = "  ".join(column.cell(row) for column in columns)
            console.print(Text(line.rstrip()), soft_wrap=True)

    def error(self, error: HeadgateError) -> None:
        """One sentence with the fields of the error, and the next step."""
        facts = ", ".join(f"{key}={value}" for key, value in error.fields().items())
        console = _console(stderr=True)
        console.print(
            Text.assemble(("Error: ", "bold red"), printable(error.what), printable(f" [{facts}]") if facts else ""),
            soft_wrap=True,
        )
        next_step = printable(error.advice or error.next_step)
        console.print(
            Text.assemble(("Next: ", "bold"), next_step, "" if next_step.endswith(".") else "."), soft_wrap=True
        )


class JsonOutput(Output):
    """For machines: one object, or one per line."""

    def record(self, title: str, value: Value) -> None:
        """One object. The title is not printed; the fields contain the same facts."""
        click.echo(json.dumps(value, default=str, indent=2))

    def rows(self, columns: Sequence[Column], rows: Iterable[Value]) -> None:
        """One object per line, flushed one by one, so that a pipe gets each at once."""
        for row in rows:
            click.echo(json.dumps(row, default=str))

    def error(self, error: HeadgateError) -> None:
        """One object on one line of stderr."""
        value = {
            "error": type(error).__name__,
            "what": error.what,
            "where": error.fields(),
            "next": error.advice or error.next_step,
            "exit_code": exit_code(type(error)),
        }
        click.echo(json.dumps(value, default=str), err=True)


OUTPUTS: Mapping[str, type[Output]] = {"text": TextOutput, "json": JsonOutput}


def output_option(command: Command) -> Command:
    """`--output text|json`, for every command; it gets an Output as its argument `output`."""
    option = click.option(
        "--output",
        type=click.Choice(list(OUTPUTS)),
        default="text",
        show_default=True,
        callback=lambda _context, _option, name: OUTPUTS[name](),
        help="text is for people, json for programs: rows as one object per line, errors on stderr.",
    )
    return option(command)  # type: ignore[type-var]


def output_asked_for(arguments: Sequence[str]) -> Output:
    """The output format in the arguments, even if they are invalid."""
    pairs = zip(arguments, [*arguments[1:], ""], strict=True)
    named = any(one == "--output=json" or (one, two) == ("--output", "json") for one, two in pairs)
    return JsonOutput() if named else TextOutput()


def not_applied(title: str, done: str = "written") -> str:
    """The title of a command that was called without --apply."""
    return f"{title} (nothing was {done}; add --apply to do it)"


def _console(*, stderr: bool = False) -> Console:
    """Looks up the stream each time: it may have been replaced since import."""
    return Console(stderr=stderr, highlight=False, markup=False)


def _is_table(item: object) -> bool:
    return isinstance(item, Sequence) and bool(item) and all(isinstance(part, Mapping) for part in item)


def _table(title: str | None, items: Sequence[Value], names: Sequence[str] = ()) -> Table:
    keys = list(dict.fromkeys([*names, *(key for item in items for key in item)]))
    table = Table(title=title, title_justify="left")
    for key in keys:
        texts = [_text(item.get(key)) for item in items]
        numbers = all(isinstance(item.get(key), int | float | None) for item in items)
        # A number, a time or an id that is folded is another one.
        whole = numbers or all(len(text) <= AN_ID and (" " not in text or text[0].isdigit()) for text in texts)
        table.add_column(
            Text(printable(key)),
            justify="right" if numbers else "left",
            overflow="fold",
            min_width=max(map(len, texts), default=0) if whole else None,
        )
    for item in items:
        table.add_row(*(_cell(item.get(key)) for key in keys))
    return table


def _cell(item: Any) -> Text:
    if isinstance(item, Marked):
        return Text.assemble(*((printable(piece), "bold yellow" if on else "") for piece, on in item.pieces))
    return Text(_text(item))


def _text(item: Any) -> str:
    """A value on one line."""
    if item is None or item in ((), []):
        return "-"
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, Mapping):
        return " ".join(f"{key}={_text(value)}" for key, value in item.items())
    if isinstance(item, list | tuple):
        return ", ".join(_text(part) for part in item)
    return printable(str(item))
