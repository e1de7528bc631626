"""Lance schemas with field ids of one's choice.

Lance numbers the columns of a new dataset 0, 1, 2 …; a table that had columns dropped
or added has other numbers, and whoever reads by number must find the same ones beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headgate.connectors.lance.protobuf import message_classes


def numbered_schema(schema: pa.Schema, field_ids: Sequence[int]) -> Any:
    """The LanceSchema of a pyarrow schema, with these ids in depth-first order."""
    from lance.schema import LanceSchema

    plain = pa.schema([field.remove_metadata() if _is_id_alone(field) else field for field in schema], schema.metadata)
    parts: tuple[Any, ...] = LanceSchema.from_pyarrow(plain).__reduce__()[1]  # type: ignore[assignment]
    renumbered = []
    for data in parts[1:]:
        field = _Field.FromString(data)
        field.id = field_ids[field.id]
        if field.parent_id >= 0:
            field.parent_id = field_ids[field.parent_id]
        renumbered.append(field.SerializeToString())
    return LanceSchema._from_protos(parts[0], *renumbered)


def _is_id_alone(field: pa.Field) -> bool:
    return set(field.metadata or {}) == {b"lance:field_id"}


_Field = message_classes({"Field": "id=3:i32 parent_id=4:i32"})["Field"]
"""Lance's message for a field, id and parent alone; protobuf carries the rest along."""
