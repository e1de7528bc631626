"""`--kafka-option KEY=VALUE`, for commands that read topics."""

from __future__ import annotations

from typing import TypeVar

from headgate.cli import key_value_option

F = TypeVar("F")


def kafka_option(command: F) -> F:
    """Options of Spark's Kafka source, many times; the command gets a dict as its argument `kafka_options`."""
    return key_value_option(
        "--kafka-option",
        "kafka_options",
        "An option of Spark's Kafka source (startingOffsets, kafka.security.protocol …); may be repeated.",
    )(command)
