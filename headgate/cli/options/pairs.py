"""Options of the form KEY=VALUE, which may be repeated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import click

F = TypeVar("F")


def key_value_option(name: str, argument: str, what: str) -> Callable[[F], F]:
    """An option KEY=VALUE that may be repeated; the command gets a dict."""

    def decorate(command: F) -> F:
        option = click.option(name, argument, multiple=True, metavar="KEY=VALUE", callback=_key_values, help=what)
        return option(command)  # type: ignore[type-var]

    return decorate


def _key_values(context: click.Context, option: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """A value may be a credential, so the message does not repeat it."""
    pairs = [text.partition("=") for text in given]
    if any(not key or not equals for key, equals, _ in pairs):
        raise click.BadParameter("must have the form KEY=VALUE.", context, option)
    return {key: value for key, _, value in pairs}
