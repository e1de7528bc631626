"""The decoder for JSON objects. See `decode.api` for its promises, and `json.types` for the rules of each type."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from headgate.streaming.decode.contract import Decoded, DecoderKind, as_bytes, bad_records
from headgate.streaming.decode.json.coerce import Coerce, check_coerce
from headgate.streaming.decode.json.columns import ColumnReader
from headgate.streaming.decode.json.types import columns_of


@dataclass(frozen=True)
class JsonDecoder:
    """Decodes JSON objects by the table in `decode`."""

    schema: pa.Schema
    coerce: Coerce = ()
    """What columns take beside values of their own kind, see `COERCIONS`."""

    def __post_init__(self) -> None:
        columns_of(self.schema, self.coerce)

    def decode(self, values: pa.Array) -> Decoded:
        """The rows of the values. Raises InvalidInput only for an array that holds neither bytes nor text.

        1. Null values are set aside.
        2. Window by window: what is no JSON object is refused, the rest joined and read as columns.
        3. What columns refuse goes, row by row; text that does not parse is read in fewer and fewer rows.
        """
        values = as_bytes(values)
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        found = ColumnReader(self.schema, self.coerce)
        found.decode(values.drop_null() if values.null_count else values, np.flatnonzero(~is_null))
        return Decoded(
            found.rows(),
            pa.array(found.positions(), pa.int64()),
            bad_records(found.bad),
            pa.array(np.flatnonzero(is_null), pa.int64()),
        )


KIND = DecoderKind(
    "json",
    JsonDecoder,
    for_columns=lambda columns, registry, auth: JsonDecoder(columns),
    remake=lambda schema, options, auth: JsonDecoder(schema, check_coerce(options.get("coerce", ()))),
    options=lambda decoder: {"coerce": list(decoder.coerce)} if decoder.coerce else {},
    in_format=True,
    coercing=lambda decoder, names: replace(decoder, coerce=check_coerce(names)),
)
