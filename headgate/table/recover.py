"""`recover`: compare Spark's checkpoint with a table's stream, and rebuild it if it is lost or damaged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.checkpoints.spark.compare import look_at_spark
from headgate.checkpoints.spark.directory import SparkCheckpoint
from headgate.checkpoints.spark.recover import Diagnosis, Rebuilt, choose_stream, diagnose, rebuild
from headgate.connectors.lance.base.damage import Damaged, damage, settle_base
from headgate.connectors.objects import open_store
from headgate.results import Result
from headgate.shards.home.stores import Place, place
from headgate.table.table import Table, as_table, open_table


@dataclass(frozen=True, repr=False)
class Recovery(Result):
    """What was found, and what was repaired."""

    uri: str
    applied: bool
    damaged: tuple[Damaged, ...]
    """Versions of the base that a power cut damaged; with `apply` they were set aside."""
    found: Diagnosis | None
    """The stream compared with Spark's checkpoint; None if no checkpoint was given."""
    rebuilt: Rebuilt | None
    """The rebuilt checkpoint."""

    @property
    def state(self) -> str | None:
        """aligned, log ahead, spark ahead, lost or foreign; None if no checkpoint was given."""
        return None if self.found is None else self.found.standing.state

    def to_dict(self) -> dict[str, Any]:
        told = {} if self.found is None else _diagnosis(self.found, self.rebuilt, self.applied)
        return {**told, "base": [_damaged(one, self.applied) for one in self.damaged]}


def recover(
    table: Table | Place,
    *,
    spark_checkpoint: Place | None = None,
    stream: str | None = None,
    sources: Sequence[Iterable[str]] = (),
    apply: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> Recovery:
    """Compare Spark's checkpoint directory with a stream's commit log, and say what a start would do.

    Without `apply` nothing is written. With `apply` a lost or damaged directory is moved aside and rebuilt, so that the
    query continues exactly where the table is: THIS FENCES A DRIVER THAT STILL RUNS THE STREAM. Damaged versions of the
    base are listed, and with `apply` set aside; without `spark_checkpoint` only that is done.

    `stream` is needed if the table has several; `sources` are the topics of each Kafka source of the query, if it has
    several. Raises as `checkpoints.spark.recover.diagnose` and `rebuild` do.
    """
    table = as_table(table, storage_options)
    options = table.storage_options
    store = table.home.store
    damaged = settle_base(store) if apply else damage(store)
    if spark_checkpoint is None:
        return Recovery(table.uri, apply, damaged, None, None)
    home = (open_table(table.uri, storage_options=options) if damaged else table).home
    spark = SparkCheckpoint(place(spark_checkpoint), options)
    found = diagnose(home, choose_stream(home, look_at_spark(spark), stream), spark)
    rebuilt = None
    if apply and found.standing.needs_rebuild:
        target = open_store(spark.location, options)
        rebuilt = rebuild(home, found.head.stream, spark, target, sources=sources)
    return Recovery(table.uri, apply, damaged, found, rebuilt)


def _damaged(one: Damaged, applied: bool) -> dict[str, Any]:
    done = "set aside; kept under _headgate/" if applied else "run this with --apply to set it aside"
    return {"name": one.name, "what": one.what, "next": done}


def _diagnosis(found: Diagnosis, done: Rebuilt | None, applied: bool) -> dict[str, Any]:
    head, spark = found.head, found.spark
    last = head.last
    theirs = spark.kafka_ends()
    ours = head.next_starts()
    logged = found.standing.upcoming
    return {
        "state": found.standing.state,
        "means": found.standing.why,
        "needs_rebuild": found.standing.needs_rebuild,
        "next": _next(found, done, applied),
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
        return f"start the query with this checkpoint directory; it continues with its next batch.{old}"
    if found.findings and any(one.is_error for one in found.findings):
        return "first repair what the findings name, and check the whole table with `headgate fsck`"
    if found.standing.state == "foreign":
        return (
            "start the query with an empty checkpoint directory, so that this table gets all rows; or, if you "
            "do not need them, accept the checkpoint with `headgate rewind … --adopt`; see "
            "docs/guides/rewind.md"
        )
    if found.standing.needs_rebuild:
        return "stop the query, then run this again with --apply; a query that still runs is fenced"
    return "start the query; there is nothing to do" + (", and nothing was written" if apply else "")
