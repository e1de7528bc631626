"""What Spark knows of the query that a batch belongs to. The only code that looks behind the public API."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headgate.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


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
    """Whether the frame is Spark's Kafka source and nothing else."""
    kafka_options: dict[str, str] | None = field(default=None, repr=False)
    """The source's options where the query reads one bare Kafka source. They may hold credentials."""
    cores: int = 2


def query_facts(frame: DataFrame) -> QueryFacts:
    """Of the query whose batch this is. On Spark Connect little is known, and the caller says the rest."""
    session = frame.sparkSession
    java_session = getattr(session, "_jsparkSession", None)
    if java_session is None:
        return QueryFacts()
    context = session.sparkContext
    query_id = context.getLocalProperty("sql.streaming.queryId")
    if query_id is None:
        raise InvalidInput(
            "The sink was called outside a streaming query.", advice="pass it to writeStream.foreachBatch(sink)"
        )
    jvm: Any = session._jvm
    query = java_session.sharedState().activeStreamingQueries().get(jvm.java.util.UUID.fromString(query_id))
    if query is None:
        return QueryFacts(query_id, cores=context.defaultParallelism)
    plan = query.logicalPlan()
    options = _kafka_options(plan)
    return QueryFacts(
        query_id=query_id,
        run_id=query.runId().toString(),
        checkpoint=query.resolvedCheckpointRoot(),
        name=query.name(),
        output_mode=plan.outputMode().toString().lower(),
        bare_kafka=options is not None and _is_batch(frame),
        kafka_options=options,
        cores=context.defaultParallelism,
    )


def _is_batch(frame: Any) -> bool:
    """Whether the frame is what foreachBatch was given: anything done to it since is a node on top."""
    return bool(frame._jdf.queryExecution().logical().getClass().getSimpleName() == "LogicalRDD")


def _kafka_options(plan: Any) -> dict[str, str] | None:
    """The options of the Kafka scan right below the writing node; None where anything else is there."""
    children = _sequence(plan.children())
    if len(children) != 1 or "ScanRelation" not in children[0].getClass().getSimpleName():
        return None
    scan = children[0]
    if "Kafka" not in scan.stream().getClass().getSimpleName():
        return None
    options = scan.relation().options().asCaseSensitiveMap()
    return {str(name): str(options.get(name)) for name in options.keySet()}


def _sequence(items: Any) -> list[Any]:
    return [items.apply(i) for i in range(items.size())]
