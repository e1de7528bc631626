"""The decoder as a stream's open record stores it, so that `headgate verify` can make the same rows again.

It consists of the decoder's kind, columns and options, the table's columns at that time with their field ids, and
whether Spark made the rows. Credentials are not stored: a registry's must be given again. Nothing that is stored is
ever executed: of a custom decoder only the name is stored, and it cannot be made again from the record.
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
from headgate.streaming.decode.contract import Decoder
from headgate.streaming.decode.kinds import KINDS, kind_of
from headgate.streaming.decode.metadata import WithMetadata

SPARK = "spark"
"""The kind if there is no decoder: the frame has the table's columns."""


@dataclass(frozen=True)
class Provenance:
    """How a stream made rows at a time."""

    kind: str
    columns: RowSchema
    """The table's columns at that time."""
    decoder: Decoder | None
    """None if it cannot be made again."""
    changed: bool | None = False
    """True if Spark made the rows or changed the frame before the decoder; None if unknown."""

    @property
    def can_judge(self) -> bool:
        """True if the rows can be made again from the topic."""
        return self.decoder is not None and self.changed is not True

    @property
    def why_not(self) -> str:
        """Why the rows cannot be made again, as the end of a sentence."""
        if self.changed is True:
            return "its rows were computed in Spark"
        return f"its decoder {self.kind} is a custom one, and --decode is not given"


def provenance_value(decode: Decoder | None, columns: RowSchema, *, changed: bool | None) -> dict[str, Any]:
    """The value for the open record, as JSON values. Equal if the rows would be equal."""
    value: dict[str, Any] = {"kind": SPARK, "spark_made_rows": True if decode is None else changed}
    if isinstance(decode, WithMetadata):
        value["metadata"] = {"columns": _schema_text(decode.columns), "sources": list(decode.sources)}
        decode = decode.decoder
    if decode is not None:
        kind, own = kind_of(decode), type(decode)
        value["kind"] = f"{own.__module__}.{own.__qualname__}" if kind is None else kind.name
        if kind is not None:
            value |= {"schema": _schema_text(decode.schema), "options": kind.options(decode)}
    return {**value, "columns": _schema_text(columns.logical), "field_ids": list(columns.field_ids)}


def provenance_of(value: Mapping[str, Any], registry_auth: str | None = None) -> Provenance:
    """Parse what `provenance_value` returned. Raises Corrupt."""
    try:
        name, changed = str(value["kind"]), value["spark_made_rows"]
        columns = RowSchema(_schema(value["columns"]), tuple(int(one) for one in value["field_ids"]))
        kind = KINDS.get(name)
        decoder = None if kind is None else kind.remake(_schema(value["schema"]), value["options"], registry_auth)
        if decoder is not None and (beside := value.get("metadata")) is not None:
            decoder = WithMetadata(decoder, _schema(beside["columns"]), tuple(beside["sources"]))
    except (KeyError, TypeError, ValueError, binascii.Error, pa.ArrowException, HeadgateError) as error:
        raise Corrupt(f"The decoder in an open record is invalid: {error!r:.200}.") from error
    return Provenance(name, columns, decoder, None if changed is None else bool(changed))


def _schema_text(schema: pa.Schema) -> str:
    """A text that is equal for equal columns: Lance returns metadata in varying order, so it is sorted here. (Metadata
    of nested fields is left as it is.)
    """
    fields = [field.with_metadata(_sorted(field.metadata)) for field in schema]
    ordered = pa.schema(fields, _sorted(schema.metadata))
    return base64.b64encode(ordered.serialize()).decode()


def _sorted(metadata: Mapping[bytes, bytes] | None) -> dict[bytes, bytes] | None:
    return None if metadata is None else dict(sorted(metadata.items()))


def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
