"""Checks of queries and frames, before anything is claimed or written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from headgate.errors import InvalidInput
from headgate.streaming.decode.contract import Decoder
from headgate.streaming.decode.metadata import WithMetadata
from headgate.streaming.kafka.source import KafkaSource
from headgate.streaming.options import Spelling, as_argument
from headgate.streaming.spark.query import KAFKA_COLUMNS, QueryFacts
from headgate.streaming.write import deletes
from headgate.streaming.write.ordering import ORDER
from headgate.table.table import Table

_DECODED = ("value", "partition", "offset", "topic", "key")


def check_query(facts: QueryFacts) -> None:
    """Check what no frame of the query can make right: the output mode and failOnDataLoss. Raises InvalidInput."""
    if facts.output_mode == "complete":
        refuse_complete("use outputMode append, or update on a table with a key")
    if _lowered(facts.kafka_options or {}).get("failondataloss", "true").strip().lower() != "true":
        raise InvalidInput(
            "failOnDataLoss must be true: otherwise Spark skips lost offsets silently.",
            advice="leave the option out",
        )


def refuse_complete(advice: str) -> NoReturn:
    """Raises InvalidInput for outputMode complete."""
    raise InvalidInput(
        "outputMode complete is not supported: it writes the whole result with every batch.", advice=advice
    )


def check_direct(facts: QueryFacts, source: KafkaSource) -> None:
    """Check that the query reads just the source that the tasks read themselves. Raises InvalidInput."""
    check_bare(bool(facts.bare_kafka))
    there, wanted = _lowered(facts.kafka_options or {}), _lowered(source.options)
    differ = sorted(name for name in there.keys() | wanted.keys() if there.get(name) != wanted.get(name))
    if differ:
        raise InvalidInput(
            f"The frame reads Kafka with other options than source=: {', '.join(differ[:5])}.",
            advice="pass source.read(spark) of the same source to writeStream",
        )


def check_checkpoint(facts: QueryFacts, query_id: str, checkpoint: str) -> None:
    """Check that the named checkpoint is this query's: another query's offsets do not belong to its rows.

    `query_id` is the id that the checkpoint holds. It is not checked if Spark does not tell its own. Raises
    InvalidInput.
    """
    if facts.query_id is not None and facts.query_id != query_id:
        raise InvalidInput(
            "The checkpoint location belongs to another query.",
            checkpoint=checkpoint,
            query_id=facts.query_id,
            stored_query_id=query_id,
            advice="leave out checkpoint_location=: the sink finds it by itself, except on Spark Connect; nothing was "
            "written",
        )


def check_bare(bare: bool) -> None:
    """Check that the frame has no transformations: tasks that read Kafka themselves would ignore them. Raises
    InvalidInput.
    """
    if not bare:
        raise InvalidInput(
            "With source=, the frame must be the unchanged source, but this frame has transformations.",
            advice="pass source.read(spark) itself to writeStream and its batches to the sink, or leave out source=",
        )


def check_columns(
    columns: Sequence[str],
    decode: Decoder | None,
    sequence_by: str | None,
    table: Table,
    spelled: Spelling = as_argument,
    *,
    delete_when: str | None = None,
) -> None:
    """Check the frame's columns: Kafka's with a decoder, the table's without one. Raises InvalidInput.

    `spelled` gives an option's name as the caller writes it.
    """
    if decode is None:
        _check_typed(columns, sequence_by, table, spelled, delete_when)
        return
    beside = decode.reads if isinstance(decode, WithMetadata) else ()
    if "headers" in beside and "headers" not in columns:
        raise InvalidInput(
            "The frame has no column 'headers', which metadata= needs.",
            advice="read Kafka with the option includeHeaders=true, or pass source= so that the tasks read it",
        )
    missing = [name for name in (*_DECODED, *beside) if name not in columns]
    if missing:
        raise InvalidInput(
            f"A decoder needs the columns of Spark's Kafka source, but the frame lacks {missing}.",
            advice=f"keep the columns {', '.join(KAFKA_COLUMNS)}, or leave out {spelled('decode')} for typed rows",
        )
    check_decoder(decode, table)


def check_decoder(decode: Decoder, table: Table) -> None:
    """Check that the decoder's columns and key fit the table. Raises InvalidInput."""
    logical = table.home.schema.logical
    key = getattr(decode, "primary_key", None)
    if key is not None and set(key) != set(table.primary_key):
        raise InvalidInput(f"The decoder's key is {list(key)}, but the table's key is {list(table.primary_key)}.")
    made = {field.name: field.type for field in decode.schema}
    _check_known(made, table)
    for field in logical:
        if field.name in made and made[field.name] != field.type:
            raise InvalidInput(
                f"The decoder's column {field.name!r} has type {made[field.name]}, but the table has {field.type}."
            )
        if field.name not in made and (not field.nullable or field.name in table.primary_key):
            raise InvalidInput(f"The decoder has no column {field.name!r}, which must not be null.")


def _check_typed(
    columns: Sequence[str], sequence_by: str | None, table: Table, spelled: Spelling, delete_when: str | None
) -> None:
    """Check that the frame has columns of the table only, and an order of rows if the table has a key."""
    if sequence_by is not None and sequence_by not in columns:
        raise InvalidInput(
            f"The frame has no column {sequence_by!r} for {spelled('sequence_by')}; it has {list(columns)}."
        )
    hint = f"set {spelled('decode')} (json) for Kafka's own frame" if "value" in columns else None
    known = table.schema.names
    mark = deletes.column_of(columns, known)
    spare = {mark} if delete_when is None else deletes.named_in(delete_when, columns)
    if not table.primary_key and (mark is not None or delete_when is not None):
        raise InvalidInput(
            "Deleting rows needs a primary key, but the table has none.",
            table=table.uri,
            advice=f"create the table with a primary key, or drop the column {mark}"
            if delete_when is None
            else f"create the table with a primary key, or leave out {spelled('delete_when')}",
        )
    _check_known([name for name in columns if name not in (*ORDER, sequence_by) and name not in spare], table, hint)
    if table.primary_key and sequence_by is None and not all(name in columns for name in ORDER):
        raise InvalidInput(
            "On a table with a primary key, the order of rows with the same key must be known.",
            advice=f"keep the columns {', '.join(ORDER)} in the frame, or set {spelled('sequence_by')}",
        )


def _check_known(names: Iterable[str], table: Table, hint: str | None = None) -> None:
    unknown = [name for name in names if name not in table.schema.names]
    if unknown:
        raise InvalidInput(f"Column {unknown[0]!r} not found; the table has {table.schema.names}.", advice=hint)


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}
