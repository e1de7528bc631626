"""What every command about a table takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from headgate.cli.options.pairs import key_value_option

F = TypeVar("F")


def storage_option(command: F) -> F:
    """`--storage-option KEY=VALUE`, many times; the command gets a dict as its argument `storage_options`."""
    return key_value_option(
        "--storage-option",
        "storage_options",
        "An option of S3 under pylance's name (region, endpoint, access_key_id …), for a separate WAL store with wal. "
        "before it; may be repeated.",
    )(command)


def table_argument(command: F) -> F:
    """The table's URI; the command gets it as its argument `uri`."""
    return click.argument("uri", metavar="TABLE")(command)  # type: ignore[type-var]


def apply_option(help: str = "Do it. Without this nothing is written.") -> Callable[[F], F]:
    """`--apply`, for commands that only say what they would do without it."""
    return click.option("--apply", is_flag=True, help=help)  # type: ignore[return-value]
