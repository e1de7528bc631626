"""A local Spark session for the sink: with headgate's jars, this Python, no web UI, and a separate log."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.connectors.extras import needs
from headgate.connectors.jars.lists import JarsMissing, spark_jars
from headgate.errors import HeadgateError, InvalidInput
from headgate.spark import versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_TRIES = 4
"""Task retries, as on a cluster. Plain local mode would fail a query with its first failed task."""


_REAPED = 1.0
"""Seconds to wait for a process to exit after its connections have closed."""


_NEEDED = {
    "org.apache.spark.sql.kafka010.KafkaSourceProvider": "spark-sql-kafka-0-10",
    "org.apache.spark.kafka010.KafkaTokenUtil": "spark-token-provider-kafka-0-10",
    "org.apache.kafka.clients.consumer.KafkaConsumer": "kafka-clients",
    "org.apache.commons.pool2.PooledObjectFactory": "commons-pool2",
}
"""One class of each jar that Spark's Kafka source needs. Spark's errors name none of these jars, or one at a time."""


class SparkFailed(HeadgateError):
    """Spark did not start, or a query of it ended for a reason outside headgate."""

    next_step = "read the end of Spark's log, named above"


def session(spark: SparkSession | None = None, *, cores: int | None = None, **settings: str) -> SparkSession:
    """A SparkSession that can read Kafka: the given one, the active one or the one from `spark-submit`, else a new
    local one with headgate's jars and this many `cores` (None: all).

    `settings` are Spark settings such as `**{"spark.sql.shuffle.partitions": "4"}`, for new sessions only. Raises
    JarsMissing with all jars that the session lacks (not checked with Spark Connect), SparkFailed, MissingExtra,
    InvalidInput for a Spark that headgate does not run on.
    """
    with needs():
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

    versions.line()
    quiet_py4j()
    if spark is None:
        if SparkContext._active_spark_context is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
            return local_session(cores, settings=settings)
        spark = SparkSession.builder.config(map=dict(settings)).getOrCreate()
    elif settings or cores is not None:
        raise InvalidInput(
            "The settings of an existing session cannot be changed.", advice="set them when you build the session"
        )
    if missing := [jar for name, jar in _NEEDED.items() if not has_class(spark, name)]:
        raise JarsMissing(
            f"The Spark session lacks jars for Kafka: {', '.join(missing)}.",
            advice='start Spark with --jars "$(headgate jars show --comma)", or let headgate.session() start it in a '
            "new process: a running JVM accepts no more jars",
        )
    return spark


def has_class(spark: SparkSession, name: str) -> bool:
    """True if the session's JVM has the class. Spark Connect does not expose this."""
    if getattr(spark, "_jsparkSession", None) is None:
        return True
    jvm: Any = spark._jvm
    try:
        jvm.java.lang.Class.forName(name, False, jvm.java.lang.Thread.currentThread().getContextClassLoader())
    except Exception:
        return False
    return True


def local_session(
    cores: int | None = None,
    *,
    log_file: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark in a JVM of its own, on `cores` cores (None: all).

    The JVM ends with this process, and ignores SIGINT and SIGTERM: if a supervisor signals all processes of a service,
    this process still needs Spark for a clean end. Output of the JVM and its workers goes to `log_file`, if given.
    `settings` and jars are added to headgate's own. Raises JarsMissing, SparkFailed, MissingExtra.
    """
    with needs():
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkException
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession

    # Workers must be this very interpreter: another one may lack headgate, or be another version.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    threads = cores or os.cpu_count() or 1
    given = dict(settings or {})
    jars = ",".join([*map(str, spark_jars()), *filter(None, [given.pop("spark.jars", "")])])
    ours = {
        "spark.master": f"local[{threads},{TASK_TRIES}]",
        "spark.app.name": "headgate",
        "spark.jars": jars,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(threads),
        # Batches and maintenance share the cores.
        "spark.scheduler.mode": "FAIR",
        # Spark creates this folder as soon as SQL looks up a table; headgate stores nothing there.
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "headgate-warehouse"),
        # Times in a table are instants; the machine's time zone must not matter.
        "spark.sql.session.timeZone": "UTC",
        **given,
    }
    conf = SparkConf().setAll(list(ours.items()))
    try:
        with _printing_to(log_file), warnings.catch_warnings():
            # The fork for the JVM runs nothing of Lance.
            warnings.filterwarnings("ignore", "lance is not fork-safe")
            if SparkContext._gateway is None:
                SparkContext._ensure_initialized(gateway=launch_gateway(conf, _Deaf()), conf=conf)  # type: ignore[no-untyped-call]
            session = SparkSession.builder.config(conf=conf).getOrCreate()
    except PySparkException as error:
        raise SparkFailed(
            f"Spark did not start: {versions.condition_of(error) or type(error).__name__}.",
            log=None if log_file is None else str(log_file),
            advice="check that Java 17 or newer is on PATH or in JAVA_HOME, and read Spark's log",
        ) from error
    session.sparkContext.setLogLevel("WARN")
    return session


def kill_jvm() -> None:
    """End the JVM that this process started, at once."""
    from pyspark import SparkContext

    started: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    if started is not None:
        started.kill()
        started.wait()


def jvm_gone(log_file: Path | None, error: BaseException) -> SparkFailed | None:
    """Checks, after a call failed with `error`, if the JVM that this process started has ended."""
    from pyspark import SparkContext

    started: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None) or _launched(error)
    if started is None:
        return None
    try:
        code = started.wait(_REAPED)
    except subprocess.TimeoutExpired:
        return None
    return SparkFailed(
        f"Spark's JVM ended: {f'signal {-code}' if code < 0 else f'exit code {code}'}.",
        log=None if log_file is None else str(log_file),
        advice="read the end of Spark's log, and check if the machine ran out of memory; then start again: committed "
        "rows stay, exactly once",
    )


def quiet_py4j() -> None:
    """Stop py4j from logging tracebacks to the root logger."""
    logging.getLogger().addFilter(_not_of_py4j)


def quiet_accumulators(spark: SparkSession) -> None:
    """PySpark's thread for accumulators prints a traceback when the JVM dies; this suppresses it."""
    server = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None


def _not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


class _Deaf(dict[str, Any]):
    """Options for the JVM's process. PySpark puts its own preexec_fn there, which ignores SIGINT alone. A JVM leaves
    signals alone that are ignored when it starts; this one still ends when the pipe to its stdin does.
    """

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, _ignore_stops if name == "preexec_fn" else value)


def _ignore_stops() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _launched(error: BaseException) -> subprocess.Popen[bytes] | None:
    """The JVM process from the traceback of a failed start: PySpark makes several calls to it before it returns it."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "launch_gateway":
            return frame.f_locals.get("proc")
    return None


@contextmanager
def _printing_to(log_file: Path | None) -> Iterator[None]:
    """Processes started in the block inherit the file as stdout and stderr, for their whole life."""
    if log_file is None:
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    with log_file.open("ab") as log:
        kept = {number: os.dup(number) for number in (1, 2)}
        try:
            for number in kept:
                os.dup2(log.fileno(), number)
            yield
        finally:
            for number, copy in kept.items():
                os.dup2(copy, number)
                os.close(copy)
