"""`headgate table scan|get|count`: read rows at one instant, fresh ones included. Reads only."""

from __future__ import annotations

import csv
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, TypeAlias, TypeVar

import click
import pyarrow as pa
from pyarrow.csv import CSVWriter
from pyarrow.parquet import ParquetWriter

from headgate.cli.options.table import storage_option, table_argument
from headgate.cli.output import TextOutput
from headgate.errors import InvalidInput
from headgate.table.table import Table, open_table

F = TypeVar("F")
Write: TypeAlias = Callable[[pa.RecordBatch], object]

SHOWN = 20
"""Default number of rows with --output table."""

_columns_option = click.option("--columns", metavar="A,B", help="Columns to read, separated by commas. Default: all.")
_filter_option = click.option("--filter", metavar="SQL", help='A condition in Lance\'s SQL, such as "amount > 100".')
_checkpoint_option = click.option("--checkpoint", metavar="NAME", help="Read this checkpoint of the table.")


@contextmanager
def _json_rows(file: BinaryIO, schema: pa.Schema) -> Iterator[Write]:
    yield lambda batch: file.writelines(
        json.dumps(row, default=_plain, ensure_ascii=False).encode() + b"\n" for row in batch.to_pylist()
    )


@contextmanager
def _csv(file: BinaryIO, schema: pa.Schema) -> Iterator[Write]:
    with CSVWriter(file, schema) as writer:
        yield writer.write_batch


@contextmanager
def _parquet(file: BinaryIO, schema: pa.Schema) -> Iterator[Write]:
    with ParquetWriter(file, schema) as writer:
        yield writer.write_batch


_FORMS: dict[str, Callable[[BinaryIO, pa.Schema], AbstractContextManager[Write]]] = {
    "json": _json_rows,
    "csv": _csv,
    "parquet": _parquet,
}


def _form_options(command: F) -> F:
    """`--output` and `--file`, for commands whose result is rows."""
    file = click.option(
        "--file",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="PATH",
        help="Write the rows to this file; json, csv and parquet only. The file appears when it is complete.",
    )
    form = click.option(
        "--output",
        type=click.Choice(["table", *_FORMS]),
        default="table",
        show_default=True,
        help="table is for people. json is one object per line; parquet needs --file.",
    )
    return form(file(command))  # type: ignore[type-var]


@click.command(
    short_help="Read rows, fresh ones included.",
    epilog=f"""\b
Example:
  headgate table scan ./orders
  headgate table scan ./orders --columns id,note --filter "amount > 100" --limit 5
  headgate table scan ./orders --output csv > orders.csv
  headgate table scan ./orders --checkpoint before-migration --output parquet --file orders.parquet

\b
With --output table the first {SHOWN} rows are shown, unless --limit says otherwise.
""",
)
@table_argument
@_columns_option
@_filter_option
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="Stop after N rows.")
@_checkpoint_option
@_form_options
@storage_option
def scan(
    uri: str,
    columns: str | None,
    filter: str | None,
    limit: int | None,
    checkpoint: str | None,
    file: Path | None,
    output: str,
    storage_options: dict[str, str],
) -> None:
    """Read the rows of TABLE at one instant, fresh ones included."""
    _check_form(output, file)
    table = open_table(uri, storage_options=storage_options or None, checkpoint=checkpoint)
    if output == "table":
        most = SHOWN if limit is None else limit
        # One more, to tell whether there are more.
        rows = table.scan(columns=_names(columns), filter=filter, limit=most + 1).read_all()
        _show(rows.slice(0, most), more=limit is None and rows.num_rows > most)
    else:
        reader = table.scan(columns=_names(columns), filter=filter, limit=limit)
        _write(reader.schema, reader, output, file)


@click.command(
    short_help="Read rows by key.",
    epilog="""\b
Example:
  headgate table get ./orders 291
  headgate table get ./orders 291 292 --columns note --output json

\b
A key of several columns is written as its values separated by commas, in the key's order: 'shop,291'.
""",
)
@table_argument
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@_columns_option
@_checkpoint_option
@_form_options
@storage_option
def get(
    uri: str,
    keys: tuple[str, ...],
    columns: str | None,
    checkpoint: str | None,
    file: Path | None,
    output: str,
    storage_options: dict[str, str],
) -> None:
    """Read the rows of TABLE with these KEYs; keys that are not found are left out."""
    _check_form(output, file)
    table = open_table(uri, storage_options=storage_options or None, checkpoint=checkpoint)
    found = table.get(_keys(table, keys))
    if (names := _names(columns)) is not None:
        if unknown := [name for name in names if name not in found.column_names]:
            raise InvalidInput(
                f"The table has no column {unknown[0]!r}.", advice=f"its columns are {found.column_names}"
            )
        found = found.select(names)
    if output == "table":
        _show(found, more=False)
    else:
        _write(found.schema, found.to_batches(), output, file)


@click.command(
    short_help="Count rows, fresh ones included.",
    epilog="""\b
Example:
  headgate table count ./orders
  headgate table count ./orders --filter "amount > 100" --output json
""",
)
@table_argument
@_filter_option
@_checkpoint_option
@_form_options
@storage_option
def count(
    uri: str,
    filter: str | None,
    checkpoint: str | None,
    file: Path | None,
    output: str,
    storage_options: dict[str, str],
) -> None:
    """Count the rows of TABLE at one instant, fresh ones included."""
    _check_form(output, file)
    table = open_table(uri, storage_options=storage_options or None, checkpoint=checkpoint)
    rows = table.count(filter=filter)
    if output == "table":
        value = {"table": table.uri, "checkpoint": checkpoint, "filter": filter, "rows": rows}
        TextOutput().record(f"{rows:,} rows in {table.uri}", value)
    else:
        counted = pa.table({"rows": [rows]})
        _write(counted.schema, counted.to_batches(), output, file)


def _names(columns: str | None) -> list[str] | None:
    return None if columns is None else [name.strip() for name in columns.split(",")]


def _keys(table: Table, given: Sequence[str]) -> pa.Table:
    """The given values as a table of key columns. Raises InvalidInput."""
    fields = [table.schema.field(name) for name in table.primary_key]
    if not fields:
        raise InvalidInput(
            "The table has no primary key, so rows cannot be read by key.",
            table=table.uri,
            advice='read them with `headgate table scan TABLE --filter "…"`',
        )
    rows = [[text] for text in given] if len(fields) == 1 else list(csv.reader(given))
    if bad := [text for text, row in zip(given, rows, strict=True) if len(row) != len(fields)]:
        names = ",".join(table.primary_key)
        raise InvalidInput(f"The key {bad[0][:80]!r} must have {len(fields)} values.", advice=f"write it as {names}")
    columns = []
    for field, values in zip(fields, zip(*rows, strict=True), strict=True):
        try:
            columns.append(pa.array(values, pa.string()).cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise InvalidInput(
                f"Not every given key is a valid {field.type}, the type of column {field.name!r}.",
                advice=f"`headgate table show {table.uri}` shows the key",
            ) from None
    return pa.table(columns, schema=pa.schema(fields))


# -- how they are shown ----------------------------------------------------------------


def _check_form(form: str, file: Path | None) -> None:
    if form == "parquet" and file is None:
        raise InvalidInput("Parquet output needs a file.", advice="name it with --file PATH")
    if form == "table" and file is not None:
        raise InvalidInput("--file needs --output json, csv or parquet.")


def _show(rows: pa.Table, *, more: bool) -> None:
    TextOutput().table(rows.to_pylist(), rows.column_names)
    if more:
        click.echo(f"Showing the first {rows.num_rows} rows; --limit N shows more.")


def _write(
    schema: pa.Schema, batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch], form: str, file: Path | None
) -> None:
    """Raises InvalidInput if the format does not support a column, or the file cannot be written."""
    try:
        into = _FORMS[form]
        with _target(file) as target, into(target, schema) as write:
            for batch in batches:
                write(batch)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        what = str(error).partition("\n")[0][:200]
        raise InvalidInput(f"The rows cannot be written as {form}: {what}", advice="use --output json") from error


@contextmanager
def _target(file: Path | None) -> Iterator[BinaryIO]:
    """Stdout, or a file that gets its name when it is complete."""
    if file is None:
        yield sys.stdout.buffer
        return
    try:
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}-") as folder:
            part = Path(folder) / file.name
            with part.open("wb") as opened:
                yield opened
            os.replace(part, file)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be written: {error.strerror}.", advice="name another --file") from error


def _plain(value: object) -> object:
    """JSON values for types that JSON does not have."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
