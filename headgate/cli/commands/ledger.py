"""`headgate ledger …`: a stream's commit log as rows of a Delta table. Only `rebuild --apply` writes."""

from __future__ import annotations

from dataclasses import asdict

import click

from headgate.checkpoints.log.names import check_stream
from headgate.cli.options.table import apply_option, storage_option, table_argument
from headgate.cli.output import Output, not_applied, output_option
from headgate.cli.signals import quiet_logs
from headgate.cli.spark import ledger_settings, own_spark
from headgate.streaming.delta.ledger import rebuild_ledger, short
from headgate.streaming.spark.session import SparkFailed
from headgate.table.table import open_table


@click.group()
def ledger() -> None:
    """A stream's ledger: its commit log as rows of a Delta table. Only `rebuild --apply` writes."""


@ledger.command(
    short_help="Write the ledger of a stream again.",
    epilog="""\b
Example:
  headgate ledger rebuild ./orders --stream orders --ledger ./ledger            show what it would do
  headgate ledger rebuild ./orders --stream orders --ledger ./ledger --apply
  headgate ledger rebuild ./orders --stream orders --ledger ./ledger --apply --output json
""",
)
@table_argument
@click.option("--stream", required=True, metavar="NAME", help="The stream whose ledger is rebuilt.")
@click.option("--ledger", "target", required=True, metavar="PATH", help="The ledger: a Delta table.")
@apply_option()
@storage_option
@output_option
def rebuild(uri: str, stream: str, target: str, apply: bool, storage_options: dict[str, str], output: Output) -> None:
    """Rewrite the rows of one stream in a ledger, from its commit log and the log's archive, with a local Spark.

    Records that were garbage collected before the stream had a ledger cannot be rebuilt: their ledger rows stay as they
    are. If the ledger has no such rows either, rows of kind `folded` say which offsets they had read.
    """
    table = open_table(uri, storage_options=storage_options or None)
    check_stream(table.home.records, stream, table.uri)
    settings = ledger_settings(target, storage_options)
    quiet_logs()
    with own_spark(2, settings) as (spark, log_file):
        from pyspark.errors import PySparkException

        try:
            done = rebuild_ledger(spark, table, stream=stream, ledger=target, apply=apply)
        except PySparkException as error:
            raise SparkFailed(f"The ledger was not rebuilt: {short(error)}", log=str(log_file)) from error
    title = f"{'Rebuilt' if apply else 'Would rebuild'} the ledger of stream {stream} of {table.uri}"
    output.record(title if apply else not_applied(title), asdict(done))
