"""The local Spark of a command: it ends with the command and has none of the user's catalogs."""

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

SNAPSHOT_TASKS = "spark.databricks.delta.snapshotPartitions"
"""Tasks that Delta uses to read its log. The default of 50 is for clusters and takes a minute on one machine."""


@contextmanager
def own_spark(
    cores: int | None, settings: Mapping[str, str], ready: Callable[[], object] = lambda: None
) -> Iterator[tuple[SparkSession, Path]]:
    """A Spark session that ends with the block, and its log, which is kept only after a failure.

    `settings` are added to `local_session`'s. `ready` is called after the start. Raises JarsMissing, SparkFailed,
    MissingExtra.
    """
    with tempfile.NamedTemporaryFile(prefix="headgate-spark-", suffix=".log", delete=False) as log:
        log_file = Path(log.name)
    quiet_py4j()
    try:
        spark = local_session(cores, log_file=log_file, settings=settings)
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
    """Spark settings for a ledger at a path: Delta, and s3a access if needed.

    Raises InvalidInput for a catalog name, and JarsMissing.
    """
    path = DeltaName(target, "ledger").path
    if path is None:
        raise InvalidInput(
            f"The ledger {target!r} must be a path: a command starts its own Spark, which has no catalogs.",
            advice="pass the ledger's path, or call headgate.rebuild_ledger(spark, …) and ShardSink(ledger=…) in a "
            "session that has the catalog",
        )
    return {**delta_settings(), SNAPSHOT_TASKS: "2", **reaches(path, storage_options)}
