"""The decoder for JSON objects: which type takes what is said in `decode`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headgate.streaming.decode.contract import Decoded, DecoderKind, as_bytes, bad_records
from headgate.streaming.decode.json.columns import Pass
from headgate.streaming.decode.json.types import check_types


@dataclass(frozen=True)
class JsonDecoder:
    """Decodes JSON objects by the table in `decode`."""

    schema: pa.Schema

    def __post_init__(self) -> None:
        check_types(self.schema)

    def decode(self, values: pa.Array) -> Decoded:
        """The rows of the values. Raises InvalidInput only for an array that holds neither bytes nor text.

        1. Null values are set aside.
        2. Window by window: what is no JSON object is refused, the rest joined and parsed in one go.
        3. A window that does not parse is parsed in pieces; where a piece does not, its records
           are looked at one by one, and those that fit are parsed again together.
        """
        values = as_bytes(values)
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        found = Pass(self.schema)
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
    for_table=lambda table, registry, auth: JsonDecoder(table.schema),
    remake=lambda schema, options, auth: JsonDecoder(schema),
    in_format=True,
)
