from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headgate.connectors.objects.memory import MemoryStore
from headgate.connectors.objects.port import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent

# The faulty store and the producers of other folders serve these tests as well.
sys.path[:0] = [
    str(HERE),
    str(HERE.parent / "faults"),
    str(HERE.parent / "checkpoints"),
    str(HERE.parent / "connectors" / "kafka"),
]


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    """A fresh store in memory."""
    name = uuid.uuid4().hex
    yield MemoryStore(f"memory://{name}")
    MemoryStore.drop(name)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark for all tests here, with two cores and tasks that may be tried four times."""
    from headgate.streaming.session import local_session

    _end_jvm()
    settings = {"spark.executorEnv.PYTHONPATH": str(HERE), "spark.driver.maxResultSize": "1m"}
    session = local_session(2, settings=settings)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def _end_jvm() -> None:
    """A JVM that another test has started may lack our jars, and takes none later."""
    from pyspark import SparkContext

    if (left := SparkContext._active_spark_context) is not None:
        left.stop()
    if (gateway := SparkContext._gateway) is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
        SparkContext._gateway = SparkContext._jvm = None
