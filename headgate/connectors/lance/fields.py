"""Lance schemas with chosen field ids.

Lance numbers the columns of a new dataset 0, 1, 2 …. A table with dropped or added columns has other field ids, and its
SSTables and entries must use the same ones. A field id is never reused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from headgate.connectors.lance.protobuf import message_classes


def numbered_schema(schema: pa.Schema, field_ids: Sequence[int]) -> Any:
    """The LanceSchema of a pyarrow schema, with these ids in depth-first order."""
    from lance.schema import LanceSchema

    plain = pa.schema([field.remove_metadata() if _is_id_alone(field) else field for field in schema], schema.metadata)
    metadata, *fields = _parts(LanceSchema.from_pyarrow(plain))
    return LanceSchema._from_protos(metadata, *_renumbered(fields, field_ids))


def highest_field_id(dataset: Any) -> int:
    """The highest field id in the dataset's columns or data files, from which Lance would continue counting."""
    columns = (_Field.FromString(data).id for data in _parts(dataset.lance_schema)[1:])
    files = (max(file.fields, default=-1) for one in dataset.get_fragments() for file in one.metadata.files)
    return int(max([-1, *columns, *files]))


def add_numbered(dataset: Any, column: pa.Field, above: int) -> None:
    """Add a column, null in all rows, whose field ids are above `above` and above those in the dataset.

    Lance by itself reuses a dropped column's id unless a data file of the base has it: the new column would then show
    values that entries and SSTables still carry under that id.
    """
    import lance
    from lance.schema import LanceSchema

    metadata, *fields = _parts(dataset.lance_schema)
    _, *added = _parts(LanceSchema.from_pyarrow(pa.schema([column])))
    first = max(above, highest_field_id(dataset)) + 1
    added = list(_renumbered(added, range(first, first + len(added))))
    operation = lance.LanceOperation.Project(LanceSchema._from_protos(metadata, *fields, *added))
    lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)


def _parts(schema: Any) -> tuple[Any, ...]:
    """A schema as Lance pickles it: its metadata, then each field as a message, depth first."""
    parts: tuple[Any, ...] = schema.__reduce__()[1]
    return parts


def _renumbered(fields: Sequence[bytes], field_ids: Sequence[int]) -> Iterator[bytes]:
    for data in fields:
        field = _Field.FromString(data)
        field.id = field_ids[field.id]
        if field.parent_id >= 0:
            field.parent_id = field_ids[field.parent_id]
        yield field.SerializeToString()


def _is_id_alone(field: pa.Field) -> bool:
    return set(field.metadata or {}) == {b"lance:field_id"}


_Field = message_classes({"Field": "id=3:i32 parent_id=4:i32"})["Field"]
"""Lance's message for a field, with only id and parent described; protobuf keeps the other fields."""
