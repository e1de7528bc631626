"""The options of a stream of `format("headgate")`, checked before anything is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate.errors import InvalidInput
from headgate.streaming.decode.json.coerce import check_coerce
from headgate.streaming.decode.metadata import parse_metadata
from headgate.streaming.options import BATCH_OPTIONS, SinkOptions, parse_options, stream_name


@dataclass(frozen=True)
class Settings:
    """The options of one stream, checked."""

    table: str
    checkpoint: str
    stream: str
    options: SinkOptions
    decode: str | None
    """The kind of decoder; None if the frame has the table's columns."""
    metadata: Mapping[str, str]
    """Columns that Kafka fills."""
    coerce: tuple[str, ...]
    """The coercions of a JSON decoder."""
    kafka: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, given: Mapping[str, str], defaults: Mapping[str, str]) -> Settings:
        """From the options of the stream and the session's defaults. Raises InvalidInput."""
        known = parse_options(given, defaults)
        _refuse_memtables(parse_options(given))
        if known.get("commit_to_kafka") is not None:
            raise InvalidInput(
                "format('headgate') does not support commitToKafka: it has no process that lives as long as "
                "the stream, and a commit must not wait for Kafka.",
                advice="leave out commitToKafka, or use foreachBatch with headgate.ShardSink(commit_to_kafka=…)",
            )
        if known.get("ledger") is not None:
            raise InvalidInput(
                "format('headgate') does not support a ledger: it has no process that lives as long as the stream.",
                advice="leave out ledger, or use foreachBatch with headgate.ShardSink(ledger=…)",
            )
        if known.get("delete_when") is not None:
            raise InvalidInput(
                "format('headgate') does not support deleteWhen: it cannot evaluate conditions.",
                advice="leave out deleteWhen and use .withColumn('_deleted', expr(\"op = 'd'\")) on the frame",
            )
        table, checkpoint = known.pop("table", None), known.pop("checkpoint_location", None)
        query_name, kafka = known.pop("query_name", None), known.pop("kafka", {})
        decode, metadata = known.pop("decode", None), known.pop("metadata", None)
        coerce = known.pop("coerce", None)
        for name, value in (("metadata", metadata), ("coerce", coerce)):
            if value is not None and decode is None:
                raise InvalidInput(
                    f"The option {name} needs a decoder.", advice="set the option decode too, such as json"
                )
        stream = stream_name(known.get("stream"), query_name)
        options = SinkOptions(**{**known, "enable_memtable": False, "checkpoint_location": checkpoint})
        return cls(
            absolute(table, "table", ".start(uri)"),
            absolute(checkpoint, "checkpoint", ".option('checkpointLocation', uri)"),
            stream,
            options,
            decode,
            parse_metadata((metadata or "").split(",") if metadata else ()),
            check_coerce(name.strip() for name in coerce.split(",")) if coerce else (),
            {f"kafka.{name}": value for name, value in kafka.items()},
        )


@dataclass(frozen=True)
class BatchSettings:
    """The options of one batch write, checked."""

    table: str
    batch_id: str | None
    options: SinkOptions

    @classmethod
    def of(cls, given: Mapping[str, str], defaults: Mapping[str, str]) -> BatchSettings:
        """From the options of the write and the session's defaults; defaults that only streams have are ignored.

        Raises InvalidInput.
        """
        names = {option.name for option in BATCH_OPTIONS}
        usual = {name: text for name, text in defaults.items() if name in names}
        known = parse_options(without_catalog(given), usual, BATCH_OPTIONS)
        table, batch_id = known.pop("table", None), known.pop("batch_id", None)
        return cls(absolute(table, "table", ".save(uri)", "write"), batch_id, SinkOptions(**known))


def without_catalog(given: Mapping[str, str]) -> dict[str, str]:
    """The options without those that Spark's catalog adds for a table made by CREATE TABLE, which has a `provider`."""
    lowered = {name.lower(): text for name, text in given.items()}
    return {name: text for name, text in lowered.items() if "provider" not in lowered or name not in _CATALOG}


_CATALOG = ("owner", "location", "provider", "comment", "external", "is_managed_location")


def _refuse_memtables(given: Mapping[str, Any]) -> None:
    """Checks only options of this stream: session defaults are for streams that support them."""
    if given.get("enable_memtable") or "max_memtable_size" in given:
        raise InvalidInput(
            "format('headgate') does not support MemTables: a Python data source cannot start the jobs that "
            "flush them.",
            advice="leave out enableMemtable and maxMemtableSize, or use foreachBatch with headgate.ShardSink",
        )


def absolute(uri: str | None, what: str, how: str, whose: str = "stream") -> str:
    """The URI, which must be absolute: Spark's processes have different working directories.

    Raises InvalidInput.
    """
    if not uri:
        raise InvalidInput(f"The {whose}'s {what} is missing.", advice=f"set it with {how}")
    if ":" not in uri and not uri.startswith("/"):
        raise InvalidInput(
            f"The {whose}'s {what} must be an absolute path or URI, got {uri!r}.", advice=f"set it with {how}"
        )
    # Hadoop, and so Spark's catalog, writes local paths this way.
    return uri if uri.startswith("file://") else uri.removeprefix("file:")
