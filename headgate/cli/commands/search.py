"""`headgate search`: find rows by their words, or by a vector."""

from __future__ import annotations

from typing import Any

import click
import pyarrow as pa

from headgate.cli.options.table import storage_option, table_argument
from headgate.cli.options.vectors import query_vector
from headgate.cli.output import Marked, Output, output_option
from headgate.errors import InvalidInput
from headgate.search.query.parts import SCORE
from headgate.search.query.searcher import Marker
from headgate.search.vectors.base import DISTANCE
from headgate.shards.vectors import is_vector
from headgate.table.table import open_table


@click.command(
    epilog="""\b
Example:
  headgate search ./orders "late delivery"
  headgate search ./orders "late delivery" --match all --filter "amount > 100" --show id,note -k 3
  headgate search s3://bucket/orders refund --column note --output json
  headgate search ./reviews --vector @question.npy --filter "stars < 3" --show id,text
"""
)
@table_argument
@click.argument("text", required=False)
@click.option("--column", help="The column to search. Default: the one that has a full-text index, or holds vectors.")
@click.option(
    "--vector",
    metavar="@FILE|JSON",
    help="Find the rows whose vectors are nearest to this one: @FILE.npy as numpy.save writes it, or numbers in JSON.",
)
@click.option("--nprobes", type=click.IntRange(min=1), help="Partitions of a vector index to read at least.")
@click.option("--refine", type=click.IntRange(min=1), help="So many times k candidates of it are measured exactly.")
@click.option("-k", "k", type=click.IntRange(min=1), default=10, show_default=True, help="How many rows at most.")
@click.option(
    "--match",
    type=click.Choice(["any", "all", "phrase"]),
    default="any",
    show_default=True,
    help="Rows with any of the words, with all of them, or with the words in this order.",
)
@click.option("--filter", help="SQL as Lance takes it; it chooses among the rows and changes no score.")
@click.option("--show", metavar="COLUMNS", help="Columns to print, separated by commas. Default: all but vectors.")
@storage_option
@output_option
def search(
    uri: str,
    text: str | None,
    column: str | None,
    vector: str | None,
    nprobes: int | None,
    refine: int | None,
    k: int,
    match: Any,
    filter: str | None,
    show: str | None,
    storage_options: dict[str, str],
    output: Output,
) -> None:
    """Find the rows of the TABLE that fit TEXT best, or those nearest to a vector, fresh ones included.

    Texts are ranked by BM25, vectors by their exact distance, over everything that counts: base, SSTables and what is
    committed in the WALs. Writes nothing.
    """
    if (text is None) == (vector is None):
        raise InvalidInput("A search is by TEXT or by --vector.", advice="give one of the two")
    query = None if vector is None else query_vector(vector)
    table = open_table(uri, storage_options=storage_options)
    plain = [field.name for field in table.schema if not is_vector(field.type)]
    columns = [name.strip() for name in show.split(",")] if show is not None else plain
    what: dict[str, Any] = {"table": table.uri, "column": column, "filter": filter}
    if text is None:
        found = table.nearest(query, column=column, columns=columns, filter=filter, k=k, nprobes=nprobes, refine=refine)
        output.record(f"{found.num_rows} nearest in {table.uri}", {**what, "hits": _nearest(found)})
        return
    searcher = table.searcher()
    column = column or searcher.only_column()
    found = searcher.search(text, column, k, match=match, filter=filter, columns=columns)
    hits = _hits(found, column, searcher.marker(text, column))
    what |= {"column": column, "text": text, "match": match}
    output.record(f"{len(hits)} hits for {text!r} in {table.uri}", {**what, "hits": hits})


def _nearest(found: pa.Table) -> list[dict[str, Any]]:
    return [{"distance": round(row.pop(DISTANCE), 6), **row} for row in found.to_pylist()]


def _hits(found: pa.Table, column: str, marked: Marker) -> list[dict[str, Any]]:
    rows = []
    for row in found.to_pylist():
        score = round(row.pop(SCORE), 4)
        if isinstance(row.get(column), str):
            row[column] = Marked(marked(row[column]))
        rows.append({"score": score, **row})
    return rows
