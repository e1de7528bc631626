"""What Spark knows of the query that a batch belongs to. The only code that looks behind the public API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headgate.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


@dataclass(frozen=True)
class QueryFacts:
    """The query as Spark sees it; None for what this kind of session does not tell."""

    query_id: str | None
    checkpoint: str | None
    name: str | None
    bare_kafka: bool | None
    """Whether the frame is Spark's Kafka source and nothing else."""
    kafka_options: dict[str, str] | None
    """The source's options where it is one bare Kafka source."""
    cores: int


def query_facts(frame: DataFrame) -> QueryFacts:
    """Of the query whose batch this is. On Spark Connect little is known, and the caller says the rest."""
    session = frame.sparkSession
    java_session = getattr(session, "_jsparkSession", None)
    if java_session is None:
        return QueryFacts(None, None, None, None, None, 2)
    context = session.sparkContext
    query_id = context.getLocalProperty("sql.streaming.queryId")
    if query_id is None:
        raise InvalidInput(
            "The sink was called outside a streaming query.", advice="pass it to writeStream.foreachBatch(sink)"
        )
    jvm: Any = session._jvm
    query = java_session.sharedState().activeStreamingQueries().get(jvm.java.util.UUID.fromString(query_id))
    if query is None:
        return QueryFacts(query_id, None, None, None, None, context.defaultParallelism)
    bare, options = _source(query)
    root = query.resolvedCheckpointRoot()
    return QueryFacts(query_id, root, query.name(), bare, options, context.defaultParallelism)


def _source(query: Any) -> tuple[bool | None, dict[str, str] | None]:
    """Whether the plan is the writing node right upon one Kafka scan, and that scan's options."""
    plan = query.logicalPlan()
    children = _sequence(plan.children())
    if len(children) != 1 or "ScanRelation" not in children[0].getClass().getSimpleName():
        return False, None
    scan = children[0]
    if "Kafka" not in scan.stream().getClass().getSimpleName():
        return False, None
    options = scan.relation().options().asCaseSensitiveMap()
    return True, {str(name): str(options.get(name)) for name in options.keySet()}


def _sequence(items: Any) -> list[Any]:
    return [items.apply(i) for i in range(items.size())]
