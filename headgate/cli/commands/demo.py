"""`headgate demo`: the whole pipeline on this machine."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from rich.progress import Progress, TaskID

from headgate import clock
from headgate.cli.errors import exit_code
from headgate.cli.options.console import ui_option
from headgate.cli.output import Output, TextOutput, output_option
from headgate.connectors.extras import needs
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.console.watch.places import TablePlace
from headgate.dev.demo.orders import TOPIC, WORD
from headgate.errors import DataLoss
from headgate.progress import bars
from headgate.streaming.signals import stop_signals
from headgate.streaming.verify.compare import Difference
from headgate.table.table import Table

if TYPE_CHECKING:
    from headgate.dev.demo.demo import Result

POLL_SECONDS = 0.2


@click.command(
    epilog="""\b
Example:
  headgate demo
  headgate demo --rows 20000
  headgate demo --ui
  headgate demo --clean
"""
)
@click.option(
    "--rows", type=click.IntRange(min=1_000), default=200_000, show_default=True, help="Number of records to produce."
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("headgate-demo"),
    show_default=True,
    help="Directory for the table `orders`; a table of an earlier demo is replaced.",
)
@click.option("--clean", "is_clean", is_flag=True, help="Only remove the table that a demo left in DIR.")
@ui_option
@output_option
def demo(rows: int, directory: Path, is_clean: bool, ui_port: int | None, output: Output) -> None:
    """Start Kafka, produce orders, stream them into a table, kill the driver with kill -9, start it again, and compare
    every row with the produced records. Then search, take a checkpoint, merge all rows into the base, and check that
    results stay the same.

    Leaves nothing running. The table stays, so that you can try commands on it. Exits 6 if a row is lost, duplicated or
    wrong. With --ui you can watch the kill and the recovery; on a terminal the console stays until Ctrl-C.
    """
    with needs():
        from headgate.dev.demo.demo import clean, run_demo
    if is_clean:
        removed = clean(directory)
        title = f"Removed the demo's table from {directory}" if removed else f"No demo table found in {directory}"
        _tell(output, title, {"dir": str(directory), "removed": removed})
        return
    with ExitStack() as stack:
        watch = None if ui_port is None else _watched(stack, ui_port)
        with _term_as_interrupt(), bars() as progress:
            result = run_demo(rows, _Shown(progress, output), directory, watch)
        if isinstance(output, TextOutput) and result.holds:
            click.echo(_last_lines(result, directory / TOPIC))
        else:
            title = "Every row is there, once" if result.holds else "FAILED: rows are lost, duplicated or wrong"
            value = {**_summary(result), "table": result.table}
            output.record(title, value | ({} if isinstance(output, TextOutput) else {"batches": list(result.batches)}))
        if watch is not None and sys.stdin.isatty() and sys.stdout.isatty():
            click.echo("The console stays until Ctrl-C.")
            with stop_signals() as stop:
                while not stop.asked():
                    clock.sleep(POLL_SECONDS)
    click.get_current_context().exit(0 if result.holds else exit_code(DataLoss))


def _watched(stack: ExitStack, port: int) -> Callable[[Table, ConsumerConfig], None]:
    """Opens the console of the demo's table; the stack closes it. Raises InvalidInput where the port is taken."""
    with needs():
        from headgate.console.server import Address, open_console
    address = Address.of(port=port)

    def watch(table: Table, consumer: ConsumerConfig) -> None:
        console = open_console([TablePlace(table.uri)], address, consumer=lambda _: consumer)
        stack.callback(console.close)
        click.echo(f"The console is at {console.url}", err=True)

    return watch


def _tell(output: Output, title: str, value: dict[str, Any]) -> None:
    if isinstance(output, TextOutput):
        click.echo(f"{title}.")
    else:
        output.record(title, value)


def _last_lines(result: Result, table: Path) -> str:
    """What was proved, and what to try on the table."""
    off = _summary(result)
    return (
        f"Every row is there, once: {off['lost']} lost, {off['duplicates']} duplicates, {off['wrong']} wrong; "
        f"{off['dead_letters']} of {off['dead_letters_expected']} bad records kept as dead letters.\n"
        f"The table is {table}; `headgate demo --clean` removes it. Try:\n"
        f"  headgate table scan {table} --limit 5\n"
        f"  headgate search {table} {WORD} --show order_id,note -k 3\n"
        f"  headgate status {table}"
    )


def _summary(result: Result) -> dict[str, Any]:
    return {
        "holds": result.holds,
        "records": result.records,
        "updates": result.updates,
        "deletes": result.deletes,
        "rows": result.rows,
        "duplicates": result.difference.duplicates + result.verified.difference.duplicates,
        "lost": result.difference.lost + result.verified.difference.lost,
        "wrong": result.difference.wrong + result.verified.difference.wrong,
        "dead_letters": result.dead_letters,
        "dead_letters_expected": result.dead_letters_expected,
        "plain_lance_rows": result.after.plain_rows,
        "search_hits": result.after.hits,
        "search_hits_expected": result.after.hits_expected,
        "search_ms": round(result.after.search_ms, 1),
        "checkpoint_rows": result.after.checkpoint_rows,
        "killed_after_batch": result.killed_after_batch,
        "entries_left_by_the_killed_driver": result.dead_entries,
        "seconds_to_recover": round(result.seconds_to_recover, 1),
        "rows_per_second": round(result.rows_per_second),
        "seconds": round(result.seconds, 1),
        **({} if result.holds else {"produced_and_table": _counts(result.difference), "topic_and_table": _off(result)}),
    }


def _counts(difference: Difference) -> dict[str, int]:
    return {"duplicates": difference.duplicates, "lost": difference.lost, "wrong": difference.wrong}


def _off(result: Result) -> dict[str, Any]:
    report = result.verified
    return {
        **_counts(report.difference),
        "dead_letters_lost": report.dead_letters_lost,
        "dead_letters_extra": report.dead_letters_extra,
        "examples": [str(example) for example in report.examples],
    }


class _Shown:
    """Progress: bars on a terminal and one line per step; with JSON only the bars."""

    def __init__(self, progress: Progress, output: Output) -> None:
        self._progress = progress
        self._lines = isinstance(output, TextOutput)
        self._task: TaskID | None = None

    def step(self, what: str, total: int | None = None) -> None:
        self._task = self._progress.add_task(what, total=total)

    def moved(self, done: int) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=done)

    def done(self, result: str) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None
        if self._lines:
            click.echo(f"{result[:1].upper()}{result[1:]}.")


@contextmanager
def _term_as_interrupt() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does, so that it cleans up."""

    def came(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, came)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
