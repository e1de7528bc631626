"""`--ui`, for commands that run for a while anyway."""

from __future__ import annotations

from typing import TypeVar

import click

from headgate.console import PORT

F = TypeVar("F")


def ui_option(command: F) -> F:
    """`--ui [PORT]`; the command gets it as its argument `ui_port`, None without it."""
    return click.option(  # type: ignore[type-var]
        "--ui",
        "ui_port",
        is_flag=False,
        flag_value=str(PORT),
        type=click.IntRange(0, 65535),
        metavar="[PORT]",
        help=f"Show it in the browser meanwhile, at this port; without one {PORT}, with 0 any free one.",
    )(command)


def ui_host_option(command: F) -> F:
    """`--ui-host`; the command gets it as its argument `ui_host`."""
    return click.option(  # type: ignore[type-var]
        "--ui-host",
        default="127.0.0.1",
        show_default=True,
        metavar="ADDRESS",
        help="Address the console binds to; elsewhere than here it needs HEADGATE_UI_TOKEN.",
    )(command)
