"""Every option of a stream, once: Python argument, name in `format("headgate")`, Spark default, values, meaning.

Python arguments are snake_case, options camelCase, session defaults `spark.headgate.<option>`. A stream's option comes
before the session default, which comes before the default here. Spark passes option names in lower case, so they are
matched without case; an unknown name is an error that suggests the nearest one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Literal, TypeAlias

from headgate.checkpoints.log.names import BATCH_STREAM
from headgate.durations import seconds_of
from headgate.errors import InvalidInput, nearest
from headgate.retry import Retry
from headgate.shards.config import WriterConfig
from headgate.shards.wal.entry import Compression
from headgate.streaming.decode.json.coerce import COERCIONS
from headgate.streaming.decode.kinds import KINDS
from headgate.streaming.decode.metadata import KAFKA
from headgate.streaming.values import (
    COUNT,
    FLAG,
    GROUP,
    INTERVAL,
    LENGTH,
    MAPPING,
    PERIOD,
    PORT,
    SIZE,
    TEXT,
    ValueKind,
    interval,
    one_of,
)

CONF_PREFIX = "spark.headgate."

DEFAULT_STREAM = "default"
"""The default name of a stream."""

Spelling: TypeAlias = Callable[[str], str]
"""Formats an option's name for messages: see `as_argument` and `as_option`."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option, with all its names."""

    argument: str
    """Its name in Python."""
    name: str
    """Its name in `writeStream.option(name, …)`. A name that ends in '.' is a family of names."""
    kind: ValueKind
    default: Any
    doc: str
    scope: Literal["stream", "query"] = "stream"
    """Options of a single query (what it reads and where it writes) have no session default."""

    @property
    def conf(self) -> str | None:
        """The name of its session default; None if it has none."""
        return f"{CONF_PREFIX}{self.name}" if self.scope == "stream" else None

    @property
    def is_family(self) -> bool:
        """True if it stands for all names that begin with its own."""
        return self.name.endswith(".")


# -- the table ---------------------------------------------------------------------


def _option(
    name: str,
    kind: ValueKind,
    default: Any,
    doc: str,
    scope: Literal["stream", "query"] = "stream",
    *,
    secret: bool = False,
) -> Any:
    """A row of the table: the field's own name is the Python argument."""
    return field(default=default, repr=not secret, metadata={"option": (name, kind, default, doc, scope)})


_STORAGE = "Options of the object store, under Lance's names; prefix `wal.` for a separate WAL store."


@dataclass(frozen=True)
class SinkOptions:
    """How a stream writes: its options, merged once.

    Raises InvalidInput for an invalid value.
    """

    stream: str | None = _option(
        "streamName", TEXT, None, f"The stream's name in the table. Default: the query's name, or {DEFAULT_STREAM!r}."
    )
    enable_memtable: bool = _option(
        "enableMemtable",
        FLAG,
        True,
        "Flush the stream's shards to SSTables (true), or keep rows in the WAL only (false). The WAL entries "
        "are the same. format('headgate') is always WAL only.",
    )
    on_bad_record: Literal["dead_letter", "fail"] = _option(
        "onBadRecord",
        one_of("dead_letter", "fail"),
        "dead_letter",
        "What happens to an invalid record: dead_letter keeps it as a dead letter, fail stops the stream.",
    )
    sequence_by: str | None = _option(
        "sequenceBy",
        TEXT,
        None,
        "For typed frames on tables with a key: the column that orders rows with the same key.",
    )
    delete_when: str | None = _option(
        "deleteWhen",
        TEXT,
        None,
        "For typed frames on tables with a key: a condition in Spark SQL. A row that fulfils it deletes its "
        "key. The condition may use columns that the table does not have. For ShardSink; elsewhere use a "
        "boolean column _deleted.",
        "query",
    )
    compression: Compression | None = _option(  # noqa: RUF009 - it makes a field
        "compression", one_of("lz4", "zstd"), None, "Compression codec of WAL entries."
    )
    max_memtable_size: int = _option(
        "maxMemtableSize",
        SIZE,
        WriterConfig.max_memtable_size,
        "With MemTables: flush a shard to an SSTable when its unflushed entries exceed this size.",
    )
    max_memtable_age: float | str | timedelta = _option(  # noqa: RUF009 - it makes a field
        "maxMemtableAge",
        INTERVAL,
        300.0,
        "With MemTables: flush a shard when its oldest unflushed entry is this old.",
    )
    max_unflushed_memtable_bytes: int = _option(
        "maxUnflushedMemtableBytes",
        SIZE,
        WriterConfig.max_unflushed_memtable_bytes,
        "With MemTables: batches wait while the stream has this many unflushed bytes.",
    )
    compact_sstables: int = _option(
        "compactSstables", COUNT, 8, "With MemTables: compact SSTables into the base when a shard has this many."
    )
    max_sstables: int = _option(
        "maxSstables", COUNT, 64, "With MemTables: batches wait while a shard has more SSTables than this."
    )
    max_base_age: float | str | timedelta = _option(  # noqa: RUF009 - it makes a field
        "maxBaseAge",
        INTERVAL,
        900.0,
        "With MemTables: merge rows into the base, where plain Lance readers see them, before they are this old.",
    )
    compact_on_stop: bool = _option(
        "compactOnStop",
        FLAG,
        True,
        "With MemTables: a clean stop merges all rows into the base, where plain Lance readers see them.",
    )
    stop_timeout: float | str | timedelta = _option(  # noqa: RUF009 - it makes a field
        "stopTimeout",
        LENGTH,
        20.0,
        "How long compactOnStop may take. SSTables that are left are reported and stay readable with headgate.",
    )
    maintenance_tasks: int = _option("maintenanceTasks", COUNT, 2, "Maximum parallel tasks of a maintenance job.")
    max_entry_bytes: int = _option(
        "maxEntryBytes",
        SIZE,
        256 << 20,
        "Maximum size of a WAL entry; larger batches of a shard become several entries.",
    )
    checkpoint_interval: float | str | timedelta = _option(  # noqa: RUF009 - it makes a field
        "checkpointInterval",
        INTERVAL,
        600.0,
        "Take a table checkpoint after a batch when the last one is this old. 0: after every batch.",
    )
    keep_checkpoints: int = _option("keepCheckpoints", COUNT, 2, "How many of its own checkpoints the stream keeps.")
    gc_interval: float | str | timedelta = _option(  # noqa: RUF009 - it makes a field
        "gcInterval",
        PERIOD,
        3600.0,
        "Run garbage collection beside the batches this often; 'never' turns it off.",
    )
    store_patience: float | str | timedelta = _option(  # noqa: RUF009 - it makes a field
        "storePatience",
        LENGTH,
        30.0,
        "How long each step of a batch retries while the store is unreachable or busy. Then the query ends "
        "with an error; a restart continues.",
    )
    commit_to_kafka: str | None = _option(
        "commitToKafka",
        GROUP,
        None,
        "Write the stream's offsets to Kafka under this consumer group, for lag tools; after each commit "
        "record, never before. For ShardSink.",
        "query",
    )
    ledger: str | None = _option(
        "ledger",
        TEXT,
        None,
        "Also write the commit log (which WAL positions hold which offsets) to this Delta table, given by path "
        "or as schema.table. Batches do not wait for it or fail because of it. For ShardSink.",
        "query",
    )
    cache_bytes: int | None = _option(
        "cacheBytes",
        SIZE,
        None,
        "Memory limit of all caches of the process that runs the stream. Default: HEADGATE_CACHE_BYTES, else 1 "
        "GiB or a quarter of the memory, whichever is less.",
    )
    metrics_port: int | None = _option(
        "metricsPort",
        PORT,
        None,
        "Serve Prometheus metrics on this port of the process that runs the sink; 0: any free port. Default: "
        "no metrics server. For ShardSink.",
    )
    metrics_host: str = _option("metricsHost", TEXT, "127.0.0.1", "Address the metrics server binds to.")
    ui_port: int | None = _option(
        "uiPort",
        PORT,
        None,
        "Show the stream in a console in the browser, at this port of the process that runs the sink; 0: any free one. "
        "Without it nothing listens. For ShardSink.",
    )
    ui_host: str = _option(
        "uiHost", TEXT, "127.0.0.1", "Address the console binds to; elsewhere than here it needs HEADGATE_UI_TOKEN."
    )
    checkpoint_location: str | None = _option(
        "checkpointLocation",
        TEXT,
        None,
        "The query's checkpoint directory. ShardSink finds it by itself, except on Spark Connect.",
        "query",
    )
    storage_options: Mapping[str, str] | None = _option("storage.", MAPPING, None, _STORAGE, "query", secret=True)

    def __post_init__(self) -> None:
        for option in SINK_OPTIONS:
            value = getattr(self, option.argument)
            if value == option.default or option.kind.accepts(value):
                continue
            got = "" if option.is_family else f", got {value!r}"
            raise InvalidInput(f"{option.argument} must be {option.kind.allowed}{got}.")

    @property
    def memtable_seconds(self) -> float:
        """The age at which a shard is flushed; infinite if age does not matter."""
        return interval(self.max_memtable_age)

    @property
    def base_seconds(self) -> float:
        """The age at which rows should be in the base; infinite if age does not matter."""
        return interval(self.max_base_age)

    @property
    def stop_seconds(self) -> float:
        """Maximum duration of the last compaction."""
        return seconds_of(self.stop_timeout)

    @property
    def retry(self) -> Retry:
        """The retry policy for an unreachable store."""
        return Retry.lasting(seconds_of(self.store_patience))

    @property
    def checkpoint_seconds(self) -> float:
        """Seconds between two automatic checkpoints; infinite if there are none while the stream runs."""
        return interval(self.checkpoint_interval)

    @property
    def gc_seconds(self) -> float:
        """Seconds between two garbage collections by the stream; infinite if there are none."""
        return interval(self.gc_interval)


SINK_OPTIONS = tuple(Option(one.name, *one.metadata["option"]) for one in fields(SinkOptions))
"""Options of both ShardSink and `format("headgate")`."""

OPTIONS: tuple[Option, ...] = (
    Option("table", "path", TEXT, None, "The table's URI, as in start(uri); absolute.", "query"),
    Option("query_name", "queryName", TEXT, None, "The query's name, as Spark passes it.", "query"),
    Option(
        "decode",
        "decode",
        one_of(*(kind.name for kind in KINDS.values() if kind.in_format)),
        None,
        "The decoder that turns Kafka values into rows. Without it, the frame must have the table's columns.",
        "query",
    ),
    Option(
        "metadata",
        "metadata",
        TEXT,
        None,
        f"With decode: columns that Kafka fills ({', '.join(KAFKA.names)}), separated by commas; COLUMN=FIELD "
        "if the column has another name.",
        "query",
    ),
    Option(
        "coerce",
        "coerce",
        TEXT,
        None,
        f"With decode json: what columns take beside values of their own kind, by commas: {', '.join(COERCIONS)}.",
        "query",
    ),
    *SINK_OPTIONS,
    Option(
        "kafka",
        "kafka.",
        MAPPING,
        None,
        "The Kafka cluster, with the options of Spark's Kafka source (kafka.bootstrap.servers …); needed only "
        "when a topic gets new partitions.",
        "query",
    ),
)
"""All options of a writing stream. In Python, those that are not the sink's are positional arguments, or not needed."""


BATCH_OPTIONS: tuple[Option, ...] = (
    next(one for one in OPTIONS if one.name == "path"),
    Option(
        "batch_id",
        "batchId",
        TEXT,
        None,
        "Names what is written: a batch write with an id that the table has writes nothing. It remembers ids for ever.",
        "query",
    ),
    *(
        one
        for one in SINK_OPTIONS
        if one.name in ("sequenceBy", "compression", "maxEntryBytes", "storePatience", "stopTimeout", "storage.")
    ),
)
"""All options of `df.write`."""


@dataclass(frozen=True)
class ReadOptions:
    """How `spark.read` and `spark.readStream` of `format("headgate")` read; see docs/guides/reading.md.

    Raises InvalidInput for an invalid value.
    """

    table: str | None = _option("path", TEXT, None, "The table's URI, as in load(uri); absolute.", "query")
    checkpoint: str | None = _option(
        "checkpoint", TEXT, None, "read: the table at this checkpoint. readStream: batches after it.", "query"
    )
    filter: str | None = _option("filter", TEXT, None, "read: a filter in Lance's SQL.", "query")
    pin_for: float | str | timedelta | None = _option(  # noqa: RUF009 - it makes a field
        "pinFor",
        INTERVAL,
        None,
        "How long files that a read needs are protected from garbage collection (read: 6 hours; readStream: 1 "
        "day). read also takes never: then no pin is written, and only the minimum age of garbage collection "
        "protects them.",
        "query",
    )
    cache_bytes: int | None = _option(
        "cacheBytes",
        SIZE,
        None,
        "read: memory limit of all caches of a task's process. Default as for a stream.",
        "query",
    )
    log: bool = _option("log", FLAG, False, "readStream: add the columns of the commit log.", "query")
    consumer: str | None = _option(
        "consumer", TEXT, None, "readStream: the consumer's name; only one query at a time may use it.", "query"
    )
    starting_from: Literal["earliest", "latest"] = _option(
        "startingFrom",
        one_of("earliest", "latest"),
        "earliest",
        "readStream, if the query has no checkpoint yet: start with everything in the log, or only with new batches.",
        "query",
    )
    max_rows: int | None = _option(
        "maxRowsPerTrigger",
        COUNT,
        None,
        "readStream: maximum rows per batch; committed batches are not split.",
        "query",
    )
    max_bytes: int | None = _option("maxBytesPerTrigger", SIZE, None, "readStream: maximum bytes per batch.", "query")
    max_batches: int | None = _option(
        "maxBatchesPerTrigger", COUNT, None, "readStream: maximum committed batches per batch.", "query"
    )
    poll_interval: float | str | timedelta = _option(  # noqa: RUF009 - it makes a field
        "pollInterval", INTERVAL, 1.0, "readStream: minimum time between two reads of the logs.", "query"
    )
    storage_options: Mapping[str, str] | None = _option("storage.", MAPPING, None, _STORAGE, "query", secret=True)

    @property
    def hold_seconds(self) -> float | None:
        """How long files stay pinned, in seconds; None means the default, infinite means that nothing is pinned."""
        return None if self.pin_for is None else interval(self.pin_for)

    @property
    def poll_seconds(self) -> float:
        """Minimum seconds between two reads of the logs."""
        return interval(self.poll_interval)


READ_OPTIONS = tuple(Option(one.name, *one.metadata["option"]) for one in fields(ReadOptions))
"""All options of reading."""


# -- parsing -----------------------------------------------------------------------


def sink_options(given: Mapping[str, Any], defaults: Mapping[str, str] | None = None) -> SinkOptions:
    """Python arguments, then session defaults (by option name, see `session_defaults`), then the built-in defaults.

    Raises InvalidInput for an unknown argument, with the nearest known one, and for an invalid value.
    """
    known = [option.argument for option in SINK_OPTIONS]
    for argument in given:
        if argument not in known:
            raise _unknown(argument, {name: name for name in known}, "argument")
    paths = {argument: os.fspath(value) for argument, value in given.items() if isinstance(value, os.PathLike)}
    return SinkOptions(**{**parse_options({}, defaults), **given, **paths})


def parse_options(
    given: Mapping[str, str], defaults: Mapping[str, str] | None = None, table: Sequence[Option] = OPTIONS
) -> dict[str, Any]:
    """The Python arguments for the given options; options not given are left out.

    `defaults` are session defaults by option name, see `session_defaults`. Raises InvalidInput for an unknown name,
    with the nearest known one, and for an invalid value; values of families are never shown.
    """
    found: dict[str, Any] = {}
    for name, text in {**_lowered(defaults or {}), **_lowered(given)}.items():
        option = _named(name, table)
        if option is None:
            # Writing the Python argument instead of the option's name is an easy slip.
            slips = {known.argument: known.name for known in table}
            raise _unknown(name, slips | {known.name: known.name for known in table}, "option")
        if option.is_family:
            found.setdefault(option.argument, {})[name[len(option.name) :]] = text
            continue
        try:
            found[option.argument] = option.kind.parse(text)
        except ValueError:
            raise InvalidInput(
                f"The option {option.name!r} must be {option.kind.allowed}, got {text[:80]!r}."
            ) from None
    return found


def session_defaults(conf: Mapping[str, str]) -> dict[str, str]:
    """The session defaults under `spark.headgate.`, by option name.

    Raises InvalidInput for an unknown name, with the nearest known one.
    """
    known = {option.conf.lower(): option for option in OPTIONS if option.conf is not None}
    found = {}
    for name, text in conf.items():
        if name.lower().startswith(CONF_PREFIX):
            option = known.get(name.lower())
            if option is None:
                names = [option.conf for option in known.values() if option.conf]
                raise _unknown(name, {conf: conf for conf in names}, "Spark setting")
            found[option.name] = text
    return found


def stream_name(given: str | None, query_name: str | None) -> str:
    """The name of a query's stream in its table. Raises InvalidInput for the name reserved for batch writes."""
    name = given or query_name or DEFAULT_STREAM
    if name == BATCH_STREAM:
        raise InvalidInput(
            f"The stream name {name!r} is that of a table's batch writes.",
            advice="give the stream another name; nothing was written",
        )
    return name


def as_argument(argument: str) -> str:
    """The name in Python: `sequence_by=`."""
    return f"{argument}="


def as_option(argument: str) -> str:
    """The name in `format("headgate")`: the option sequenceBy."""
    return f"the option {next(option.name for option in OPTIONS if option.argument == argument)}"


def _lowered(given: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): text for name, text in given.items()}


def _named(name: str, table: Sequence[Option]) -> Option | None:
    for option in table:
        known = option.name.lower()
        if name == known or (option.is_family and name.startswith(known) and len(name) > len(known)):
            return option
    return None


def _unknown(name: str, known: Mapping[str, str], kind: str) -> InvalidInput:
    """`known` maps correct names to their spelling in the message."""
    spelled = {text.lower(): said for text, said in known.items()}
    near = nearest(name.lower(), spelled)
    names = dict.fromkeys(known.values())
    advice = f"did you mean {spelled[near]!r}?" if near else f"valid {kind}s: {', '.join(names)}"
    return InvalidInput(f"Unknown {kind} {name[:80]!r}.", advice=advice)
