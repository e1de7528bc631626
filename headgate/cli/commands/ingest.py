"""`headgate ingest`: stream Kafka topics into a table, with a local Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click
import structlog

from headgate.checkpoints.log.commit_log import read_head
from headgate.checkpoints.spark.directory import SparkCheckpoint, default_checkpoint
from headgate.checkpoints.spark.recover import mend
from headgate.cli.commands.table import open_or_create
from headgate.cli.options.console import ui_host_option, ui_option
from headgate.cli.options.decoder import decoder_options, following_decoder
from headgate.cli.options.duration import DURATION
from headgate.cli.options.kafka import kafka_option, servers_option
from headgate.cli.options.sharding import SHARDING
from headgate.cli.options.table import storage_option
from headgate.cli.options.text import full_text_of, full_text_option
from headgate.cli.options.vectors import vector_option, vectors_of
from headgate.cli.output import Column, Output, TextOutput, output_option
from headgate.cli.signals import quiet_logs
from headgate.cli.spark import ledger_settings, own_spark
from headgate.connectors.objects import open_store
from headgate.errors import InvalidInput, NotFound
from headgate.shards.sharding import Sharding
from headgate.streaming.kafka.offsets import wait_for_topics
from headgate.streaming.kafka.source import MAX_OFFSETS_PER_TRIGGER, KafkaSource, source
from headgate.streaming.kafka.source import read as kafka_frame
from headgate.streaming.observe.logs import Form, configure_logs
from headgate.streaming.running import Done, RunningStream
from headgate.streaming.signals import stop_signals
from headgate.streaming.sink import ShardSink
from headgate.streaming.spark.s3a import reaches
from headgate.table.status import batch_value
from headgate.table.table import Table, open_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = structlog.get_logger("headgate.cli")


def _ranges(sources: list[dict[str, Any]]) -> str:
    return ", ".join(f"{part['topic']}/{part['partition']} [{part['from']}, {part['until']})" for part in sources)


_COLUMNS = (
    Column("batch", 6, right=True),
    Column("sequence", 8, right=True),
    Column("rows", 10, right=True),
    Column("dead_letters", 12, right=True),
    Column("bytes", 13, right=True),
    Column("seconds", 7, right=True),
    Column("skipped", 7),
    Column("offsets", 0, text=_ranges),
)


@click.command(
    epilog="""\b
Example:
  headgate ingest --servers 127.0.0.1:9092 --topic orders --table ./orders \\
      --create "id bigint not null, note string, amount double" --primary-key id \\
      --sharding "bucket(id, 4)"
  headgate ingest --servers 127.0.0.1:9092 --topic orders --table ./orders --once --output json
"""
)
@servers_option(required=True)
@click.option("--topic", "topics", multiple=True, help="A topic to read; may be repeated.")
@click.option(
    "--topic-pattern", metavar="REGEX", help="Or all topics whose full names match, including topics created later."
)
@click.option(
    "--start",
    metavar="WHEN",
    help="Where a new stream begins: earliest (default), latest, or a time in ISO 8601 with time zone.",
)
@click.option("--table", "uri", required=True, metavar="TABLE", help="The table to write to.")
@click.option("--stream", metavar="NAME", help="The stream's name in the table. Default: the topic's name.")
@click.option("--create", "ddl", metavar="DDL", help="Create the table with these columns if it does not exist.")
@click.option("--primary-key", multiple=True, metavar="COLUMN", help="With --create: a key column; may be repeated.")
@click.option(
    "--sharding",
    type=SHARDING,
    metavar="HOW",
    help='With --create, how rows spread over shards: "by_partition()" (the default), "bucket(id, 4)" or "single()".',
)
@full_text_option("With --create: ")
@vector_option("With --create: ")
@click.option(
    "--spark-checkpoint",
    metavar="DIR",
    help="Spark's checkpoint directory. Default for a table on local disk: a folder below the table's _headgate/.",
)
@click.option("--once", is_flag=True, help="Stop when everything now in the topic is in the table.")
@click.option("--trigger", type=DURATION, metavar="TIME", help="Minimum time between batches: 10, 90s, 5m.")
@click.option(
    "--direct/--no-direct",
    default=True,
    show_default=True,
    help="Let the tasks read Kafka themselves, or take rows from Spark's Kafka source.",
)
@click.option(
    "--memtable/--wal-only",
    default=True,
    show_default=True,
    help="Flush shards to SSTables as they grow, or leave rows in the write-ahead logs.",
)
@click.option(
    "--max-base-age",
    default="15 minutes",
    show_default=True,
    metavar="AGE",
    help="With --memtable: merge rows into the base, where plain Lance readers see them, before they are this old.",
)
@click.option(
    "--compact-on-stop/--no-compact-on-stop",
    default=True,
    show_default=True,
    help="With --memtable: merge all rows into the base at a clean stop.",
)
@click.option(
    "--stop-timeout",
    default="20 seconds",
    show_default=True,
    metavar="TIME",
    help="How long --compact-on-stop may take; what is left is reported.",
)
@click.option(
    "--max-offsets",
    type=click.IntRange(min=1),
    default=MAX_OFFSETS_PER_TRIGGER,
    show_default=True,
    metavar="N",
    help="Maximum offsets per batch.",
)
@click.option(
    "--on-bad-record",
    type=click.Choice(["dead_letter", "fail"]),
    default="dead_letter",
    show_default=True,
    help="Keep invalid records as dead letters, or stop at the first one.",
)
@click.option(
    "--commit-to-kafka",
    metavar="GROUP",
    help="Write the stream's offsets to Kafka under this consumer group, for lag tools.",
)
@click.option(
    "--ledger",
    metavar="PATH",
    help="Also write the commit log to this Delta table.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve Prometheus metrics on this port; 0: any free port.",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address the metrics server binds to; 0.0.0.0 for access from other machines.",
)
@ui_option
@ui_host_option
@click.option(
    "--log",
    "log_form",
    type=click.Choice(["text", "json"]),
    help="Log one line per batch to stderr. Default: only warnings.",
)
@decoder_options
@click.option("--cores", type=click.IntRange(min=1), metavar="N", help="Number of cores for Spark. Default: all.")
@kafka_option
@storage_option
@output_option
def ingest(
    servers: str,
    topics: tuple[str, ...],
    topic_pattern: str | None,
    start: str | None,
    uri: str,
    stream: str | None,
    ddl: str | None,
    primary_key: tuple[str, ...],
    sharding: Sharding | None,
    full_text: tuple[str, ...],
    parameters: tuple[str, ...],
    vectors: tuple[str, ...],
    spark_checkpoint: str | None,
    once: bool,
    trigger: timedelta | None,
    direct: bool,
    memtable: bool,
    max_base_age: str,
    compact_on_stop: bool,
    stop_timeout: str,
    max_offsets: int,
    on_bad_record: Literal["dead_letter", "fail"],
    commit_to_kafka: str | None,
    ledger: str | None,
    metrics_port: int | None,
    metrics_host: str,
    ui_port: int | None,
    ui_host: str,
    log_form: Form | None,
    decode_as: str,
    registry: str | None,
    registry_auth: str | None,
    metadata: tuple[str, ...],
    coerce: tuple[str, ...],
    cores: int | None,
    kafka_options: dict[str, str],
    storage_options: dict[str, str],
    output: Output,
) -> None:
    """Stream Kafka topics into a table, exactly once, and print one line per batch.

    A start takes over the stream: a driver that still runs it, elsewhere or here, is fenced and exits 4. SIGTERM
    finishes or abandons the current batch, merges all rows into the base and exits 0. Ctrl-C does the same and exits
    130. A second signal ends the command at once. After any of these, and after a crash, run the same command again: it
    continues where the table is. If a power cut damaged Spark's checkpoint, the command rebuilds it from the table
    first and says so on stderr.
    """
    if once and trigger is not None:
        raise InvalidInput("Give --once or --trigger, not both.")
    for_ledger = {} if ledger is None else ledger_settings(ledger, storage_options)
    name = _stream_name(stream, topics, topic_pattern)
    wanted = _TopicChoice(servers, topics or None, topic_pattern, parse_start(start), max_offsets, kafka_options)
    if log_form is None:
        quiet_logs()
    else:
        configure_logs(log_form)
    base = stop_timeout if memtable and compact_on_stop else None
    tells = isinstance(output, TextOutput)
    with stop_signals(_NOT_BEGUN if tells else "") as stop:
        kafka = _source(wanted, direct)
        options = storage_options or None
        if kafka is not None:
            # A topic or broker that is not there is reported before anything is written.
            wait_for_topics(kafka.consumer, kafka.topics, partial(_has_read, uri, options, name), stop.asked)
        if not stop.asked():
            text = full_text_of(full_text, parameters)
            table = open_or_create(uri, options, ddl, primary_key, sharding, text, vectors_of(vectors))
            sink = ShardSink(
                table,
                decode=following_decoder(table, decode_as, registry, registry_auth, metadata, coerce),
                source=kafka if direct else None,
                stream=name,
                enable_memtable=memtable,
                max_base_age=max_base_age,
                compact_on_stop=compact_on_stop,
                stop_timeout=stop_timeout,
                on_bad_record=on_bad_record,
                commit_to_kafka=commit_to_kafka,
                ledger=ledger,
                metrics_port=metrics_port,
                metrics_host=metrics_host,
                ui_port=ui_port,
                ui_host=ui_host,
                storage_options=options,
            )
            place = spark_checkpoint or default_checkpoint(table.home, name)
            schedule = {"availableNow": True} if once else {"processingTime": _interval(trigger or timedelta(0))}
            settings = {**reaches(place, options), **for_ledger}
            _mend(table, name, place, options)
            with own_spark(cores, settings, stop.listen) as (spark, log_file):
                if not stop.asked():
                    if (url := sink.reporting.show(table, name, sink.options)) is not None:
                        click.echo(f"The console is at {url}", err=True)
                    frame = wanted.frame(spark)
                    stop.waits_for = _waits_for(base) if tells else ""
                    running = RunningStream.start(sink, kafka, frame, place, schedule, log_file)
                    output.rows(_COLUMNS, (batch_row(done) for done in running.batches(stop.asked)))
    if stop.interrupted:
        raise click.Abort


_NOT_BEGUN = "no batch has started, so nothing is lost. Press Ctrl-C again to end at once."


def _waits_for(base: str | None) -> str:
    base = f", then for at most {base} until all rows are in the base" if base else ""
    return f"waiting for the current batch{base}. Press Ctrl-C again to end at once; no row is lost."


def _interval(trigger: timedelta) -> str:
    """The trigger interval as Spark reads it, with any fraction of a second."""
    return f"{round(trigger.total_seconds() * 1000)} milliseconds"


def _mend(table: Table, stream: str, place: str, storage_options: Mapping[str, str] | None) -> None:
    """Rebuild a damaged Spark checkpoint. Spark reads its files before it calls the sink, and a power cut can leave
    them empty or older than the table.
    """
    checkpoint = SparkCheckpoint(place, storage_options)
    mended = mend(table.home, stream, checkpoint, lambda: open_store(checkpoint.location, storage_options))
    if mended is not None:
        kept = {} if mended.rebuilt.moved_to is None else {"old_directory": mended.rebuilt.moved_to}
        _log.warning(f"{mended.why} It was rebuilt from the table.", checkpoint=checkpoint.uri, stream=stream, **kept)


def batch_row(done: Done) -> dict[str, Any]:
    """One batch, for an Output."""
    return {**batch_value(done.record), "seconds": round(done.seconds, 3), "skipped": done.skipped}


@dataclass(frozen=True)
class _TopicChoice:
    """The requested topics. Options may hold credentials."""

    servers: str
    topics: tuple[str, ...] | None
    pattern: str | None
    start: str | datetime | None
    max_offsets: int
    options: Mapping[str, str] = field(repr=False)

    def source(self) -> KafkaSource:
        """For headgate's own Kafka client. Raises InvalidInput for options that it does not support."""
        return source(
            self.servers,
            self.topics,
            max_offsets_per_trigger=self.max_offsets,
            pattern=self.pattern,
            start=self.start,
            **self.options,
        )

    def frame(self, spark: SparkSession) -> DataFrame:
        """Spark's own source."""
        return kafka_frame(
            spark,
            self.servers,
            self.topics,
            max_offsets_per_trigger=self.max_offsets,
            pattern=self.pattern,
            start=self.start,
            **self.options,
        )


def _stream_name(stream: str | None, topics: tuple[str, ...], pattern: str | None) -> str:
    if bool(topics) == (pattern is not None):
        raise InvalidInput("Give either --topic or --topic-pattern.")
    if stream is not None:
        return stream
    if len(topics) != 1 or "," in topics[0]:
        raise InvalidInput("A stream that reads several topics needs a name.", advice="give it one with --stream")
    return topics[0]


def parse_start(text: str | None) -> str | datetime | None:
    """Parse --start. Raises InvalidInput."""
    if text is None or text in ("earliest", "latest"):
        return text
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"--start must be earliest, latest or a time in ISO 8601 with time zone, got {text[:40]}.",
            advice="write 2026-11-16T20:00:00Z",
        ) from None


def _source(wanted: _TopicChoice, direct: bool) -> KafkaSource | None:
    """The topics for headgate's own client. None if only Spark's source supports the options."""
    try:
        return wanted.source()
    except InvalidInput as error:
        if direct:
            error.advice = error.advice or "correct the option, or read with Spark's Kafka source: --no-direct"
            raise
        return None


def _has_read(uri: str, storage_options: Mapping[str, str] | None, stream: str, topic: str) -> bool:
    """True if the stream has read from the topic. False if the table does not exist."""
    try:
        home = open_table(uri, storage_options=storage_options).home
    except NotFound:
        return False
    return any(topic == read for read, _ in read_head(home, stream).ends)
