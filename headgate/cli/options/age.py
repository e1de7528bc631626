"""Minimum age of deleted files; `--nothing-else-runs` allows less than readers need."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeVar

import click

from headgate.checkpoints.gc.collect import MIN_AGE
from headgate.errors import InvalidInput

F = TypeVar("F")


def nothing_else_runs_option(command: F) -> F:
    """The command gets `nothing_else_runs`, for `check_age`."""
    help = "Allow an age below 1h. Use it only if no writer, reader, stream or job of the table runs."
    return click.option("--nothing-else-runs", is_flag=True, help=help)(command)  # type: ignore[type-var]


def check_age(option: str, age: timedelta, nothing_else_runs: bool) -> None:
    """Raises InvalidInput for an age at which a reader may still need a deleted file."""
    if age < MIN_AGE and not nothing_else_runs:
        raise InvalidInput(
            f"A running reader may still need files replaced less than {MIN_AGE} ago.",
            advice=f"use {option} 1h or more, or add --nothing-else-runs; nothing was written",
        )
