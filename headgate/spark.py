"""What every room asks of a Spark session. Imports no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headgate.errors import DataLoss, Fenced, InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESULT = "result string"
"""Spark schema of what tasks answer: lines of JSON."""

FINAL = (Fenced, InvalidInput, DataLoss)
"""Errors that another attempt would meet again: returned to the driver instead of being raised to Spark's retries."""


@contextmanager
def described(spark: SparkSession, name: str) -> Iterator[None]:
    """Jobs of this thread have the name in Spark's pages, and stay in the pool of whoever runs them."""
    if is_remote(spark):
        yield  # Spark Connect names its jobs itself
        return
    spark.sparkContext.setJobDescription(name)
    try:
        yield
    finally:
        spark.sparkContext.setJobDescription(None)  # type: ignore[arg-type]


def is_remote(spark: SparkSession) -> bool:
    """Whether it is a session of Spark Connect, which tells neither jobs nor cores."""
    return getattr(spark, "_jsparkSession", None) is None
