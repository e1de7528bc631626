"""`headgate recover`: compare Spark's checkpoint with the table, and rebuild it if it is lost or damaged."""

from __future__ import annotations

import click

from headgate.cli.errors import exit_code
from headgate.cli.options.kafka import source_option
from headgate.cli.options.table import apply_option, storage_option, table_argument
from headgate.cli.output import Output, TextOutput, output_option
from headgate.cli.text.findings import tell_findings
from headgate.errors import DataLoss
from headgate.table.recover import recover as recover_stream


@click.command(
    epilog="""\b
Example:
  headgate recover ./orders --spark-checkpoint checkpoints/orders            compare the two
  headgate recover ./orders --spark-checkpoint checkpoints/orders --apply    rebuild the checkpoint from the table
  headgate recover ./orders --apply                                    repair only the base, after a power cut
"""
)
@table_argument
@click.option("--spark-checkpoint", metavar="DIR", help="The query's checkpointLocation: a path or URI.")
@click.option("--stream", metavar="NAME", help="The stream, if the table has several.")
@source_option
@apply_option("Rebuild it. Fences a query that still runs the stream.")
@storage_option
@output_option
def recover(
    uri: str,
    spark_checkpoint: str | None,
    stream: str | None,
    sources: tuple[tuple[str, ...], ...],
    apply: bool,
    storage_options: dict[str, str],
    output: Output,
) -> None:
    """Compare Spark's checkpoint DIR with the commit log of TABLE, and say what a start would do.

    Possible states: aligned; the table is one batch ahead, which Spark will skip; Spark has planned a batch that it
    will write; the checkpoint is foreign, made for another table; or it is lost, damaged or outdated. A lost, damaged
    or outdated checkpoint is rebuilt with --apply: the command takes over the stream, moves the contents of DIR aside,
    and writes DIR in Spark's own format, with a new query id. The query then continues exactly where the table is.
    Without --apply nothing is written.

    The command first lists base versions that a power cut left damaged and that nothing relies on; --apply sets them
    aside, as the next writer would. Without --spark-checkpoint it does only that.
    """
    done = recover_stream(
        uri,
        spark_checkpoint=spark_checkpoint,
        stream=stream,
        sources=sources,
        apply=apply,
        storage_options=storage_options or None,
    )
    value = done.to_dict()
    if done.found is None:
        title = "Nothing to repair" if not done.damaged else "Mended" if apply else "Damaged"
        output.record(f"{title}: the base of {done.uri}", value)
        return
    title = "Rebuilt" if done.rebuilt else done.found.standing.state.capitalize()
    if isinstance(output, TextOutput) and done.found.findings:
        tell_findings(done.found.findings)
        value = {key: item for key, item in value.items() if key != "findings"}
    output.record(f"{title}: stream {done.found.head.stream!r} and {done.found.spark.uri}", value)
    lost = any(one.is_error for one in done.found.findings)
    click.get_current_context().exit(exit_code(DataLoss) if lost else 0)
