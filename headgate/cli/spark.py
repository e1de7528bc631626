"""The Spark that a command starts for itself: it ends with the command, and knows none of the user's catalogs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.errors import HeadgateError, InvalidInput
from headgate.streaming.delta.tables import DeltaName, delta_settings
from headgate.streaming.spark.s3a import reaches
from headgate.streaming.spark.session import (
    SparkFailed,
    jvm_gone,
    kill_jvm,
    local_session,
    quiet_accumulators,
    quiet_py4j,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAIR = {"spark.scheduler.mode": "FAIR"}
SNAPSHOT_TASKS = "spark.databricks.delta.snapshotPartitions"
"""Tasks by which Delta reads its own log. Its 50 are for clusters; on one machine the first rows took a minute."""


@contextmanager
def own_spark(
    cores: int | None, settings: Mapping[str, str], ready: Callable[[], object] = lambda: None
) -> Iterator[tuple[SparkSession, Path]]:
    """A Spark that ends with the block, and its log, which is kept only where it is needed to understand a failure.

    It schedules fairly, so that batches and maintenance share its cores; `settings` come on top of that.
    `ready` is called when it has started. Raises JarsMissing, SparkFailed, MissingExtra.
    """
    with tempfile.NamedTemporaryFile(prefix="headgate-spark-", suffix=".log", delete=False) as log:
        log_file = Path(log.name)
    quiet_py4j()
    try:
        spark = local_session(cores, log_file=log_file, settings={**FAIR, **settings})
        quiet_accumulators(spark)
        ready()
        try:
            yield spark, log_file
        except KeyboardInterrupt:
            # Nobody waits any more, and whatever is asked of the JVM would wait for the call that was cut off.
            kill_jvm()
            raise
        except BaseException:
            _stop(spark)
            raise
        _stop(spark)
    except SparkFailed:
        raise
    except BaseException as error:
        known = isinstance(error, HeadgateError) or not isinstance(error, Exception)
        if not known and (gone := jvm_gone(log_file, error)) is not None:
            raise gone from error
        log_file.unlink()
        raise
    log_file.unlink()


def _stop(spark: SparkSession) -> None:
    # A JVM that is gone has stopped.
    with suppress(Exception):
        spark.stop()


def ledger_settings(target: str, storage_options: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a command's Spark needs for a ledger at a path: Delta, and on s3a what reaches it.

    Raises InvalidInput for a name in a catalog, JarsMissing.
    """
    path = DeltaName(target, "ledger").path
    if path is None:
        raise InvalidInput(
            f"A command has a Spark of its own, which knows no catalog with {target!r}.",
            advice="give the ledger's path, or call headgate.rebuild_ledger(spark, …) and ShardSink(ledger=…) in a "
            "session that has the catalog",
        )
    return {**delta_settings(), SNAPSHOT_TASKS: "2", **reaches(path, storage_options)}
