"""`--kafka-option KEY=VALUE`, for commands that read topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import click

F = TypeVar("F")


def kafka_option(command: F) -> F:
    """Options of Spark's Kafka source, many times; the command gets a dict as its argument `kafka_options`."""
    option = click.option(
        "--kafka-option",
        "kafka_options",
        multiple=True,
        metavar="KEY=VALUE",
        callback=_key_values,
        help="An option of Spark's Kafka source (startingOffsets, kafka.security.protocol …); may be repeated.",
    )
    return option(command)  # type: ignore[type-var]


def _key_values(context: click.Context, option: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """A value may be a credential: the message does not repeat what was given."""
    pairs = [text.partition("=") for text in given]
    if any(not key or not equals for key, equals, _ in pairs):
        raise click.BadParameter("it has the form KEY=VALUE.", context, option)
    return {key: value for key, _, value in pairs}
