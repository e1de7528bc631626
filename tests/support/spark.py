"""The Spark that tests use: one JVM at a time, started when a test first asks, and again where settings differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

from headgate.streaming.delta.tables import delta_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    # Rows that pass through the driver would not fit.
    "spark.driver.maxResultSize": "1m",
    # Delta for the tests that use it: one JVM serves all. Its own default of 50 tasks a snapshot is for clusters.
    **delta_settings(),
    "spark.databricks.delta.snapshotPartitions": "2",
}

_running: list[tuple[Mapping[str, str], SparkSession]] = []


@pytest.fixture
def spark() -> SparkSession:
    """Two cores, and tasks that may be tried four times."""
    return spark_with({})


def spark_with(more: Mapping[str, str]) -> SparkSession:
    """The session that runs, where it has these settings; else a new one, in a JVM of its own."""
    from headgate.streaming.spark.session import local_session

    if _running and _running[0][0] == more:
        return _running[0][1]
    end_spark()
    # A JVM keeps the settings that it was started with, also for later sessions.
    session = local_session(2, settings={**SETTINGS, **more})
    session.sparkContext.setLogLevel("OFF")
    _running[:] = [(more, session)]
    return session


def end_spark() -> None:
    """Stop the session and its JVM."""
    from pyspark import SparkContext

    if (left := SparkContext._active_spark_context) is not None:
        left.stop()
    if (gateway := SparkContext._gateway) is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
        SparkContext._gateway = SparkContext._jvm = None
    _running.clear()


@pytest.fixture(scope="session", autouse=True)
def _end_spark_with_the_run() -> Iterator[None]:
    yield
    if _running:
        end_spark()
