"""DeltaMirror: a Delta table that is kept equal to a table, fed by its commit logs.

Promises:
1. After each batch the mirror equals the table at some sequences of its streams; when all is read, it equals the table.
2. Restartable at any point: the initial snapshot and every batch are one Delta transaction each, applied once. A driver
   believed dead changes nothing.
3. A checkpoint of Spark and a target belong together, and both know it. One without the other is refused, so that rows
   are neither missing nor duplicated.

Not included: rows that a ShardWriter writes without a stream, or others write to the base, after the mirror has
started.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from headgate.checkpoints.spark.directory import SparkCheckpoint
from headgate.checkpoints.spark.rebuild import write_files
from headgate.connectors.objects import open_store
from headgate.errors import InvalidInput, NotFound
from headgate.shards.home.stores import Place
from headgate.streaming.delta.mirror_batches import MirrorBatches
from headgate.streaming.delta.tables import DeltaName, check_delta, quoted, sql_type, text
from headgate.table.table import Table, as_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MirrorMode = Literal["append", "merge"]

BEGINNING = timedelta(days=30)
"""How long the initial snapshot is held, unless the second batch comes earlier: see `_begin`."""

_QUERY, _TABLE = "headgate.mirror.query", "headgate.mirror.table"
"""Properties of the Delta table: the mirrored table and the query."""


class DeltaMirror:
    """`DeltaMirror(table, target).start(spark, checkpoint=…)`. Writes nothing before `start`."""

    def __init__(
        self,
        table: Table | Place,
        target: Place,
        *,
        mode: MirrorMode | None = None,
        storage_options: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """`target` is a path, or schema.table in Spark's catalog. The default `mode` follows from the table: merge if
        it has a key (updates and deletes), else append. `options` are those of `headgate.read_log`, such as
        maxRowsPerTrigger. Raises InvalidInput, NotFound.
        """
        self._table = as_table(table, storage_options)
        self._storage = dict(storage_options or self._table.storage_options or {})
        self._name = DeltaName(os.fspath(target))
        self._options = {name: str(value) for name, value in options.items()}
        self.mode = checked_mode(mode, self._table)

    def start(
        self, spark: SparkSession, *, checkpoint: Place, trigger: Mapping[str, Any] | None = None
    ) -> StreamingQuery:
        """Keep the mirror up to date until the query is stopped. THIS WRITES.

        1. The checkpoint location gets the query's id, if it has none.
        2. A missing target is created from the current table, in one transaction.
        3. The query follows the commit logs from exactly that instant, or from where it stopped.

        `trigger` as in `DataStreamWriter.trigger`. Raises InvalidInput if checkpoint, target and table do not belong
        together.
        """
        check_delta(spark, "A DeltaMirror")
        self._table = self._table.refreshed()
        checkpoint = os.fspath(checkpoint)
        place = SparkCheckpoint(checkpoint, self._storage)
        query_id = _query_of(place, self._storage)
        start = f"mirror-{query_id}"
        if not self._name.exists(spark):
            if place.planned():
                raise InvalidInput(
                    f"The checkpoint belongs to a mirror whose target {self._name.shown} is missing.",
                    checkpoint=place.uri,
                    advice="start with an empty checkpoint location: that rebuilds the mirror",
                )
            self._begin(spark, query_id, start)
        else:
            self._check(spark, query_id, place)
        columns = tuple(self._table.schema.names)
        self._add_columns(spark)
        keys = tuple(self._table.primary_key) if self.mode == "merge" else ()
        apply = MirrorBatches(self._table.uri, self._name.given, columns, keys, query_id, start, self._storage)
        options = {**self._options, "log": "true", "consumer": start}
        if not place.commits():
            options["checkpoint"] = start
        log = self._frame(spark, stream=True, **options)
        writer = log.writeStream.foreachBatch(apply).option("checkpointLocation", checkpoint)
        return (writer if trigger is None else writer.trigger(**trigger)).start()

    def run_once(self, spark: SparkSession, *, checkpoint: Place) -> None:
        """Bring the mirror up to date and return. Raises as `start` does, and Spark's errors."""
        self.start(spark, checkpoint=checkpoint, trigger={"availableNow": True}).awaitTermination()

    # -- start --------------------------------------------------------------------------

    def _begin(self, spark: SparkSession, query_id: str, start: str) -> None:
        """Create the target from a checkpoint of the table. A crash leaves no target, and the next start begins again.

        The query also starts at this checkpoint, until its first batch is done: Spark asks again after a crash.
        """
        if any(one.checkpoint.name == start for one in self._table.checkpoints()):
            self._table.drop_checkpoint(start)  # left by a start that did not create the target
        self._table.checkpoint(name=start, expires=BEGINNING, note=f"a mirror starts: {self._name.shown}")
        view = f"headgate_mirror_{uuid.uuid4().hex}"
        self._frame(spark, stream=False, checkpoint=start).createOrReplaceTempView(view)
        properties = {_QUERY: query_id, _TABLE: str(self._table.table_id)}
        listed = ", ".join(f"{text(name)} = {text(value)}" for name, value in properties.items())
        try:
            # Not CREATE TABLE: to Delta, a folder that a killed start left without a commit is an existing table.
            spark.sql(
                f"CREATE OR REPLACE TABLE {self._name.sql} USING delta TBLPROPERTIES ({listed}) AS SELECT * FROM {view}"
            ).collect()
        finally:
            spark.catalog.dropTempView(view)

    def _check(self, spark: SparkSession, query_id: str, place: SparkCheckpoint) -> None:
        rows = spark.sql(f"SHOW TBLPROPERTIES {self._name.sql}").collect()
        properties = {row["key"]: row["value"] for row in rows}
        facts: dict[str, Any] = {"target": self._name.shown, "checkpoint": place.uri}
        if _QUERY not in properties:
            raise InvalidInput(
                "The target is a Delta table, but not a mirror.", advice="choose another target, or drop it", **facts
            )
        if properties.get(_TABLE) != str(self._table.table_id):
            raise InvalidInput("The target is the mirror of another table.", table=self._table.uri, **facts)
        if properties[_QUERY] != query_id:
            raise InvalidInput(
                "The target belongs to a query with another checkpoint location.",
                **facts,
                advice="start the query with that location; or drop the target, to rebuild it; nothing was written",
            )

    def _add_columns(self, spark: SparkSession) -> None:
        """Add new columns of the table. A dropped or changed column needs a new mirror."""
        from headgate.streaming.datasource.types import spark_schema

        wanted = spark_schema(self._table.schema)
        there = spark.sql(f"SELECT * FROM {self._name.sql} LIMIT 0").schema
        known = {field.name: sql_type(field.dataType) for field in there}
        gone = [name for name in known if name not in wanted.fieldNames()]
        changed = [one.name for one in wanted if one.name in known and known[one.name] != sql_type(one.dataType)]
        if gone or changed:
            raise InvalidInput(
                f"Column {(gone + changed)[0]!r} of the mirror no longer matches the table.",
                target=self._name.shown,
                advice="drop the target and start with an empty checkpoint location: that rebuilds the mirror",
            )
        new = [field for field in wanted if field.name not in known]
        if new:
            added = ", ".join(f"{quoted(field.name)} {sql_type(field.dataType)}" for field in new)
            spark.sql(f"ALTER TABLE {self._name.sql} ADD COLUMNS ({added})")

    def _frame(self, spark: SparkSession, *, stream: bool, **options: str) -> DataFrame:
        from headgate.streaming.datasource.source import NAME, register

        if not _knows(spark, NAME):
            register(spark)
        options |= {f"storage.{name}": value for name, value in self._storage.items()}
        reader: Any = spark.readStream if stream else spark.read
        frame: DataFrame = reader.format(NAME).options(**options).load(self._table.uri)
        return frame


def _knows(spark: SparkSession, source: str) -> bool:
    """True if the data source is registered. Unknown with Spark Connect; registering twice does no harm."""
    session: Any = getattr(spark, "_jsparkSession", None)
    return session is not None and bool(session.sessionState().dataSourceManager().dataSourceExists(source))


def checked_mode(mode: str | None, table: Table) -> MirrorMode:
    """Raises InvalidInput for a mode that cannot keep the target equal to the table."""
    wanted: MirrorMode = "merge" if table.primary_key else "append"
    if mode not in (None, "append", "merge"):
        raise InvalidInput(f"The mode of a mirror must be append or merge, got {mode!r}.")
    if mode in (None, wanted):
        return wanted
    why = "has a key: in append mode, updates and deletes would become extra rows"
    if wanted == "append":
        why = "has no key to merge by"
    raise InvalidInput(f"The table {why}.", table=table.uri, advice=f"leave out mode=, or pass mode={wanted!r}")


def _query_of(place: SparkCheckpoint, storage: Mapping[str, str]) -> str:
    """The id of the query at a checkpoint location. A location without one gets one, as Spark writes it, before
    anything else knows it. THIS WRITES there.
    """
    try:
        return place.query_id()
    except NotFound:
        if place.names():
            raise InvalidInput(
                "The checkpoint location contains files that are not Spark's.", checkpoint=place.uri
            ) from None
        query_id = str(uuid.uuid4())
        data = json.dumps({"id": query_id}, separators=(",", ":")).encode()
        write_files(open_store(place.location, storage or None), [("metadata", data)])
        return query_id
