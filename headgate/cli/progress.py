"""Progress bars: on a terminal, on stderr; in a pipe nothing."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)


def bars() -> Progress:
    """A context manager; what it draws is gone when it ends."""
    console = Console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def stages_on(progress: Progress, what: str = "") -> Callable[[str, int, int], None]:
    """Draws one bar per stage that is reported; those of one kind ("entries of …") share theirs. A total of 0 is not
    known yet.
    """
    tasks: dict[str, TaskID] = {}

    def report(stage: str, done: int, total: int) -> None:
        kind, said = stage.partition(" of ")[0], ": ".join(filter(None, (what, stage.replace("_", " "))))
        if kind not in tasks:
            tasks[kind] = progress.add_task(said)
        progress.update(tasks[kind], description=said, completed=done, total=total or None)

    return report
