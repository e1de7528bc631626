"""`headgate index`: build full-text and vector indexes, and show what they cover."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headgate.cli.options.table import storage_option, table_argument
from headgate.cli.options.text import parameter_option, parse_parameters
from headgate.cli.output import Column, Output, output_option
from headgate.cli.signals import quiet_logs
from headgate.errors import InvalidInput
from headgate.search.build.plan import Limits, uncovered
from headgate.search.build.upkeep import kind_of
from headgate.shards.home.base import index_name
from headgate.table.table import Table, open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_BUILT = (
    Column("column", 16),
    Column("name", 20),
    Column("rows", 12, right=True),
    Column("fragments", 9, right=True),
    Column("segments", 8, right=True),
    Column("added", 5, right=True),
    Column("rounds", 6, right=True),
    Column("version", 7, right=True),
    Column("note", 40),
)
_SHOWN = (
    Column("column", 16),
    Column("name", 20),
    Column("fragments", 9, right=True),
    Column("uncovered_fragments", 19, right=True),
    Column("uncovered_rows", 14, right=True),
    Column("segments", 8, right=True, text=lambda segments: str(len(segments))),
    Column("version", 7, right=True),
    Column("note", 40),
)


@click.group()
def index() -> None:
    """Build full-text and vector indexes, and show what they cover."""


@index.command(
    short_help="Extend indexes to every row of the base.",
    epilog="""\b
Example:
  headgate index build ./reviews --column review --column embedding
  headgate index build s3://bucket/orders --spark --storage-option region=eu-west-1
  headgate index build ./orders --column note --rebuild --parameter stem=false --parameter with_position=true
""",
)
@table_argument
@click.option(
    "--column", "columns", multiple=True, help="A column; may be repeated. Default: all full-text columns of the table."
)
@click.option("--spark", "on_spark", is_flag=True, help="Build with a local Spark, not in this process.")
@click.option("--cores", type=click.IntRange(min=1), metavar="N", help="With --spark: number of cores. Default: all.")
@click.option("--rebuild", is_flag=True, help="Index every row again, and drop the old segments.")
@parameter_option(
    "For a new index or with --rebuild: a parameter of Lance's index, such as language=German; may be repeated."
)
@click.option(
    "--max-segments",
    type=click.IntRange(min=1),
    default=Limits().max_segments,
    show_default=True,
    metavar="N",
    help="More are merged.",
)
@storage_option
@output_option
def build(
    uri: str,
    columns: tuple[str, ...],
    on_spark: bool,
    cores: int | None,
    rebuild: bool,
    parameters: tuple[str, ...],
    max_segments: int,
    storage_options: dict[str, str],
    output: Output,
) -> None:
    """Extend the full-text and vector indexes of TABLE to every row of its base.

    Rows that are covered already are skipped: a second run does nothing, and after a crash the same command continues.
    Fresh rows are found without an index; they are indexed when they are flushed and compacted. A vector column gets an
    index once enough rows of the base have a vector (default 65,536); until then a note says so, and every search
    computes the distance of every row.
    """
    if cores is not None and not on_spark:
        raise InvalidInput("--cores is for --spark.")
    quiet_logs()
    table = open_table(uri, storage_options=storage_options)
    chosen = parse_parameters(parameters)
    wanted = columns or indexed_columns(table)
    if not wanted:
        what = f"The table at {table.uri} has no full-text or vector columns."
        raise InvalidInput(what, advice="name a column of text with --column")
    with _session(on_spark, cores) as spark:
        limits = _limits(spark, max_segments)

        def built() -> Iterator[dict[str, Any]]:
            for column in wanted:
                done = table.build_index(column, spark=spark, parameters=chosen or None, rebuild=rebuild, limits=limits)
                yield asdict(done)

        output.rows(_BUILT, built())


@index.command(
    short_help="Show what indexes cover.",
    epilog="""\b
Example:
  headgate index show ./orders --column note --output json
""",
)
@table_argument
@click.option(
    "--column", "columns", multiple=True, help="A column; may be repeated. Default: all full-text columns of the table."
)
@storage_option
@output_option
def show(uri: str, columns: tuple[str, ...], storage_options: dict[str, str], output: Output) -> None:
    """Show what the indexes of TABLE cover; with one --column also its segments. Writes nothing."""
    quiet_logs()
    table = open_table(uri, storage_options=storage_options)
    if len(columns) == 1:
        output.record(f"Index of column {columns[0]} of {table.uri}", described(table, columns[0]))
    else:
        output.rows(_SHOWN, (described(table, column) for column in columns or indexed_columns(table)))


def indexed_columns(table: Table) -> tuple[str, ...]:
    """Those that the table itself names."""
    return (*table.full_text, *(one.column for one in table.vectors))


def described(table: Table, column: str) -> dict[str, Any]:
    """The state of a column's index, by segment."""
    kind, store = kind_of(table.home, column), table.home.store
    look = kind.look(store, column, index_name(column))
    missing = uncovered(look)
    segments = []
    for one in look.segments:
        documents, parts = kind.inside(store, one)
        living = one.fragments & frozenset(look.fragments)
        segments.append(
            {
                "index": str(one.index_id),
                "fragments": len(living),
                "rows": sum(look.fragments[fragment].rows for fragment in living),
                "documents": documents,
                "parts": parts,
                "bytes": one.nbytes,
            }
        )
    return {
        "column": column,
        "name": look.name if look.parameters is not None else None,
        "version": look.version,
        "fragments": len(look.fragments),
        "uncovered_fragments": len(missing),
        "uncovered_rows": sum(look.fragments[fragment].rows for fragment in missing),
        "parameters": dict(look.parameters or {}),
        "note": kind.waits(store, column, look),
        "segments": segments,
    }


def _limits(spark: SparkSession | None, max_segments: int) -> Limits:
    if spark is None:
        return Limits(max_segments=max_segments)
    return Limits(tasks=spark.sparkContext.defaultParallelism, max_segments=max_segments)


@contextmanager
def _session(wanted: bool, cores: int | None) -> Iterator[SparkSession | None]:
    if not wanted:
        yield None
        return
    from headgate.streaming.spark.session import local_session

    with tempfile.TemporaryDirectory(prefix="headgate-spark-") as folder:
        spark = local_session(cores, log_file=Path(folder) / "spark.log")
        try:
            yield spark
        finally:
            spark.stop()
