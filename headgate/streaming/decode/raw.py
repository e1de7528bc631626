"""Values as they are: one column of bytes, or of text where every value must be UTF-8."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headgate.errors import InvalidInput
from headgate.streaming.decode.cast import cast_each
from headgate.streaming.decode.contract import Decoded, DecoderKind, as_bytes, bad_records
from headgate.table.ddl import check_unicode

_KINDS = (pa.binary(), pa.large_binary(), pa.string(), pa.large_string())


@dataclass(frozen=True)
class RawDecoder:
    """Each value is one row of one column. Nothing is copied where the column is binary."""

    column: str
    kind: pa.DataType

    def __post_init__(self) -> None:
        check_unicode(self.column)
        if self.kind not in _KINDS:
            raise InvalidInput(f"The raw column must be one of {', '.join(map(str, _KINDS))}, got {self.kind}.")

    @property
    def schema(self) -> pa.Schema:
        """The one column."""
        return pa.schema([pa.field(self.column, self.kind)])

    def decode(self, values: pa.Array) -> Decoded:
        """The rows of the values. Only text can be bad: what is no UTF-8."""
        values = as_bytes(values)
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        at = np.flatnonzero(~is_null)
        column, fits = cast_each(values.drop_null() if values.null_count else values, self.kind)
        rows = pa.RecordBatch.from_arrays([column], schema=self.schema)
        bad = dict.fromkeys(at[~fits].tolist(), "not UTF-8")
        return Decoded(
            rows, pa.array(at[fits], pa.int64()), bad_records(bad), pa.array(np.flatnonzero(is_null), pa.int64())
        )


def _for_columns(columns: pa.Schema, registry: str | None, auth: str | None) -> RawDecoder:
    if len(columns) != 1:
        raise InvalidInput(
            f"The raw decoder fills one column, but the table has {columns.names}.",
            advice="declare columns that Kafka fills as metadata, such as timestamp",
        )
    return _of_column(columns)


def _of_column(schema: pa.Schema) -> RawDecoder:
    return RawDecoder(schema.names[0], schema.types[0])


KIND = DecoderKind(
    "raw",
    RawDecoder,
    for_columns=_for_columns,
    remake=lambda schema, options, auth: _of_column(schema),
    follows_table=False,
)
