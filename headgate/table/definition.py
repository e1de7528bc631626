"""Comparing a table with a definition: columns, key, sharding, full text and WAL store."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headgate.connectors.lance.datasets import TextIndex
from headgate.connectors.objects import ObjectStore
from headgate.errors import InvalidInput
from headgate.search.build.text import TEXT, other_parameter
from headgate.shards.sharding import Sharding
from headgate.shards.vectors import VectorColumn
from headgate.table.table import Table


def check_same(
    table: Table,
    schema: pa.Schema,
    primary_key: tuple[str, ...],
    sharding: Sharding,
    indexes: Sequence[TextIndex],
    vectors: Sequence[VectorColumn],
    wal_uri: str | None,
) -> None:
    """Raises InvalidInput with the first difference. Of an index, only the given parameters are compared."""
    full_text = sorted(index.column for index in indexes)
    for what, there, asked in (
        ("primary key", list(table.primary_key), list(primary_key)),
        ("list of columns", columns_text(table.schema), columns_text(schema)),
        ("sharding", table.sharding, sharding),
        ("full text", sorted(table.full_text), full_text),
        ("list of vector columns", vectors_text(table.vectors), vectors_text(vectors)),
        ("WAL store", table.record.wal_uri, wal_uri),
    ):
        if there != asked:
            raise InvalidInput(
                f"The table at {table.uri} exists already with another {what}: {there}, not {asked}.",
                table_id=str(table.table_id),
                advice="pass its own definition, open it with open_table, or choose another URI; nothing was written",
            )
    for index in indexes:
        check_parameters(table.home.store, index)


def check_parameters(store: ObjectStore, index: TextIndex) -> None:
    """Raises InvalidInput if the base's index has other parameters than given."""
    if not index.parameters:
        return
    difference = other_parameter(TEXT.look(store, index.column, index.name), index.parameters)
    if difference is not None:
        raise InvalidInput(
            difference, table=store.uri, advice="leave the parameters out, or change them with `headgate index build`"
        )


def vectors_text(vectors: Sequence[VectorColumn]) -> str:
    """Vector columns for error messages."""
    return ", ".join(sorted(f"{one.column} {one.metric} {one.index}" for one in vectors)) or "none"


def columns_text(schema: pa.Schema) -> str:
    """Columns for error messages."""
    return ", ".join(f"{column.name} {column.type}{'' if column.nullable else ' not null'}" for column in schema)
