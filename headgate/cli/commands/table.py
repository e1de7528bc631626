"""`headgate table`: create a table, show it, change its columns, and read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import pyarrow as pa

from headgate.cli.commands.rows import count, get, scan
from headgate.cli.options.sharding import EXAMPLES, SHARDING
from headgate.cli.options.table import storage_option, table_argument
from headgate.cli.options.text import full_text_of, full_text_option
from headgate.cli.options.vectors import vector_option, vectors_of
from headgate.cli.output import Output, output_option
from headgate.errors import InvalidInput, NotFound
from headgate.shards.rows.schema import RowSchema
from headgate.shards.sharding import Sharding, by_partition
from headgate.shards.vectors import Vector
from headgate.table.create import create_table, with_vectors
from headgate.table.ddl import arrow_schema
from headgate.table.table import Table, open_table

_OF_A_SHARD = ("name", "id", "claimed", "owner")
"""Fields that fit into 80 columns; `headgate shard show` has the rest."""


@click.group()
def table() -> None:
    """Create tables, show them, change their columns, and read their rows."""


for _command in (scan, get, count):
    table.add_command(_command)


@table.command(
    epilog="""\b
Example:
  headgate table create ./orders --schema "id bigint not null, note string, amount double" \\
      --primary-key id --sharding "bucket(id, 4)" --full-text note --parameter with_position=true
  headgate table create ./reviews --schema "id bigint not null, review string, stars int, embedding array<float>" \\
      --primary-key id --full-text review --vector embedding=cosine,384
"""
)
@table_argument
@click.option("--schema", required=True, metavar="DDL", help='Columns in Spark\'s DDL: "id bigint, note string".')
@click.option("--primary-key", multiple=True, metavar="COLUMN", help="A key column; may be repeated.")
@click.option(
    "--sharding",
    type=SHARDING,
    default="single()",
    show_default=True,
    metavar="HOW",
    help=f"How rows are spread over shards: {EXAMPLES}.",
)
@full_text_option()
@vector_option()
@click.option("--wal-uri", metavar="URI", help="A separate store for the write-ahead logs.")
@click.option("--exist-ok", is_flag=True, help="Accept an existing table if it has the same definition.")
@storage_option
@output_option
def create(
    uri: str,
    schema: str,
    primary_key: tuple[str, ...],
    sharding: Sharding,
    full_text: tuple[str, ...],
    parameters: tuple[str, ...],
    vectors: tuple[str, ...],
    wal_uri: str | None,
    exist_ok: bool,
    storage_options: dict[str, str],
    output: Output,
) -> None:
    """Create TABLE. After a crash, run the same command again to complete it. Fails if the table exists, unless
    --exist-ok is given.
    """
    made = create_table(
        uri,
        schema,
        primary_key=primary_key,
        sharding=sharding,
        full_text=full_text_of(full_text, parameters),
        vector=vectors_of(vectors),
        wal_uri=wal_uri,
        storage_options=storage_options,
        exist_ok=exist_ok,
    )
    output.record(f"Created {made.uri}", _described(made))


@table.command(
    epilog="""\b
Example:
  headgate table show ./orders
  headgate table show s3://bucket/orders --storage-option region=eu-west-1 --output json
"""
)
@table_argument
@storage_option
@output_option
def show(uri: str, storage_options: dict[str, str], output: Output) -> None:
    """Show the columns, sharding and shards of TABLE. Writes nothing."""
    found = open_table(uri, storage_options=storage_options)
    shards = [{key: getattr(shard, key) for key in _OF_A_SHARD} for shard in found.shards()]
    output.record(found.uri, {**_described(found), "shards": shards})


@table.command(
    "add-column",
    short_help="Add a nullable column.",
    epilog="""\b
Example:
  headgate table add-column ./orders "channel string"
""",
)
@table_argument
@click.argument("column", metavar="DDL")
@storage_option
@output_option
def add_column(uri: str, column: str, storage_options: dict[str, str], output: Output) -> None:
    """Add a nullable column to TABLE, in Spark's DDL: "channel string". Streams may run."""
    changed = open_table(uri, storage_options=storage_options).add_column(column)
    output.record(f"Added the column to {changed.uri}", _described(changed))


@table.command(
    "rename-column",
    epilog="""\b
Example:
  headgate table rename-column ./orders channel source
""",
)
@table_argument
@click.argument("name")
@click.argument("to")
@storage_option
@output_option
def rename_column(uri: str, name: str, to: str, storage_options: dict[str, str], output: Output) -> None:
    """Rename the column NAME of TABLE; its values stay. Streams may run."""
    changed = open_table(uri, storage_options=storage_options).rename_column(name, to)
    output.record(f"Renamed {name} to {to} in {changed.uri}", _described(changed))


@table.command(
    "drop-column",
    epilog="""\b
Example:
  headgate table drop-column ./orders source
""",
)
@table_argument
@click.argument("name")
@storage_option
@output_option
def drop_column(uri: str, name: str, storage_options: dict[str, str], output: Output) -> None:
    """Drop the column NAME of TABLE and its values. Streams may run. THIS CANNOT BE UNDONE."""
    changed = open_table(uri, storage_options=storage_options).drop_column(name)
    output.record(f"Dropped {name} from {changed.uri}", _described(changed))


def _described(table: Table) -> dict[str, Any]:
    return {
        "uri": table.uri,
        "table_id": str(table.table_id),
        "sharding": str(table.sharding),
        "primary_key": list(table.primary_key),
        "full_text": list(table.full_text),
        "vectors": plain_vectors(table),
        "wal_uri": table.record.wal_uri,
        "columns": [_column(table, column) for column in table.schema],
    }


def _column(table: Table, column: pa.Field) -> dict[str, Any]:
    return {
        "name": column.name,
        "type": str(column.type),
        "nullable": column.nullable,
        "key": column.name in table.primary_key,
        "full_text": column.name in table.full_text,
    }


def plain_vectors(table: Table) -> dict[str, Any]:
    """The vector columns of a table with their metrics."""
    return {one.column: {"metric": one.metric, "index": one.index} for one in table.vectors}


def open_or_create(
    uri: str,
    storage_options: Mapping[str, str] | None,
    ddl: str | None,
    primary_key: tuple[str, ...],
    sharding: Sharding | None,
    full_text: Mapping[str, Mapping[str, Any]],
    vector: Mapping[str, Vector],
) -> Table:
    """The existing table, or with --create a new one, so that the same command starts and restarts."""
    if ddl is None:
        if primary_key or sharding is not None or full_text or vector:
            raise InvalidInput("--primary-key, --sharding, --full-text and --vector need --create.")
        return open_table(uri, storage_options=storage_options)
    wanted = arrow_schema(ddl)
    try:
        table = open_table(uri, storage_options=storage_options)
    except NotFound:
        how = sharding or by_partition()
        return create_table(
            uri,
            wanted,
            primary_key=primary_key,
            sharding=how,
            full_text=full_text,
            vector=vector,
            storage_options=storage_options,
        )
    there = [(field.name, field.type) for field in table.schema]
    wanted, vectors = with_vectors(wanted, vector)
    asked = [(field.name, field.type) for field in RowSchema.of(wanted).logical]
    other_text = full_text and set(full_text) != set(table.full_text)
    other_vectors = vector and set(vectors) != set(table.vectors)
    if there != asked or set(primary_key) != set(table.primary_key) or other_text or other_vectors:
        raise InvalidInput(
            "The table exists with other columns, another key, other full-text or vector columns than --create gives.",
            table=table.uri,
            advice=f"leave --create out; `headgate table show {table.uri}` shows what it has",
        )
    return table
