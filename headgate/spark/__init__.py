"""Helpers for a Spark session that all packages use. Imports no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headgate.errors import DataLoss, Fenced, InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESULT = "result string"
"""Spark schema of task results: lines of JSON."""

FINAL = (Fenced, InvalidInput, DataLoss)
"""Errors that a retry cannot fix: tasks return them to the driver instead of raising them, so that Spark does not
retry.
"""


@contextmanager
def described(spark: SparkSession, name: str) -> Iterator[None]:
    """Name this thread's jobs in Spark's UI. They stay in the caller's scheduler pool."""
    if is_remote(spark):
        yield  # Spark Connect names its jobs itself
        return
    spark.sparkContext.setJobDescription(name)
    try:
        yield
    finally:
        spark.sparkContext.setJobDescription(None)  # type: ignore[arg-type]


def is_remote(spark: SparkSession) -> bool:
    """True for Spark Connect sessions, which expose neither jobs nor cores."""
    return getattr(spark, "_jsparkSession", None) is None
