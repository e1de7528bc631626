"""`headgate dead-letters …`: the records that could not become rows. Reads only; fences nobody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from headgate.checkpoints.streams import list_streams
from headgate.cli import storage_option
from headgate.cli.output import Column, Output, output_option
from headgate.errors import InvalidInput
from headgate.streaming.dead_letters import read_dead_letters
from headgate.table import Table, open_table

SHOWN_BYTES = 120
"""Of a key or value. Enough to recognise a record; --full shows all of it."""

_COLUMNS = (
    Column("stream", 12),
    Column("topic", 16),
    Column("partition", 9, right=True),
    Column("offset", 10, right=True),
    Column("error", 50),
    Column("key", 12),
    Column("value", 0),
)


@click.group()
def dead_letters() -> None:
    """Read the records that could not become rows. Nothing here writes."""


@dead_letters.command(
    epilog="""\b
Example:
  headgate dead-letters show ./orders --limit 20
  headgate dead-letters show ./orders --stream orders --full --output json
"""
)
@click.argument("uri", metavar="TABLE")
@click.option("--stream", metavar="NAME", help="Only of this stream.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N of them.")
@click.option("--full", is_flag=True, help=f"Keys and values whole, not only their first {SHOWN_BYTES} bytes.")
@storage_option
@output_option
def show(
    uri: str, stream: str | None, limit: int | None, full: bool, storage_options: dict[str, str], output: Output
) -> None:
    """List the committed dead letters of a TABLE: where each record was, why it was refused, and its bytes.

    Bytes that are not UTF-8 are shown as escapes.
    """
    table = open_table(uri, storage_options or None)
    known = list_streams(table.home.records)
    if stream is not None and stream not in known:
        raise InvalidInput(
            f"The table has no stream {stream!r}.",
            table=table.uri,
            advice=f"its streams are: {', '.join(known) or 'none yet'}",
        )
    output.rows(_COLUMNS, _letters(table, stream, limit, None if full else SHOWN_BYTES))


def _letters(table: Table, stream: str | None, limit: int | None, most: int | None) -> Iterator[dict[str, Any]]:
    left = limit
    for rows in read_dead_letters(table.home, stream):
        chosen = rows if left is None else rows.slice(0, left)
        for row in chosen.to_pylist():
            value = row["value"]
            yield {
                **row,
                "key": _escaped(row["key"], most),
                "value": _escaped(value, most),
                "value_bytes": None if value is None else len(value),
            }
        if left is not None:
            left -= chosen.num_rows
            if left == 0:
                return


def _escaped(data: bytes | None, most: int | None) -> str | None:
    if data is None:
        return None
    cut = most is not None and len(data) > most
    return data[:most].decode(errors="backslashreplace") + ("…" if cut else "")
