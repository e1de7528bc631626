"""`--decode …`: how record values are decoded into rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import click

from headgate.errors import InvalidInput
from headgate.streaming.decode.contract import Decoder, TableDecoder
from headgate.streaming.decode.json.coerce import COERCIONS
from headgate.streaming.decode.kinds import DEFAULT, KINDS
from headgate.streaming.decode.metadata import KAFKA, parse_metadata, with_metadata
from headgate.table.table import Table

F = TypeVar("F")

_WITH_REGISTRY = " or ".join(kind.name for kind in KINDS.values() if kind.takes_registry)


def decoder_options(command: F) -> F:
    """The command gets `decode_as`, `registry`, `registry_auth`, `coerce` and `metadata`; see `decoder_for`."""
    metadata = click.option(
        "--metadata",
        multiple=True,
        metavar="[COLUMN=]FIELD",
        help=f"A column filled by Kafka: {', '.join(KAFKA.names)}; may be repeated.",
    )
    command = _with_options(
        command, DEFAULT.name, "Format of the record values. raw keeps each value in one binary column."
    )
    coerce = click.option(
        "--coerce",
        multiple=True,
        type=click.Choice(list(COERCIONS)),
        help="With --decode json: accept values of another type; may be repeated.",
    )
    return metadata(coerce(command))  # type: ignore[type-var]


def recorded_decoder_options(command: F) -> F:
    """The same for a command that takes the decoder from the streams' own records; `decode_as` is None by default."""
    return _with_options(
        command, None, "Format of the record values, if the stream did not record it (old streams, custom decoders)."
    )


def _with_options(command: F, default: str | None, help: str) -> F:
    options: list[Any] = [
        click.option(
            "--decode",
            "decode_as",
            type=click.Choice(list(KINDS)),
            default=default,
            show_default=default is not None,
            help=help,
        ),
        click.option("--registry", metavar="URL", help=f"With --decode {_WITH_REGISTRY}: URL of the schema registry."),
        click.option(
            "--registry-auth",
            envvar="HEADGATE_REGISTRY_AUTH",
            metavar="USER:PASSWORD",
            help="Registry credentials. Better set HEADGATE_REGISTRY_AUTH in the environment.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def following_decoder(
    table: Table,
    decode_as: str,
    registry: str | None,
    registry_auth: str | None,
    metadata: Sequence[str],
    coerce: Sequence[str],
) -> Decoder | TableDecoder:
    """The same for a stream: its columns are the table's, also after somebody changed them (R22)."""
    decoder = decoder_for(table, decode_as, registry, registry_auth, metadata, coerce)
    if not KINDS[decode_as].follows_table:
        return decoder
    return TableDecoder(
        partial(
            decoder_for,
            decode_as=decode_as,
            registry=registry,
            registry_auth=registry_auth,
            metadata=metadata,
            coerce=coerce,
        )
    )


def decoder_for(
    table: Table,
    decode_as: str,
    registry: str | None,
    registry_auth: str | None,
    metadata: Sequence[str] = (),
    coerce: Sequence[str] = (),
) -> Decoder:
    """The decoder that makes rows of the table. Raises InvalidInput."""
    kind = KINDS[decode_as]
    if registry is not None and not kind.takes_registry:
        raise InvalidInput(f"--registry needs --decode {_WITH_REGISTRY}.")
    return with_metadata(
        table.schema, parse_metadata(metadata), lambda columns: kind.made(columns, registry, registry_auth, coerce)
    )
