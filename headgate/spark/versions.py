"""The lines of Spark that headgate runs on: what each has, and the other way where it lacks it. Nothing else asks for a
version. Imports no Spark.

A line is what one patch release was tested for: 4.0 stands for all 4.0.x.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

from headgate.errors import InvalidInput, MissingExtra


@dataclass(frozen=True)
class Line:
    """What a line of Spark has of what is not in all of them."""

    name: str
    tested: str
    """The release that the tests run on."""
    data_sources: bool = True
    """`format("headgate")`, and `spark.read.format("headgate")`."""
    connect: bool = True
    pipelines: bool = True
    """Declarative pipelines, which may end in `format("headgate")`."""
    keeps_plans: bool = True
    """A read by `format("headgate")` is planned once for a frame, however often that is used."""
    read_limits: bool = True
    """A Python source may limit its batches."""
    newest_python: tuple[int, int] | None = None

    @property
    def lacks(self) -> tuple[str, ...]:
        """What cannot be done here, for people."""
        found = {
            'format("headgate"), DeltaMirror and pipelines: write by ShardSink, read by Table': not self.data_sources,
            "Spark Connect": not self.connect,
            "one instant for all queries on a frame of a table: name one by the option checkpoint": (
                self.data_sources and not self.keeps_plans
            ),
            "declarative pipelines": self.data_sources and not self.pipelines,
            "limits of a batch that reads a log (maxRows and its like)": self.data_sources and not self.read_limits,
        }
        return tuple(text for text, is_lacking in found.items() if is_lacking)


LINES = {
    line.name: line
    for line in (
        Line(
            "3.5",
            "3.5.3",
            data_sources=False,
            connect=False,
            pipelines=False,
            keeps_plans=False,
            read_limits=False,
            newest_python=(3, 11),
        ),
        Line("4.0", "4.0.1", pipelines=False, keeps_plans=False, read_limits=False),
        Line("4.1", "4.1.1", read_limits=False),
        Line("4.2", "4.2.0"),
    )
}


def spark_version() -> str | None:
    """Of the pyspark that would be imported; None where there is none. Spark's own folder on a cluster's path, which no
    installer knows, counts too.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    loader: Any = spec.loader
    text = loader.get_data(os.path.join(os.path.dirname(spec.origin), "version.py")).decode()
    return str(text.rpartition("__version__")[2].partition("=")[2].split()[0].strip("\"'"))


def spark_line() -> str | None:
    """The line of that pyspark, such as 4.2, whether headgate runs on it or not."""
    found = spark_version()
    return None if found is None else ".".join(found.split(".")[:2])


@cache
def line() -> Line:
    """The line that this process has. Raises InvalidInput for one that headgate does not run on, MissingExtra."""
    found = spark_line()
    if found is None:
        raise MissingExtra("Spark is not installed.", extra="spark", advice="pip install 'headgate[spark]'")
    if found not in LINES:
        raise InvalidInput(
            f"headgate runs on Spark {', '.join(LINES)}, and this is {spark_version()}.",
            advice="install one of these, such as pip install 'pyspark[sql]==4.2.*'; nothing was written",
        )
    return LINES[found]


def check_session(spark: Any) -> None:
    """Raises InvalidInput for a session that headgate does not run on."""
    if not line().connect and getattr(spark, "_jsparkSession", None) is None:
        raise InvalidInput(
            f"On Spark {line().name} headgate does not run on Spark Connect.",
            advice="use a classic session, or Spark 4.0 and newer; nothing was written",
        )


def check_data_sources() -> None:
    """Raises InvalidInput where Spark has no data sources in Python, MissingExtra where they lack a package."""
    if not line().data_sources:
        raise InvalidInput(
            f'Spark {line().name} has no data sources in Python, so there is no format("headgate") before Spark 4.0.',
            advice="write by writeStream.foreachBatch(headgate.ShardSink(…)), read by headgate.open_table(…).scan()",
        )
    if line().name == "4.0" and find_spec("grpc") is None:
        raise MissingExtra(
            "Spark 4.0 plans data sources in Python by a module that imports grpc.",
            extra="spark",
            advice="pip install 'pyspark[connect]==4.0.*', on the driver and the executors",
        )


def check_read_limits() -> None:
    """Raises InvalidInput where Spark asks no source in Python how much a batch may be."""
    if not line().read_limits:
        raise InvalidInput(
            f"On Spark {line().name} a batch that reads a log cannot be limited: that begins with 4.2.",
            advice="leave out maxRows, maxBytes and maxBatches",
        )


def settings_of(spark: Any) -> dict[str, str]:
    """Everything that the session says, as it says it."""
    check_session(spark)
    if line().name == "3.5":
        settings = spark._jsparkSession.sessionState().conf().settings()
        return {str(name): str(value) for name, value in settings.items()}
    return dict(spark.conf.getAll)


def to_tasks(frame: Any, tasks: int, column: str) -> Any:
    """The frame shuffled so that rows whose column holds n, below `tasks`, meet in task n.

    Before 4.1 Spark places rows by a hash alone: each number is replaced by one that has it as its hash.
    """
    if line().name in ("3.5", "4.0"):
        keys = ", ".join(map(str, keys_of_tasks(tasks)))
        placed = frame.selectExpr("*", f"element_at(array({keys}), {column} + 1) AS _place")
        return placed.repartition(tasks, "_place").drop("_place")
    return frame.repartitionById(tasks, column)


@cache
def keys_of_tasks(tasks: int) -> tuple[int, ...]:
    """Per task a number that Spark's hash partitioning sends there."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < tasks:
        found.setdefault(_murmur(number) % tasks, number)
        number += 1
    return tuple(found[task] for task in range(tasks))


def _murmur(number: int) -> int:
    """Spark's hash of an INT that is not negative: Murmur3, 32 bits, seed 42, signed."""
    mixed = _rotated(number * 0xCC9E2D51 & _WORD, 15) * 0x1B873593 & _WORD
    mixed = (_rotated(42 ^ mixed, 13) * 5 + 0xE6546B64) & _WORD ^ 4
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & _WORD
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & _WORD
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed >> 31 else mixed


_WORD = 0xFFFFFFFF


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & _WORD


def takes_arrow_tables() -> bool:
    """Whether `createDataFrame` does."""
    return line().name != "3.5"


def arrow_arguments() -> Mapping[str, Any]:
    """For pyspark's `to_arrow_schema`, so that timestamps are in UTC."""
    return {"timezone": "UTC"} if line().name == "4.2" else {}


def stream_writer(datasource: Any) -> Any:
    """Of the module pyspark.sql.datasource, the class of a stream's writer that gets Arrow batches."""
    if line().name != "4.0":
        return datasource.DataSourceStreamArrowWriter
    # Here Spark asks a stream's writer too whether it is the Arrow writer of batches.
    both = (datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter)
    return type("DataSourceStreamArrowWriter", both, {})


def fill_unasked_sources(session: Any, query: Any) -> None:
    """Called in the first batch of a run, with its query in the JVM. 4.1 ends a query that was started again in the
    middle of a batch, once that batch is done: its Kafka source reports how far it is behind, and was not asked for the
    end of the topic yet (SPARK-55271, mended in 4.1.3). Without any partition it reports nothing.
    """
    if line().name != "4.1":
        return
    sources = query.sources()
    for source in map(sources.apply, range(sources.size())):
        if source.getClass().getSimpleName() == "KafkaMicroBatchStream":
            ends = source.getClass().getDeclaredField("latestPartitionOffsets")
            ends.setAccessible(True)
            if ends.get(source) is None:
                ends.set(source, session._jvm.scala.collection.immutable.HashMap())


def drop_empty_profiles(accumulators: dict[int, Any]) -> None:
    """In a process that plans or commits for a data source in Python: 4.2.0 reports profiles from there though nobody
    asked for any, and the client of a declarative pipeline takes them for an invalid answer (SPARK-59135).
    """
    if line().name == "4.2":
        for number in (-1, -2):
            if number in accumulators and not accumulators[number]._value:
                del accumulators[number]


def condition_of(error: Any) -> str | None:
    """What Spark calls a condition, and called an error class once."""
    return error.getErrorClass() if line().name == "3.5" else error.getCondition()  # type: ignore[no-any-return]
