"""`headgate ledger …`: the commit log of a stream as rows of a Delta table. Only `rebuild --apply` writes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headgate.checkpoints.streams import list_streams
from headgate.cli import storage_option
from headgate.cli.output import Output, output_option
from headgate.cli.processes import quiet_logs
from headgate.errors import InvalidInput
from headgate.streaming.delta_tables import DeltaName, delta_settings
from headgate.streaming.ledger import rebuild_ledger, told
from headgate.streaming.session import SparkFailed, local_session
from headgate.table import open_table


@click.group()
def ledger() -> None:
    """The ledger of a stream: its commit log as rows of a Delta table. Only `rebuild --apply` writes."""


@ledger.command(
    epilog="""\b
Example:
  headgate ledger rebuild ./orders --stream orders --ledger ./ledger            what it would do
  headgate ledger rebuild ./orders --stream orders --ledger ./ledger --apply
  headgate ledger rebuild ./orders --stream orders --ledger ./ledger --apply --output json
"""
)
@click.argument("uri", metavar="TABLE")
@click.option("--stream", required=True, metavar="NAME", help="Whose commit log.")
@click.option("--ledger", "target", required=True, metavar="PATH", help="The Delta table.")
@click.option("--apply", is_flag=True, help="Do it. Without this nothing is written.")
@storage_option
@output_option
def rebuild(uri: str, stream: str, target: str, apply: bool, storage_options: dict[str, str], output: Output) -> None:
    """Make the rows of a TABLE's stream in a ledger anew, from its commit log, in a Spark of its own.

    Rows of records that were folded and collected since stay as they are: the log cannot give them again. Where the
    ledger does not have them either, rows of the kind `folded` say which offsets they had read.
    """
    table = open_table(uri, storage_options or None)
    known = list_streams(table.home.records)
    if stream not in known:
        raise InvalidInput(
            f"The table has no stream {stream!r}.",
            table=table.uri,
            advice=f"its streams are: {', '.join(known) or 'none yet'}",
        )
    check_path(target)
    quiet_logs()
    with _spark() as (spark, log_file):
        try:
            done = rebuild_ledger(spark, table, stream, target, apply=apply)
        except PySparkException as error:
            raise SparkFailed(f"The ledger could not be rebuilt: {told(error)}", log=str(log_file)) from error
    title = f"{'Rebuilt' if apply else 'Would rebuild'} the ledger of stream {stream} of {table.uri}"
    output.record(title + ("" if apply else " (nothing was written; --apply does it)"), asdict(done))


def check_path(target: str) -> None:
    """Raises InvalidInput for a name in a catalog: a Spark that a command starts has none of the user's."""
    if DeltaName(target, "ledger").path is None:
        raise InvalidInput(
            f"A command has a Spark of its own, which knows no catalog with {target!r}.",
            advice="give the ledger's path, or call headgate.rebuild_ledger(spark, …) and ShardSink(ledger=…) in a "
            "session that has the catalog",
        )


@contextmanager
def _spark() -> Iterator[tuple[SparkSession, Path]]:
    """A Spark with Delta that ends with the block. Its log is kept only where it is needed to understand a failure."""
    with tempfile.NamedTemporaryFile(prefix="headgate-spark-", suffix=".log", delete=False) as log:
        log_file = Path(log.name)
    kept = False
    try:
        spark = local_session(2, log_file=log_file, settings=delta_settings())
        try:
            yield spark, log_file
        finally:
            spark.stop()
    except SparkFailed:
        kept = True
        raise
    finally:
        if not kept:
            log_file.unlink()
