"""The Spark of a command, when its JVM dies at an awkward moment."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.spark

PROGRAM = """
import sys, psutil, pyspark.java_gateway as gateway
from headgate.cli.spark import own_spark
from headgate.streaming.spark.session import SparkFailed

ask = gateway.java_import

def kill_and_ask(view, name):
    if name == sys.argv[1]:
        for child in psutil.Process().children():
            child.kill()
        while True:
            ask(view, name)
    return ask(view, name)

gateway.java_import = kill_and_ask
try:
    with own_spark(1, {}):
        print("it started")
except SparkFailed as error:
    print(error.what)
"""


@pytest.mark.parametrize("asked", ["org.apache.spark.SparkConf", "scala.Tuple2"], ids=["first", "last"])
def test_a_jvm_that_dies_before_pyspark_hands_it_over_is_told_by_its_signal(asked: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, asked], capture_output=True, text=True, timeout=180, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "Spark's JVM ended: signal 9.\n"), ended.stderr
