"""The Spark that tests use: one JVM, started when a test first asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from headgate.streaming.delta.tables import delta_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    # As in the sessions of most people; `headgate ingest` and `headgate.session()` schedule fairly.
    "spark.scheduler.mode": "FIFO",
    # Rows that pass through the driver would not fit.
    "spark.driver.maxResultSize": "1m",
    # Delta for the tests that use it: one JVM serves all. Its own default of 50 tasks a snapshot is for clusters.
    **delta_settings(),
    "spark.databricks.delta.snapshotPartitions": "2",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two cores, and tasks that may be tried four times."""
    from pyspark import SparkContext

    from headgate.streaming.spark.session import local_session

    session = local_session(2, settings=SETTINGS)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
    if (gateway := SparkContext._gateway) is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
