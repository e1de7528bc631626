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


def stages_on(progress: Progress, what: str) -> Callable[[str, int, int], None]:
    """Draws one bar per stage that it is told of."""
    tasks: dict[str, TaskID] = {}

    def report(stage: str, done: int, total: int) -> None:
        if stage not in tasks:
            tasks[stage] = progress.add_task(f"{what}: {stage.replace('_', ' ')}", total=total)
        progress.update(tasks[stage], completed=done, total=total)

    return report
