"""Paths of the jars that `make setup` or `headgate jars fetch` downloaded, for Kafka's broker and for Spark.

Nothing is fetched here: missing jars raise JarsMissing, which says how to get them.
"""

from __future__ import annotations

import os
from pathlib import Path

from headgate.errors import HeadgateError
from headgate.spark.versions import spark_line


class JarsMissing(HeadgateError):
    """A set of jars is not in the cache directory."""

    next_step = (
        "run `headgate jars fetch` (in a checkout: `make setup`); if the jars are in another cache directory, "
        "set HEADGATE_CACHE"
    )


def cache_directory() -> Path:
    """HEADGATE_CACHE, else ~/.cache/headgate."""
    return Path(os.environ.get("HEADGATE_CACHE") or "~/.cache/headgate").expanduser()


def kafka_classpath() -> str:
    """The argument of `java -cp` for Kafka's own classes. Raises JarsMissing."""
    return str(_jar_set("kafka", "kafka_2.13-*.jar").parent / "*")


def spark_jars() -> list[Path]:
    """The jars that the installed Spark needs beside its own: Kafka source and Delta. Raises JarsMissing."""
    jars = _jar_set(f"spark-{spark_line()}", "spark-sql-kafka-*.jar").parent
    return sorted(jars.glob("*.jar"))


def s3a_jars() -> list[Path]:
    """The jars that the installed Spark needs to keep its own checkpoint on S3. `jars fetch` fetches them only by name.

    Raises JarsMissing.
    """
    fetch = "run `headgate jars fetch s3a`; if the jars are in another cache directory, set HEADGATE_CACHE"
    return sorted(_jar_set(f"s3a-{spark_line()}", "hadoop-aws-*.jar", fetch).parent.glob("*.jar"))


def _jar_set(name: str, witness: str, advice: str | None = None) -> Path:
    directory = cache_directory() / "jars" / name
    found = next(directory.glob(witness), None)
    if found is None:
        raise JarsMissing(f"The {name} jars were not found in {directory}.", advice=advice)
    return found
