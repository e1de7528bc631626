"""How every benchmark shows its numbers: a table for people, JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table

output_option = click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="A table, or JSON."
)


def show(title: str, rows: Sequence[Mapping[str, Any]], output: str) -> None:
    """Print the rows; the columns are the keys of all rows in the order they first appear."""
    if output == "json":
        click.echo(json.dumps({"title": title, "rows": [dict(row) for row in rows]}, indent=2))
        return
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(title=title)
    for column in columns:
        numeric = all(isinstance(row.get(column, 0), int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    Console().print(table)


def show_all(tables: Sequence[tuple[str, Sequence[Mapping[str, Any]]]], output: str) -> None:
    """Several tables one after the other; in JSON they are one list. Empty ones are left out."""
    there = [(title, rows) for title, rows in tables if rows]
    if output == "json":
        click.echo(
            json.dumps([{"title": title, "rows": [dict(row) for row in rows]} for title, rows in there], indent=2)
        )
        return
    for title, rows in there:
        show(title, rows, output)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
    return "" if value is None else str(value)
