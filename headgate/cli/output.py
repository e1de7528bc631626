"""What commands print. A command computes values; an Output prints them, as text or as JSON.

Values are mappings with plain contents. Both outputs print every value they are given:
`record` prints one thing, `rows` a stream of things as they come, `error` a failure on stderr.
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
"""Characters of the longest word that a table never folds: a UUID's."""

Value = Mapping[str, Any]
Command = TypeVar("Command")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a stream of rows in text. `width` is fixed, since later rows are not known yet; 0 for the last."""

    key: str
    width: int
    right: bool = False
    text: Callable[[Any], str] | None = None
    """How to say a value that is more than a number or a text."""

    @property
    def head(self) -> str:
        """Its name, placed."""
        return self._placed(self.key)

    def cell(self, row: Value) -> str:
        """The row's value, placed; never cut."""
        item = row.get(self.key)
        return self._placed(printable(self.text(item)) if self.text and item else _text(item))

    def _placed(self, text: str) -> str:
        return text.rjust(self.width) if self.right else text.ljust(self.width)


@dataclass(frozen=True, slots=True)
class Marked:
    """A text with pieces that stand out on a terminal; everywhere else, the text."""

    pieces: Sequence[tuple[str, bool]]

    def __str__(self) -> str:
        return "".join(piece for piece, _ in self.pieces)


class Output(ABC):
    """Where a command's results and errors go."""

    @abstractmethod
    def record(self, title: str, value: Value) -> None:
        """One thing with all its fields."""

    @abstractmethod
    def rows(self, columns: Sequence[Column], rows: Iterable[Value]) -> None:
        """Many things, each as soon as it is there. Text shows the columns, JSON every field."""

    @abstractmethod
    def error(self, error: HeadgateError) -> None:
        """A failure: what happened, where, and what to do next. To stderr."""


class TextOutput(Output):
    """For people. Colours only on a terminal."""

    def record(self, title: str, value: Value) -> None:
        """Names and values below each other; lists of things as tables of their own."""
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
        """Rows of somebody's table, under the names of its columns."""
        _console().print(_table(None, rows, names), crop=False)

    def rows(self, columns: Sequence[Column], rows: Iterable[Value]) -> None:
        """Aligned lines under one header. Not a rich table: that would have to know all rows first."""
        console = _console()
        head = "  ".join(column.head for column in columns)
        console.print(Text(head.rstrip(), style="bold"), soft_wrap=True)
        for row in rows:
            line = "  ".join(column.cell(row) for column in columns)
            console.print(Text(line.rstrip()), soft_wrap=True)

    def error(self, error: HeadgateError) -> None:
        """One sentence with its facts, and the next step."""
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
        """One object. The title is for people; what it says is in the fields."""
        click.echo(json.dumps(value, default=str, indent=2))

    def rows(self, columns: Sequence[Column], rows: Iterable[Value]) -> None:
        """One object per line, flushed one by one, so that a pipe sees each at once."""
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
        help="For people, or for machines (rows: one object per line; errors too, on stderr).",
    )
    return option(command)  # type: ignore[type-var]


def output_asked_for(arguments: Sequence[str]) -> Output:
    """The output that the arguments name, also where they cannot be parsed."""
    pairs = zip(arguments, [*arguments[1:], ""], strict=True)
    named = any(one == "--output=json" or (one, two) == ("--output", "json") for one, two in pairs)
    return JsonOutput() if named else TextOutput()


def not_applied(title: str, done: str = "written") -> str:
    """The title of what a command would do: it was called without --apply."""
    return f"{title} (nothing was {done}; --apply does it)"


def _console(*, stderr: bool = False) -> Console:
    """Looks up the stream anew: it may have been replaced since this module was imported."""
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
    """A value in one line."""
    if item is None or item in ((), []):
        return "-"
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, Mapping):
        return " ".join(f"{key}={_text(value)}" for key, value in item.items())
    if isinstance(item, list | tuple):
        return ", ".join(_text(part) for part in item)
    return printable(str(item))
