"""Full-text options: columns, and parameters of their indexes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from headgate.errors import InvalidInput

F = TypeVar("F")


def parameter_option(help: str) -> Callable[[F], F]:
    """`--parameter NAME=VALUE`, repeatable; the command gets texts for `parse_parameters` as `parameters`."""
    return click.option("--parameter", "parameters", multiple=True, metavar="NAME=VALUE", help=help)  # type: ignore[return-value]


def full_text_option(prefix: str = "") -> Callable[[F], F]:
    """`--full-text COLUMN`, repeatable, and `--parameter`; for `full_text_of`. `prefix` says when they apply."""

    def with_both(command: F) -> F:
        parameter = parameter_option(
            f"{prefix}A parameter of Lance's full-text index, such as with_position=true or "
            "base_tokenizer=ngram; may be repeated."
        )
        column = click.option(
            "--full-text",
            multiple=True,
            metavar="COLUMN",
            help=f"{prefix}A column for full-text search; may be repeated.",
        )
        return column(parameter(command))  # type: ignore[type-var]

    return with_both


def full_text_of(columns: Sequence[str], parameters: tuple[str, ...]) -> Mapping[str, Mapping[str, Any]]:
    """The `full_text` argument of `create_table`. Raises InvalidInput for parameters without a column."""
    if parameters and not columns:
        raise InvalidInput("--parameter needs --full-text.", advice="name a column with --full-text")
    if len(set(columns)) != len(columns):
        raise InvalidInput(f"--full-text must name each column once, got {', '.join(columns)}.")
    return dict.fromkeys(columns, parse_parameters(parameters))


def parse_parameters(given: tuple[str, ...]) -> dict[str, Any]:
    """Parse NAME=VALUE: true, false and numbers are converted, anything else stays text. Raises InvalidInput."""
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InvalidInput(f"A parameter must have the form NAME=VALUE, got {text!r}.")
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
        found[name] = parsed if isinstance(parsed, bool | int | list) else value
    return found
