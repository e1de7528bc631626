"""Whether a frame can become rows of a table: refused before anything is claimed or written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.errors import InvalidInput
from headgate.streaming.decode import Decoder
from headgate.streaming.kafka_source import KafkaSource
from headgate.streaming.ordering import ORDER
from headgate.streaming.spark_query import KAFKA_COLUMNS, QueryFacts
from headgate.table import Table

_DECODED = ("value", "partition", "offset", "topic", "key")


def check_query(facts: QueryFacts) -> None:
    """Refuse what no frame of the query could make right. Raises InvalidInput."""
    if facts.output_mode == "complete":
        raise InvalidInput(
            "outputMode complete writes the whole result again with every batch.",
            advice="use outputMode append, or update on a table with a key",
        )
    if _lowered(facts.kafka_options or {}).get("failondataloss", "true").strip().lower() != "true":
        raise InvalidInput(
            "failOnDataLoss is false: Spark would skip offsets that are gone, and the table would not say so.",
            advice="leave the option out",
        )


def check_direct(facts: QueryFacts, source: KafkaSource) -> None:
    """The tasks read the source themselves, so the frame must be just that. Raises InvalidInput."""
    if not facts.bare_kafka:
        raise InvalidInput(
            "Reading Kafka directly takes the bare source, and this frame has something on top of it.",
            advice="pass source.read(spark) itself to writeStream and its batches to the sink, or leave out source=",
        )
    there, wanted = _lowered(facts.kafka_options or {}), _lowered(source.options)
    differ = sorted(name for name in there.keys() | wanted.keys() if there.get(name) != wanted.get(name))
    if differ:
        raise InvalidInput(
            f"The frame reads Kafka with other options than source=: {', '.join(differ[:5])}.",
            advice="pass source.read(spark) of the same source to writeStream",
        )


def check_decoded(columns: Sequence[str], decode: Decoder, table: Table) -> None:
    """A decoder takes Kafka's own columns and makes the table's. Raises InvalidInput."""
    missing = [name for name in _DECODED if name not in columns]
    if missing:
        raise InvalidInput(
            f"A decoder takes the frame of Spark's Kafka source, and this one lacks {missing}.",
            advice=f"keep the columns {', '.join(KAFKA_COLUMNS)}, or leave out decode= for typed rows",
        )
    check_decoder(decode, table)


def check_decoder(decode: Decoder, table: Table) -> None:
    """What it makes must be columns of the table. Raises InvalidInput."""
    logical = table.home.schema.logical
    made = {field.name: field.type for field in decode.schema}
    _check_known(made, table)
    for field in logical:
        if field.name in made and made[field.name] != field.type:
            raise InvalidInput(f"The decoder makes {field.name!r} {made[field.name]}, and the table has {field.type}.")
        if field.name not in made and (not field.nullable or field.name in table.primary_key):
            raise InvalidInput(f"The decoder does not make {field.name!r}, which may not be null.")


def check_typed(columns: Sequence[str], sequence_by: str | None, table: Table) -> None:
    """Rows that Spark made must be the table's, in an order that is known. Raises InvalidInput."""
    if sequence_by is not None and sequence_by not in columns:
        raise InvalidInput(f"The frame has no column {sequence_by!r} for sequence_by; it has {list(columns)}.")
    _check_known([name for name in columns if name not in (*ORDER, sequence_by)], table)
    if table.primary_key and sequence_by is None and not all(name in columns for name in ORDER):
        raise InvalidInput(
            "On a table with a key the order of rows with one key must be known.",
            advice=f"keep the columns {', '.join(ORDER)} in the frame, or name sequence_by=",
        )


def _check_known(names: Sequence[str] | Mapping[str, object], table: Table) -> None:
    unknown = [name for name in names if name not in table.schema.names]
    if unknown:
        hint = "pass decode=headgate.decode.json(…) for Kafka's own frame" if "value" in unknown else None
        raise InvalidInput(f"The table has no column {unknown[0]!r}; it has {table.schema.names}.", advice=hint)


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}
