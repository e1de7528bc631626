"""Findings for people: one block each, because table columns would wrap their sentences."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headgate.checkpoints.fsck.findings import Finding
from headgate.text import printable


def tell_findings(findings: Iterable[Finding]) -> None:
    console = Console(highlight=False, markup=False)
    for one in findings:
        style = "bold red" if one.is_error else "bold yellow"
        grid = Table.grid(padding=(0, 1))
        grid.add_column(style="bold")
        grid.add_column(overflow="fold")
        for name, text in (("at", one.place), ("lost", one.lost), ("do", one.do)):
            grid.add_row(f"  {name}", Text(printable(text)))
        console.print(Text.assemble((f"{one.severity} {one.code}: ", style), printable(one.what)), soft_wrap=True)
        console.print(grid)
