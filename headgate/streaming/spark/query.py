"""Facts about the query that a batch belongs to. Only this module uses Spark's internal API."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headgate.errors import InvalidInput
from headgate.spark import versions
from headgate.streaming.options import session_defaults

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")

_MAX_FAILURES = 4
"""Spark's default of spark.task.maxFailures."""


_LOCAL = re.compile(r"local(?:\[\s*(?:[0-9]+|\*)\s*(?:,\s*([0-9]+)\s*)?\])?")
"""Local masters, with the number of tries of a task if given. Does not match `local-cluster[…]`."""


@dataclass(frozen=True)
class QueryFacts:
    """The query as Spark reports it; None for facts that this kind of session does not report."""

    query_id: str | None = None
    run_id: str | None = None
    """The id of this start of the query."""
    checkpoint: str | None = None
    name: str | None = None
    output_mode: str | None = None
    """append, update or complete."""
    bare_kafka: bool | None = None
    """True if the query is Spark's Kafka source and nothing else."""
    kafka_options: dict[str, str] | None = field(default=None, repr=False)
    """The source's options if the query reads one bare Kafka source. They may contain credentials."""
    cluster_options: dict[str, str] | None = field(default=None, repr=False)
    """Options of the query's Kafka sources, whatever it does with their rows, if all have the same `kafka.` options.
    They may contain credentials."""
    cores: int = 2
    task_tries: int = 1
    """How often Spark tries a task before it fails the job."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """The session's settings under `spark.headgate.`, by option name."""
    run: Any = field(default=None, repr=False, compare=False)
    """Spark's own object for this start of the query."""

    def is_of(self, frame: DataFrame) -> bool:
        """True if the frame is a batch of the run that these facts describe. Asks the JVM twice.

        On Spark Connect every run has its own process, and so its own facts.
        """
        session = frame.sparkSession
        if getattr(session, "_jsparkSession", None) is None:
            return self.query_id is None
        # Spark ends a run before it starts another one of the same query: the active one is this run.
        return self.run is not None and self.query_id == _query_id(session) and bool(self.run.isActive())


def query_facts(frame: DataFrame) -> QueryFacts:
    """The facts of the batch's query. Spark Connect reports few of them; the caller must give the rest.

    Raises InvalidInput outside a query, and for a session setting that does not exist.
    """
    session = frame.sparkSession
    conf = versions.settings_of(session)
    known = QueryFacts(settings=session_defaults(conf))
    java_session = getattr(session, "_jsparkSession", None)
    if java_session is None:
        return replace(known, task_tries=task_tries(conf))
    query_id = _query_id(session)
    if query_id is None:
        raise InvalidInput(
            "The sink was called outside a streaming query.", advice="pass it to writeStream.foreachBatch(sink)"
        )
    context = session.sparkContext
    # The context's own settings: a session accepts any master, even after the context was started with another one.
    tries = task_tries(dict(context.getConf().getAll()))
    known = replace(known, query_id=query_id, cores=context.defaultParallelism, task_tries=tries)
    jvm: Any = session._jvm
    query = java_session.sharedState().activeStreamingQueries().get(jvm.java.util.UUID.fromString(query_id))
    if query is None:
        return known
    versions.fill_unasked_sources(session, query)
    plan = query.analyzedPlan()
    options = _kafka_options(plan)
    return replace(
        known,
        run_id=query.runId().toString(),
        checkpoint=query.resolvedCheckpointRoot(),
        name=query.name(),
        output_mode=query.logicalPlan().outputMode().toString().lower(),
        bare_kafka=options is not None,
        kafka_options=options,
        cluster_options=options if options is not None else _cluster_options(plan),
        run=query,
    )


def is_untouched(frame: DataFrame) -> bool:
    """True if the frame is unchanged since foreachBatch got it: any change adds a node on top of the plan."""
    jdf: Any = frame._jdf
    return bool(jdf.queryExecution().logical().nodeName() == "LogicalRDD")


def task_tries(conf: Mapping[str, str]) -> int:
    """How often a task is tried with this configuration: once with a plain local master."""
    if (local := _LOCAL.fullmatch(conf.get("spark.master", "").strip())) is not None:
        return int(local[1] or 1)
    return int(conf.get("spark.task.maxFailures", _MAX_FAILURES))


def _query_id(session: SparkSession) -> str | None:
    found = session.sparkContext.getLocalProperty("sql.streaming.queryId")
    return None if found is None else str(found)


def _cluster_options(plan: Any) -> dict[str, str] | None:
    """The options of all Kafka scans in the plan; None if there are none or they differ."""
    leaves = [_kafka_options(leaf) for leaf in _sequence(plan.collectLeaves())]
    found = [
        {name: text for name, text in options.items() if name.lower().startswith("kafka.")}
        for options in leaves
        if options is not None
    ]
    return found[0] if found and all(options == found[0] for options in found) else None


def _kafka_options(plan: Any) -> dict[str, str] | None:
    """The options of a plan that is a bare Kafka source; None for any other plan."""
    if plan.getClass().getSimpleName() != "StreamingRelationV2" or "Kafka" not in plan.table().getClass().getName():
        return None
    options = plan.extraOptions().asCaseSensitiveMap()
    return {str(name): str(options.get(name)) for name in options.keySet()}


def _sequence(items: Any) -> list[Any]:
    return [items.apply(i) for i in range(items.size())]
