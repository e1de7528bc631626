"""The Spark that a command starts for itself: it ends with the command, and knows none of the user's catalogs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.errors import InvalidInput
from headgate.streaming.delta_tables import DeltaName
from headgate.streaming.session import SparkFailed, local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def own_spark(
    cores: int | None, settings: Mapping[str, str], ready: Callable[[], object] = lambda: None
) -> Iterator[tuple[SparkSession, Path]]:
    """A Spark that ends with the block, and its log, which is kept only where it is needed to understand a failure.

    `ready` is called when it has started. Raises JarsMissing, SparkFailed, MissingExtra.
    """
    with tempfile.NamedTemporaryFile(prefix="headgate-spark-", suffix=".log", delete=False) as log:
        log_file = Path(log.name)
    try:
        spark = local_session(cores, log_file=log_file, settings=settings)
        ready()
        try:
            yield spark, log_file
        finally:
            # A JVM that is gone has stopped.
            with suppress(Exception):
                spark.stop()
    except SparkFailed:
        raise
    except BaseException:
        log_file.unlink()
        raise
    log_file.unlink()


def check_ledger(target: str) -> None:
    """Raises InvalidInput for a name in a catalog."""
    if DeltaName(target, "ledger").path is None:
        raise InvalidInput(
            f"A command has a Spark of its own, which knows no catalog with {target!r}.",
            advice="give the ledger's path, or call headgate.rebuild_ledger(spark, …) and ShardSink(ledger=…) in a "
            "session that has the catalog",
        )
