"""`headgate recover`: how Spark's checkpoint stands to the table, and a new one where it is lost or damaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from headgate.checkpoints.spark.compare import look_at_spark
from headgate.checkpoints.spark.directory import SparkCheckpoint
from headgate.checkpoints.spark.recover import Diagnosis, Rebuilt, choose_stream, diagnose, rebuild
from headgate.cli.errors import exit_code
from headgate.cli.options.kafka import source_option
from headgate.cli.options.table import apply_option, storage_option, table_argument
from headgate.cli.output import Output, TextOutput, output_option
from headgate.cli.text.findings import tell_findings
from headgate.connectors.lance.base.damage import Damaged, damage, settle_base
from headgate.connectors.objects import open_store
from headgate.errors import DataLoss
from headgate.table.table import open_table


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
    home = open_table(uri, storage_options=storage_options or None).home
    damaged = settle_base(home.store) if apply else damage(home.store)
    if spark_checkpoint is None:
        title = "Nothing to mend" if not damaged else "Mended" if apply else "Damaged"
        output.record(f"{title}: the base of {home.uri}", {"base": base_value(damaged, apply=apply)})
        return
    if damaged:
        home = open_table(uri, storage_options=storage_options or None).home
    spark = SparkCheckpoint(spark_checkpoint, storage_options or None)
    name = choose_stream(home, look_at_spark(spark), stream)
    found = diagnose(home, name, spark)
    done: Rebuilt | None = None
    if apply and found.standing.needs_rebuild:
        target = open_store(spark.location, storage_options or None)
        done = rebuild(home, name, spark, target, sources=sources)
    title = "Rebuilt" if done else found.standing.state.capitalize()
    value = diagnosis_value(found, done, apply=apply) | {"base": base_value(damaged, apply=apply)}
    if isinstance(output, TextOutput) and found.findings:
        tell_findings(found.findings)
        value = {key: item for key, item in value.items() if key != "findings"}
    output.record(f"{title}: stream {name!r} and {spark.uri}", value)
    lost = any(one.is_error for one in found.findings)
    click.get_current_context().exit(exit_code(DataLoss) if lost else 0)


def base_value(damaged: Sequence[Damaged], *, apply: bool) -> list[dict[str, Any]]:
    """The versions of the base that a power cut damaged, and what became of them."""
    done = "set aside, and kept under _headgate/" if apply else "run this with --apply to set it aside"
    return [{"name": one.name, "what": one.what, "next": done} for one in damaged]


def diagnosis_value(found: Diagnosis, done: Rebuilt | None = None, *, apply: bool = False) -> dict[str, Any]:
    """All that is shown, as plain values: Spark's batch, the commit record, WAL positions, Kafka's offsets."""
    head, spark = found.head, found.spark
    last = head.last
    theirs = spark.kafka_ends()
    ours = head.next_starts()
    logged = found.standing.upcoming
    return {
        "state": found.standing.state,
        "means": found.standing.why,
        "needs_rebuild": found.standing.needs_rebuild,
        "next": _next(found, done, apply),
        "stream": head.stream,
        "checkpoint": spark.uri,
        "spark": {"query": spark.query_id, "logged_batch": spark.planned, "done_batch": spark.done},
        "log": {
            "record": head.sequence,
            "query": last and last.query_id,
            "batch": last and last.batch_id,
            "batch_record": last and last.sequence,
            "rows": last and last.rows,
            "opened_by": head.opened and head.opened.query_id,
            "opened_at": head.opened and head.opened.opened_at,
        },
        "rebuilt": done and {"query": done.query_id, "open_record": done.head.sequence, "old_directory": done.moved_to},
        "offsets": [
            {
                "topic": topic,
                "partition": partition,
                "table": ours.get((topic, partition)),
                "spark": theirs.get((topic, partition)),
                "logged": None if (topic, partition) not in logged else list(logged[topic, partition]),
            }
            for topic, partition in sorted({*ours, *theirs, *logged})
        ],
        "positions": [
            {
                "shard": one.name,
                "last_batch": None if last is None else _positions(last.shards.get(one.name)),
                "listed": one.listed,
                "tip": one.tip,
                "replay_after": one.replay_after,
                "epoch": one.epoch,
            }
            for one in found.shards
        ],
        "findings": [one.value() for one in found.findings],
    }


def _positions(part: Any) -> list[int] | None:
    return None if part is None else list(part.positions)


def _next(found: Diagnosis, done: Rebuilt | None, apply: bool) -> str:
    if done is not None:
        old = "" if done.moved_to is None else f" The old directory is {done.moved_to}."
        return f"start the query with this checkpoint directory; it goes on with its next batch.{old}"
    if found.findings and any(one.is_error for one in found.findings):
        return "mend what the findings name first, and look at the whole table with `headgate fsck`"
    if found.standing.state == "foreign":
        return (
            "start the query with an empty checkpoint directory, so that this table gets all rows; or, where those "
            "are not wanted here, accept the checkpoint with `headgate rewind … --adopt`; see docs/guides/rewind.md"
        )
    if found.standing.needs_rebuild:
        return "run this again with --apply; it fences a query that still runs the stream, so stop that first"
    return "start the query; there is nothing to do" + (", and nothing was written" if apply else "")
