"""Spark's classes, loaded and checked once for all the JVMs of the tests: a session starts in two thirds of the time.

`python -m tests.support.classes`, which `make test` calls, writes the archive beside the packages that it holds, and
does nothing where it is there. A JVM that cannot use it (another Java, other jars) starts without it, as slowly as
ever.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
MADE_OF = ARCHIVE.with_suffix(".txt")
"""The Java and the Spark that it was made with."""

BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM of a test lives for seconds: compiling well takes longer than it saves. Tests that start many take half as
long."""
SHARED = f"-XX:SharedArchiveFile={ARCHIVE} -Xlog:disable -Xlog:all=error:stderr"
"""Silent where it cannot be used: what a command prints is read by tests."""


def java_options() -> str:
    """For JAVA_TOOL_OPTIONS of every JVM that a test starts."""
    return f"{BRIEF} {SHARED}" if ARCHIVE.exists() and " " not in str(ARCHIVE) else BRIEF


def make() -> None:
    """Write the archive, unless it is there for this Java and this Spark. No archive is no failure."""
    import pyspark

    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    version = subprocess.run([java, "-version"], capture_output=True, text=True).stderr
    wanted = f"{version}{pyspark.__version__}\n"
    if ARCHIVE.exists() and MADE_OF.exists() and MADE_OF.read_text() == wanted:
        return
    print("Archiving Spark's classes for the tests, half a minute the first time", flush=True)
    ARCHIVE.unlink(missing_ok=True)
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": BRIEF}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.classes", "use"], env=environment, capture_output=True, text=True
    )
    if done.returncode or not ARCHIVE.exists():
        print(f"Spark's classes could not be archived, its tests start more slowly: {done.stderr[-300:]}", flush=True)
        return
    MADE_OF.write_text(wanted)


def use() -> None:
    """A session that does what those of the tests do; its JVM writes the archive when it ends."""
    from headgate.streaming.spark.session import local_session

    spark = local_session(2, settings={"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={ARCHIVE}"})
    rows = spark.range(1000).selectExpr("id", "id % 7 as k")
    rows.groupBy("k").count().collect()
    rows.repartition(2, "k").mapInArrow(lambda batches: batches, "id long, k long").count()
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "10").load()

    def count(frame: Any, number: int) -> None:
        frame.mapInArrow(lambda some: some, frame.schema).count()

    query = stream.writeStream.foreachBatch(count)
    running = query.trigger(processingTime="0 seconds").start()
    while not running.recentProgress:
        running.awaitTermination(1)
    running.stop()
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    use() if sys.argv[1:] == ["use"] else make()
