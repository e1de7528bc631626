"""What Spark knows of the query that a batch belongs to. The only code that looks behind the public API."""

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
"""Spark's own masters, with the tries of a task where they are given. `local-cluster[…]` is none of them."""


@dataclass(frozen=True)
class QueryFacts:
    """The query as Spark sees it; None for what this kind of session does not tell."""

    query_id: str | None = None
    run_id: str | None = None
    """Of this start of the query."""
    checkpoint: str | None = None
    name: str | None = None
    output_mode: str | None = None
    """append, update or complete."""
    bare_kafka: bool | None = None
    """True if the query is Spark's Kafka source and nothing else."""
    kafka_options: dict[str, str] | None = field(default=None, repr=False)
    """The source's options where the query reads one bare Kafka source. They may hold credentials."""
    cluster_options: dict[str, str] | None = field(default=None, repr=False)
    """The options of the query's Kafka sources, whatever is done to their rows, where all of them name one cluster.
    They may hold credentials."""
    cores: int = 2
    task_tries: int = 1
    """How often Spark tries a task before it gives the job up."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """What the session says under `spark.headgate.`, by option name."""
    run: Any = field(default=None, repr=False, compare=False)
    """Spark's own object for this start of the query."""

    def is_of(self, frame: DataFrame) -> bool:
        """True if the frame is a batch of the run that these facts were found for. Two questions to the JVM.

        On Spark Connect every run has a process, hence facts, of its own.
        """
        session = frame.sparkSession
        if getattr(session, "_jsparkSession", None) is None:
            return self.query_id is None
        # Spark ends a run before it begins another one of the same query: one that is active is this one.
        return self.run is not None and self.query_id == _query_id(session) and bool(self.run.isActive())


def query_facts(frame: DataFrame) -> QueryFacts:
    """Of the query whose batch this is. On Spark Connect little is known, and the caller says the rest.

    Raises InvalidInput outside a query, and for a setting of the session that does not exist.
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
    # The context's own settings: a session takes any master, long after the context was started with another one.
    tries = task_tries(dict(context.getConf().getAll()))
    known = replace(known, query_id=query_id, cores=context.defaultParallelism, task_tries=tries)
    jvm: Any = session._jvm
    query = java_session.sharedState().activeStreamingQueries().get(jvm.java.util.UUID.fromString(query_id))
    if query is None:
        return known
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
    """True if the frame is what foreachBatch was given: anything done to it since is a node on top."""
    jdf: Any = frame._jdf
    return bool(jdf.queryExecution().logical().nodeName() == "LogicalRDD")


def task_tries(conf: Mapping[str, str]) -> int:
    """How often a task is tried under this configuration: a plain local master knows no second try."""
    if (local := _LOCAL.fullmatch(conf.get("spark.master", "").strip())) is not None:
        return int(local[1] or 1)
    return int(conf.get("spark.task.maxFailures", _MAX_FAILURES))


def _query_id(session: SparkSession) -> str | None:
    found = session.sparkContext.getLocalProperty("sql.streaming.queryId")
    return None if found is None else str(found)


def _cluster_options(plan: Any) -> dict[str, str] | None:
    """Those of the Kafka scans anywhere below; None where there is none, or where they are of different clusters."""
    leaves = [_kafka_options(leaf) for leaf in _sequence(plan.collectLeaves())]
    found = [
        {name: text for name, text in options.items() if name.lower().startswith("kafka.")}
        for options in leaves
        if options is not None
    ]
    return found[0] if found and all(options == found[0] for options in found) else None


def _kafka_options(plan: Any) -> dict[str, str] | None:
    """The options of a plan that is a bare Kafka source; None for any other."""
    if plan.getClass().getSimpleName() != "StreamingRelationV2" or "Kafka" not in plan.table().getClass().getName():
        return None
    options = plan.extraOptions().asCaseSensitiveMap()
    return {str(name): str(options.get(name)) for name in options.keySet()}


def _sequence(items: Any) -> list[Any]:
    return [items.apply(i) for i in range(items.size())]
