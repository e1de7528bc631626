"""A decoder as the open record of a stream says it, so that `headgate verify` can make the same rows again.

Provenance are the kind, the decoder's columns and options, the table's columns of that time with their field ids, and
whether Spark made the rows. Credentials are not: a registry's are given again. Nothing recorded is ever executed: a
decoder of somebody's own is known by its name alone, and cannot be made again from the record.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headgate.errors import Corrupt, HeadgateError
from headgate.shards.rows.schema import RowSchema
from headgate.streaming.decode import api as decoders
from headgate.streaming.decode.avro.decoder import AvroDecoder
from headgate.streaming.decode.contract import Decoder
from headgate.streaming.decode.debezium import DebeziumDecoder
from headgate.streaming.decode.json.decoder import JsonDecoder
from headgate.streaming.decode.raw import RawDecoder

SPARK = "spark"
"""The kind where there is no decoder: the frame's columns are the table's."""

_KINDS: Mapping[type, str] = {JsonDecoder: "json", RawDecoder: "raw", DebeziumDecoder: "debezium", AvroDecoder: "avro"}


@dataclass(frozen=True)
class Provenance:
    """How a stream made rows at some time."""

    kind: str
    columns: RowSchema
    """The table's, at that time."""
    decoder: Decoder | None
    """None: it cannot be made again."""
    changed: bool | None = False
    """Whether Spark made the rows, or changed the frame before the decoder saw it; None: that is not known."""

    @property
    def can_judge(self) -> bool:
        """Whether the rows can be made again from the topic."""
        return self.decoder is not None and self.changed is not True

    @property
    def why_not(self) -> str:
        """Why the rows cannot be made again, as the end of a sentence."""
        if self.changed is True:
            return "Spark made its rows from the records"
        return f"its decoder {self.kind} is not one of headgate's, and --decode does not name one"


def provenance_value(decode: Decoder | None, columns: RowSchema, *, changed: bool | None) -> dict[str, Any]:
    """For the open record: JSON values, equal whenever the rows would be."""
    told: dict[str, Any] = {"kind": SPARK, "spark_made_rows": True if decode is None else changed}
    if decode is not None:
        own = type(decode)
        told["kind"] = _KINDS.get(own, f"{own.__module__}.{own.__qualname__}")
        if own in _KINDS:
            told |= {"schema": _schema_text(decode.schema), "options": _options(decode)}
    return {**told, "columns": _schema_text(columns.logical), "field_ids": list(columns.field_ids)}


def provenance_of(told: Mapping[str, Any], registry_auth: str | None = None) -> Provenance:
    """What `recorded` said. Raises Corrupt."""
    try:
        kind, changed = str(told["kind"]), told["spark_made_rows"]
        columns = RowSchema(_schema(told["columns"]), tuple(int(one) for one in told["field_ids"]))
        decoder = None if kind not in _KINDS.values() else _decoder(kind, told, registry_auth)
    except (KeyError, TypeError, ValueError, binascii.Error, pa.ArrowException, HeadgateError) as error:
        raise Corrupt(f"An open record's decoder cannot be understood: {error!r:.200}.") from error
    return Provenance(kind, columns, decoder, None if changed is None else bool(changed))


def _options(decode: Decoder) -> dict[str, Any]:
    if isinstance(decode, DebeziumDecoder):
        return {"primary_key": list(decode.primary_key)}
    if isinstance(decode, AvroDecoder):
        registry = decode.schemas.registry
        given = {str(number): text for number, text in decode.schemas.given}
        return {"registry": None if registry is None else registry.url, "schemas": given}
    return {}


def _decoder(kind: str, told: Mapping[str, Any], registry_auth: str | None) -> Decoder:
    schema, options = _schema(told["schema"]), told["options"]
    if kind == "raw":
        return decoders.raw(schema.names[0], schema.types[0])
    if kind == "debezium":
        return decoders.debezium(schema, options["primary_key"])
    if kind == "avro":
        given = {int(number): text for number, text in options["schemas"].items()}
        return decoders.avro(schema, options["registry"], schemas=given, auth=registry_auth)
    made: Decoder = decoders.json(schema)
    return made


def _schema_text(schema: pa.Schema) -> str:
    """Equal for equal columns: Lance gives metadata back in another order each time. (Fields inside of others are left
    as they are.)
    """
    fields = [field.with_metadata(_sorted(field.metadata)) for field in schema]
    ordered = pa.schema(fields, _sorted(schema.metadata))
    return base64.b64encode(ordered.serialize()).decode()


def _sorted(metadata: Mapping[bytes, bytes] | None) -> dict[bytes, bytes] | None:
    return None if metadata is None else dict(sorted(metadata.items()))


def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
