"""Arguments and options of every command about a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from headgate.cli.options.pairs import key_value_option

F = TypeVar("F")


def storage_option(command: F) -> F:
    """`--storage-option KEY=VALUE`, repeatable; the command gets a dict as its argument `storage_options`."""
    return key_value_option(
        "--storage-option",
        "storage_options",
        "An S3 option under Lance's name (region, endpoint, access_key_id …); prefix wal. for a separate WAL "
        "store; may be repeated.",
    )(command)


def table_argument(command: F) -> F:
    """The table's URI; the command gets it as its argument `uri`."""
    return click.argument("uri", metavar="TABLE")(command)  # type: ignore[type-var]


def apply_option(help: str = "Do it. Without --apply nothing is written.") -> Callable[[F], F]:
    """`--apply`, for commands that otherwise only show what they would do."""
    return click.option("--apply", is_flag=True, help=help)  # type: ignore[return-value]
