"""Types read from objects and arrays: structs, maps and lists."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from headgate.streaming.decode.json.base import JsonType, Unfit, shown, wrong
from headgate.streaming.decode.json.scalars import has_surrogate

_MISSING = object()


class Twice(dict[str, Any]):
    """An object with duplicate names."""

    names: frozenset[str]


@dataclass(frozen=True)
class Field:
    """A column, a field of a struct, or the items of a list or map."""

    arrow: pa.Field
    type: JsonType

    @cached_property
    def name(self) -> str:
        return str(self.arrow.name)

    @cached_property
    def nullable(self) -> bool:
        return bool(self.arrow.nullable)

    def finish(self, array: pa.Array, path: str) -> pa.Array:
        """Like `JsonType.finish`; a required field must not be null in any row."""
        if not self.nullable and array.null_count:
            raise Unfit(f"column {path!r} is missing or null", array.is_null())
        return self.type.finish(array, path)

    def read(self, value: Any, path: str) -> Any:
        """Like `JsonType.read`, also for a null or missing value."""
        if value is not None and value is not _MISSING:
            return self.type.read(value, path)
        if not self.nullable:
            raise Unfit(f"column {path!r} is {'null' if value is None else 'missing'}")
        return None


@dataclass(frozen=True)
class Fields:
    """The fields of an object; other names in it are ignored."""

    fields: tuple[Field, ...]

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(field.name for field in self.fields)

    def read(self, record: dict[str, Any], above: str = "") -> dict[str, Any]:
        """The values by name. Raises Unfit."""
        if isinstance(record, Twice) and record.names & self._names:
            raise Unfit(f"column {above + min(record.names & self._names)!r} is duplicated")
        return {field.name: field.read(record.get(field.name, _MISSING), above + field.name) for field in self.fields}


@dataclass(frozen=True)
class Struct(JsonType):
    """An object."""

    fields: Fields

    @property
    def parts(self) -> tuple[JsonType, ...]:
        return tuple(field.type for field in self.fields.fields)

    @property
    def stand_in(self) -> pa.DataType:
        return pa.struct([pa.field(field.name, field.type.stand_in) for field in self.fields.fields])

    def finish(self, array: pa.Array, path: str) -> pa.Array:
        fields = self.fields.fields
        # flatten() gives the children the struct's own nulls, so they have at least as many.
        for field, child in zip(fields, array.flatten(), strict=True):
            if not field.nullable and child.null_count > array.null_count:
                rows = pc.and_(array.is_valid(), child.is_null())
                raise Unfit(f"column {path + '.' + field.name!r} is missing or null", rows)
        made = [field.type.finish(array.field(i), f"{path}.{field.name}") for i, field in enumerate(fields)]
        if not made:
            return array
        return pa.StructArray.from_arrays(made, fields=[field.arrow for field in fields], mask=_null_mask(array))

    def read(self, value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise wrong(path, "an object", value)
        return self.fields.read(value, path + ".")


@dataclass(frozen=True)
class List(JsonType):
    """An array; of fixed length if the type has one."""

    item: Field

    @property
    def parts(self) -> tuple[JsonType, ...]:
        return (self.item.type,)

    @property
    def stand_in(self) -> pa.DataType:
        return pa.list_(self.item.type.stand_in)

    @cached_property
    def _size(self) -> int | None:
        return int(self.kind.list_size) if types.is_fixed_size_list(self.kind) else None

    def finish(self, array: pa.Array, path: str) -> pa.Array:
        values, mask = _inner(array, array.values, self.item, path + "[]"), _null_mask(array)
        if types.is_large_list(self.kind):
            return pa.LargeListArray.from_arrays(array.offsets.cast(pa.int64()), values, type=self.kind, mask=mask)
        made = pa.ListArray.from_arrays(array.offsets, values, type=pa.list_(self.item.arrow), mask=mask)
        if self._size is None:
            return made
        other = pc.not_equal(pc.list_value_length(made), self._size)
        if pc.any(other).as_py():
            raise Unfit(f"column {path!r} does not have {self._size} items", other)
        return made.cast(self.kind)

    def read(self, value: Any, path: str) -> Any:
        if not isinstance(value, list):
            raise wrong(path, "an array", value)
        if self._size is not None and len(value) != self._size:
            raise Unfit(f"column {path!r} has {len(value)} items, wanted {self._size}")
        path += "[]"
        return [self.item.read(one, path) for one in value]


@dataclass(frozen=True)
class Map(JsonType):
    """An object with any names. pyarrow.json cannot read it: its column is built from `read`."""

    item: Field

    @property
    def by_record(self) -> bool:
        return True

    @property
    def parts(self) -> tuple[JsonType, ...]:
        return (self.item.type,)

    @property
    def stand_in(self) -> pa.DataType:
        return pa.map_(pa.string(), self.item.type.stand_in)

    def finish(self, array: pa.Array, path: str) -> pa.Array:
        items = _inner(array, array.items, self.item, path + "{}")
        return pa.MapArray.from_arrays(array.offsets, array.keys, items, type=self.kind, mask=_null_mask(array))

    def read(self, value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise wrong(path, "an object", value)
        if isinstance(value, Twice):
            raise Unfit(f"column {path!r} has a duplicate key: {shown(min(value.names))}")
        if any(has_surrogate(key) for key in value):
            raise Unfit(f"column {path!r} has a key that is not Unicode")
        path += "{}"
        return [(key, self.item.read(one, path)) for key, one in value.items()]


def _inner(array: pa.Array, values: pa.Array, item: Field, path: str) -> pa.Array:
    """Convert the items of lists or maps. The rows of an Unfit are mapped to those of the lists."""
    try:
        return item.finish(values, path)
    except Unfit as error:
        if error.rows is not None:
            marks = error.rows.fill_null(False).to_numpy(zero_copy_only=False)
            before = np.concatenate(([0], np.cumsum(marks)))
            offsets = array.offsets.to_numpy()
            error.rows = pa.array(before[offsets[1:]] > before[offsets[:-1]])
        raise


def _null_mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None
