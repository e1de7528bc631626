"""Progress of long calls, on stderr: bars on a terminal, one line in a notebook, nothing in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TextIO, TypeAlias

from headgate import clock

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with the stage, the amount done, and the total; 0 means that the total is unknown."""

NOTEBOOK_SECONDS = 0.2
"""Seconds between two updates in a notebook: each is a message to the browser."""


@contextmanager
def shown(given: Progress | None, what: str = "") -> Iterator[Progress]:
    """The progress function of a long call: the caller's, with the stages' names, else one that draws for the user."""
    if given is not None:
        yield given
    elif is_notebook(sys.stderr):
        line = _Line(sys.stderr)
        yield partial(_titled, line.show, what)
        line.clear()
    else:
        with bars() as drawn:
            yield stages_on(drawn, what)


def bars() -> Bars:
    """Progress bars on a terminal, as a context manager."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    return Bars(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def stages_on(drawn: Bars, what: str = "") -> Progress:
    """Draws one bar per stage; stages of one kind ("entries of …") share theirs."""
    tasks: dict[str, TaskID] = {}

    def report(stage: str, done: int, total: int) -> None:
        kind, said = stage.partition(" of ")[0], _title(what, stage)
        if kind not in tasks:
            tasks[kind] = drawn.add_task(said)
        drawn.update(tasks[kind], description=said, completed=done, total=total or None)

    return report


def is_notebook(stream: TextIO) -> bool:
    """True if output goes to a Jupyter cell: its kernel replaces the stream."""
    return type(stream).__module__.partition(".")[0] == "ipykernel"


class _Line:
    """One line, overwritten with carriage returns, which notebooks understand without widgets."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._width = 0
        self._next = 0.0

    def show(self, stage: str, done: int, total: int) -> None:
        now = clock.monotonic()
        if now < self._next and done != total:
            return
        self._next = now + NOTEBOOK_SECONDS
        self._write(f"{stage} {done:,}/{total:,}" if total else f"{stage} {done:,}")

    def clear(self) -> None:
        if self._width:
            self._write("")

    def _write(self, text: str) -> None:
        self._stream.write(f"\r{text.ljust(self._width)}" if text else f"\r{' ' * self._width}\r")
        self._stream.flush()
        self._width = max(self._width, len(text))


def _titled(report: Progress, what: str, stage: str, done: int, total: int) -> None:
    report(_title(what, stage), done, total)


def _title(what: str, stage: str) -> str:
    return ": ".join(filter(None, (what, stage.replace("_", " "))))
