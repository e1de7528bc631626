"""Findings for people: one block each. They are sentences, and the columns of a table would fold them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headgate.checkpoints.fsck.findings import Finding


def tell_findings(findings: Iterable[Finding]) -> None:
    """Print them, in the order they were found."""
    console = Console(highlight=False, markup=False)
    for one in findings:
        style = "bold red" if one.is_error else "bold yellow"
        grid = Table.grid(padding=(0, 1))
        grid.add_column(style="bold")
        grid.add_column(overflow="fold")
        for name, text in (("at", one.place), ("lost", one.lost), ("do", one.do)):
            grid.add_row(f"  {name}", Text(_printable(text)))
        console.print(Text.assemble((f"{one.severity} {one.code}: ", style), _printable(one.what)), soft_wrap=True)
        console.print(grid)


def _printable(text: str) -> str:
    """Names come from outside: what would move the cursor is shown as an escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
