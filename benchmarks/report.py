"""How every benchmark shows its numbers: a table for people, JSON for machines, and a result file for the docs. Long
tests write their result files here too (`tests/support/evidence.py`).

A result file says on which machine, when, how busy and by which command it was measured. `make figures` renders them.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("pyspark", "pylance", "pyarrow", "confluent-kafka", "delta-spark")

Rows = Sequence[Mapping[str, Any]]

_folder: Path | None = RESULTS
_load = os.getloadavg()[0]
"""Before this process has done anything: how quiet the machine was."""


def _set_folder(context: click.Context, parameter: click.Parameter, value: str) -> None:
    global _folder
    _folder = Path(value) if value else None


def output_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--output`, and where the result file goes."""
    shown = click.option(
        "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="A table, or JSON."
    )
    kept = click.option(
        "--results",
        default=str(RESULTS),
        expose_value=False,
        is_eager=True,
        callback=_set_folder,
        help="Folder of the result file; empty: none. Default: benchmarks/results.",
    )
    return shown(kept(command))


def show(title: str, rows: Rows, output: str) -> None:
    """Print one table and keep it; the columns are the keys of all rows in the order they first appear."""
    show_all([(title, rows)], output)


def show_all(tables: Sequence[tuple[str, Rows]], output: str) -> None:
    """Several tables one after the other; in JSON they are one list. Empty ones are left out."""
    there: list[dict[str, Any]] = [
        {"title": title, "rows": [dict(row) for row in rows]} for title, rows in tables if rows
    ]
    if _folder is not None:
        name = Path(sys.argv[0]).stem
        arguments = [word for word in sys.argv[1:] if not word.startswith("--results")]
        keep(_folder, name, shlex.join(["python", "-m", f"benchmarks.{name}", *arguments]), there, load=_load)
    if output == "json":
        click.echo(json.dumps(there[0] if len(there) == 1 else there, indent=2))
        return
    for one in there:
        _print(str(one["title"]), one["rows"])


def keep(folder: Path, name: str, command: str, tables: Sequence[Mapping[str, Any]], *, load: float) -> None:
    """Write the result file; `load` is that of the machine before the command began."""
    result = {
        "command": command,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": machine(),
        "load before": round(load, 2),
        "tables": tables,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """What a figure is of: processor, cores, memory, system and the versions that count."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory GiB": round(memory / 2**30),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        **{name: found for name in PACKAGES if (found := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _print(title: str, rows: Rows) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(title=title)
    for column in columns:
        numeric = all(isinstance(row.get(column, 0), int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(cell(row.get(column)) for column in columns))
    Console().print(table)


def cell(value: object) -> str:
    """A value as people read it."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else str(value)
