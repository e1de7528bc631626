"""`headgate search`: search rows by words, by a vector, or by both."""

from __future__ import annotations

from typing import Any, get_args

import click
import pyarrow as pa

from headgate.cli.options.table import storage_option, table_argument
from headgate.cli.options.vectors import query_vector
from headgate.cli.output import Marked, Output, output_option
from headgate.errors import InvalidInput
from headgate.search.query.parts import SCORE
from headgate.search.query.searcher import Marker
from headgate.search.vectors.base import DISTANCE
from headgate.search.vectors.fusion import Fuse
from headgate.search.vectors.hybrid import RELEVANCE
from headgate.shards.vectors import is_vector
from headgate.table.table import open_table

DIGITS = {SCORE: 4, DISTANCE: 6, RELEVANCE: 6}


@click.command(
    epilog="""\b
Example:
  headgate search ./orders "late delivery"
  headgate search ./orders "late delivery" --match all --filter "amount > 100" --show id,note -k 3
  headgate search s3://bucket/orders refund --column note --output json
  headgate search ./reviews --vector @question.npy --filter "stars < 3" --show id,review
  headgate search ./reviews "late delivery" --vector @question.npy --fuse weighted --weight 0.3
"""
)
@table_argument
@click.argument("text", required=False)
@click.option("--column", help="The column to search for TEXT. Default: the only full-text column.")
@click.option(
    "--vector",
    metavar="@FILE|JSON",
    help="Find the rows nearest to this vector: @FILE.npy as numpy.save writes it, or a JSON list of numbers.",
)
@click.option("--vector-column", help="The column to search for the vector. Default: the only vector column.")
@click.option(
    "--fuse",
    type=click.Choice(get_args(Fuse)),
    default="rrf",
    show_default=True,
    help="With TEXT and --vector: combine by rank, or by a weighted sum of text score and vector similarity.",
)
@click.option(
    "--weight", type=click.FloatRange(0, 1), default=0.5, show_default=True, help="Weight of TEXT in that sum."
)
@click.option("--nprobes", type=click.IntRange(min=1), help="Minimum partitions of a vector index to read.")
@click.option(
    "--refine", type=click.IntRange(min=1), help="Compute exact distances for this many times k index candidates."
)
@click.option("-k", "k", type=click.IntRange(min=1), default=10, show_default=True, help="Maximum number of rows.")
@click.option(
    "--match",
    type=click.Choice(["any", "all", "phrase"]),
    default="any",
    show_default=True,
    help="Rows with any of the words, with all of them, or with the words in this order.",
)
@click.option("--filter", help="A condition in Lance's SQL. It selects rows and does not change scores.")
@click.option("--show", metavar="COLUMNS", help="Columns to print, separated by commas. Default: all but vectors.")
@storage_option
@output_option
def search(
    uri: str,
    text: str | None,
    column: str | None,
    vector: str | None,
    vector_column: str | None,
    fuse: Any,
    weight: float,
    nprobes: int | None,
    refine: int | None,
    k: int,
    match: Any,
    filter: str | None,
    show: str | None,
    storage_options: dict[str, str],
    output: Output,
) -> None:
    """Find the rows of TABLE that match TEXT best, the rows nearest to a vector, or the best of both combined.

    Texts are ranked by BM25, vectors by exact distance, over base, SSTables and all committed rows in the WALs. Writes
    nothing.
    """
    if text is None and vector is None:
        raise InvalidInput("Give TEXT, --vector, or both.")
    query = None if vector is None else query_vector(vector)
    table = open_table(uri, storage_options=storage_options)
    plain = [field.name for field in table.schema if not is_vector(field.type)]
    shared: dict[str, Any] = {"columns": _names(show) if show is not None else plain, "filter": filter}
    what: dict[str, Any] = {"table": table.uri, "filter": filter}
    if text is None:
        found = table.nearest(query, column=vector_column, k=k, nprobes=nprobes, refine=refine, **shared)
        hits = _hits(found)
        output.record(f"{len(hits)} nearest in {table.uri}", {**what, "vector_column": vector_column, "hits": hits})
        return
    searcher = table.searcher()
    column = column or searcher.only_column()
    what |= {"column": column, "text": text, "match": match}
    if query is None:
        found = searcher.search(text, column, k, match=match, **shared)
    else:
        both = {"fuse": fuse, "weight": weight, "nprobes": nprobes, "refine": refine}
        found = table.hybrid(
            text, query, column=column, vector_column=vector_column, k=k, match=match, **both, **shared
        )
        what |= {"vector_column": vector_column, "fuse": fuse}
    hits = _hits(found, column, searcher.marker(text, column))
    output.record(f"{len(hits)} hits for {text!r} in {table.uri}", {**what, "hits": hits})


def _names(show: str) -> list[str]:
    return [name.strip() for name in show.split(",")]


def _hits(found: pa.Table, column: str | None = None, marked: Marker | None = None) -> list[dict[str, Any]]:
    """Hits as rows, scores first."""
    rows = []
    for row in found.to_pylist():
        measured = {name: row.pop(name) for name in (RELEVANCE, SCORE, DISTANCE) if name in row}
        if column is not None and marked is not None and isinstance(row.get(column), str):
            row[column] = Marked(marked(row[column]))
        told = {name[1:]: None if one is None else round(one, DIGITS[name]) for name, one in measured.items()}
        rows.append({**told, **row})
    return rows
