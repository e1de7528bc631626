"""Which Arrow types JSON can fill, and by which rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa
from pyarrow import types

from headgate.errors import InvalidInput
from headgate.streaming.decode.json.base import JsonType
from headgate.streaming.decode.json.nested import Field, Fields, List, Map, Struct
from headgate.streaming.decode.json.scalars import Boolean, Exact, Integer, Real, String
from headgate.streaming.decode.json.texts import Base64, Time

_IS: tuple[tuple[type[JsonType], Callable[[pa.DataType], bool]], ...] = (
    (Boolean, types.is_boolean),
    (Integer, types.is_integer),
    (Real, types.is_floating),
    (Exact, lambda kind: (types.is_decimal128(kind) or types.is_decimal256(kind)) and kind.scale >= 0),
    (String, lambda kind: types.is_string(kind) or types.is_large_string(kind)),
    (Time, lambda kind: types.is_timestamp(kind) or types.is_date(kind)),
    (Base64, lambda kind: types.is_binary(kind) or types.is_large_binary(kind)),
)


def columns_of(schema: pa.Schema) -> Fields:
    """The rules of the columns. Raises InvalidInput naming the first column that JSON cannot fill."""
    if not schema.names:
        raise InvalidInput("The schema must have at least one column.")
    return _fields(schema, "")


def _fields(fields: Iterable[pa.Field], above: str) -> Fields:
    found = list(fields)
    names = [field.name for field in found]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"The schema has the name {above + twice!r} twice; a JSON object has it once.")
    return Fields(tuple(Field(field, _type(field.type, above + field.name)) for field in found))


def _type(kind: pa.DataType, path: str) -> JsonType:
    if types.is_struct(kind):
        return Struct(kind, _fields((kind.field(i) for i in range(kind.num_fields)), path + "."))
    if types.is_map(kind):
        if not types.is_string(kind.key_type):
            raise InvalidInput(f"Column {path!r}: the keys of a JSON object are strings, so map keys must be string.")
        return Map(kind, Field(kind.item_field, _type(kind.item_type, path + "{}")))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return List(kind, Field(kind.value_field, _type(kind.value_type, path + "[]")))
    for found, is_kind in _IS:
        if is_kind(kind):
            return found(kind)
    raise InvalidInput(f"Column {path!r}: {kind} cannot be decoded from JSON.", advice=_advice(kind))


def _advice(kind: pa.DataType) -> str:
    if types.is_dictionary(kind):
        return f"declare it as {kind.value_type}"
    return "declare it as string or a number, and convert it after it is read"
