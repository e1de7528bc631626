"""`headgate search`: find rows by their words."""

from __future__ import annotations

from typing import Any

import click
import pyarrow as pa

from headgate.cli.options.table import storage_option, table_argument
from headgate.cli.output import Marked, Output, output_option
from headgate.search.query.parts import SCORE
from headgate.search.query.searcher import Marker
from headgate.table.table import open_table


@click.command(
    epilog="""\b
Example:
  headgate search ./orders "late delivery"
  headgate search ./orders "late delivery" --match all --filter "amount > 100" --show id,note -k 3
  headgate search s3://bucket/orders refund --column note --output json
"""
)
@table_argument
@click.argument("text")
@click.option("--column", help="The column to search. Default: the one that has a full-text index.")
@click.option("-k", "k", type=click.IntRange(min=1), default=10, show_default=True, help="How many rows at most.")
@click.option(
    "--match",
    type=click.Choice(["any", "all", "phrase"]),
    default="any",
    show_default=True,
    help="Rows with any of the words, with all of them, or with the words in this order.",
)
@click.option("--filter", help="SQL as Lance takes it; it chooses among the hits and changes no score.")
@click.option("--show", metavar="COLUMNS", help="Columns to print, separated by commas. Default: all.")
@storage_option
@output_option
def search(
    uri: str,
    text: str,
    column: str | None,
    k: int,
    match: Any,
    filter: str | None,
    show: str | None,
    storage_options: dict[str, str],
    output: Output,
) -> None:
    """Find the rows of the TABLE that fit TEXT best, fresh ones included.

    Ranked by BM25 over everything that counts: base, SSTables and what is committed in the WALs. Writes nothing.
    """
    table = open_table(uri, storage_options=storage_options)
    columns = [name.strip() for name in show.split(",")] if show is not None else None
    searcher = table.searcher()
    column = column or searcher.only_column()
    found = searcher.search(text, column, k, match=match, filter=filter, columns=columns)
    hits = _hits(found, column, searcher.marker(text, column))
    what = {"table": table.uri, "column": column, "text": text, "match": match, "filter": filter}
    output.record(f"{len(hits)} hits for {text!r} in {table.uri}", {**what, "hits": hits})


def _hits(found: pa.Table, column: str, marked: Marker) -> list[dict[str, Any]]:
    rows = []
    for row in found.to_pylist():
        score = round(row.pop(SCORE), 4)
        if isinstance(row.get(column), str):
            row[column] = Marked(marked(row[column]))
        rows.append({"score": score, **row})
    return rows
