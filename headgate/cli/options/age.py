"""How old what is deleted must be: `--nothing-else-runs` allows less than is safe for readers."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeVar

import click

from headgate.checkpoints.gc.collect import MIN_AGE
from headgate.errors import InvalidInput

F = TypeVar("F")


def nothing_else_runs_option(command: F) -> F:
    """The command gets `nothing_else_runs`, for `check_age`."""
    help = "Allow an age below 1h: no writer, reader, stream or job of the table runs."
    return click.option("--nothing-else-runs", is_flag=True, help=help)(command)  # type: ignore[type-var]


def check_age(option: str, age: timedelta, nothing_else_runs: bool) -> None:
    """Raises InvalidInput for an age at which somebody may still read what is deleted."""
    if age < MIN_AGE and not nothing_else_runs:
        raise InvalidInput(
            f"Somebody who reads now may need what was replaced less than {MIN_AGE} ago.",
            advice=f"use {option} 1h or more, or say --nothing-else-runs; nothing was written",
        )
