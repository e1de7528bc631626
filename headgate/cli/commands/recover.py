"""`headgate recover`: how Spark's checkpoint stands to the table, and a new one where it is lost or damaged."""

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
  headgate recover ./orders --spark-checkpoint checkpoints/orders            how they stand to each other
  headgate recover ./orders --spark-checkpoint checkpoints/orders --apply    rebuild the checkpoint from the table
  headgate recover ./orders --apply                                    mend the base alone, after a power cut
"""
)
@table_argument
@click.option("--spark-checkpoint", metavar="DIR", help="The query's checkpointLocation: a path or URI.")
@click.option("--stream", metavar="NAME", help="The stream, where the table has several.")
@source_option
@apply_option("Rebuild it. This fences a query that still runs the stream.")
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
    """Say how Spark's checkpoint DIR and the commit log of a TABLE stand to each other, and what a start would do.

    They are aligned; or the table is ahead by a batch that Spark will see skipped; or Spark has logged a batch that
    it will write; or the checkpoint is foreign, made for another table; or it is lost, damaged or of another time.
    The last is mended with --apply: the stream is taken over, what is in DIR is moved aside, and DIR is written anew
    in Spark's own format, under a new query id, so that the query goes on exactly where the table stands. Without
    --apply nothing is written.

    Versions of the base that a power cut left damaged, and that nothing relied on, are shown first; with --apply they
    are set aside, as the next writer's open does. Without --spark-checkpoint that is all.
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
        title = "Nothing to mend" if not done.damaged else "Mended" if apply else "Damaged"
        output.record(f"{title}: the base of {done.uri}", value)
        return
    title = "Rebuilt" if done.rebuilt else done.found.standing.state.capitalize()
    if isinstance(output, TextOutput) and done.found.findings:
        tell_findings(done.found.findings)
        value = {key: item for key, item in value.items() if key != "findings"}
    output.record(f"{title}: stream {done.found.head.stream!r} and {done.found.spark.uri}", value)
    lost = any(one.is_error for one in done.found.findings)
    click.get_current_context().exit(exit_code(DataLoss) if lost else 0)
