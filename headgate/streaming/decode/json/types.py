"""Which Arrow types JSON can fill, and by which rule. `docs/reference/decoding.md` is rendered from RULES."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyarrow import types

from headgate.errors import InvalidInput
from headgate.streaming.decode.json.base import JsonType
from headgate.streaming.decode.json.coerce import Coerce, coerced
from headgate.streaming.decode.json.nested import Field, Fields, List, Map, Struct
from headgate.streaming.decode.json.scalars import Boolean, Exact, Integer, Real, String
from headgate.streaming.decode.json.texts import Base64, Time


@dataclass(frozen=True)
class Rule:
    """The rule for some types. A test decodes the examples, which have the type `example`."""

    arrow: str
    takes: str
    is_kind: Callable[[pa.DataType], bool]
    make: Callable[[pa.DataType, str, Coerce], JsonType]
    """Gets the column's type, path and coercions."""
    example: pa.DataType
    taken: tuple[str, ...]
    refused: tuple[str, ...]


def columns_of(schema: pa.Schema, coerce: Coerce = ()) -> Fields:
    """The rules of the columns, with coercions applied. Raises InvalidInput naming the first column that JSON cannot
    fill.
    """
    if not schema.names:
        raise InvalidInput("The schema must have at least one column.")
    return _fields(schema, "", coerce)


def _fields(fields: Iterable[pa.Field], above: str, coerce: Coerce) -> Fields:
    found = list(fields)
    names = [field.name for field in found]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"The schema has the name {above + twice!r} twice; a JSON object has it once.")
    return Fields(tuple(Field(field, _type(field.type, above + field.name, coerce)) for field in found))


def _type(kind: pa.DataType, path: str, coerce: Coerce) -> JsonType:
    for rule in RULES:
        if rule.is_kind(kind):
            return rule.make(kind, path, coerce)
    raise InvalidInput(f"Column {path!r}: {kind} cannot be decoded from JSON.", advice=_advice(kind))


def _scalar(made: type[JsonType], kind: pa.DataType, path: str, coerce: Coerce) -> JsonType:
    return coerced(made(kind), coerce)


def _struct(kind: pa.DataType, path: str, coerce: Coerce) -> JsonType:
    return Struct(kind, _fields((kind.field(i) for i in range(kind.num_fields)), path + ".", coerce))


def _list(kind: pa.DataType, path: str, coerce: Coerce) -> JsonType:
    return List(kind, Field(kind.value_field, _type(kind.value_type, path + "[]", coerce)))


def _map(kind: pa.DataType, path: str, coerce: Coerce) -> JsonType:
    if not types.is_string(kind.key_type):
        raise InvalidInput(f"Column {path!r}: the keys of a JSON object are strings, so map keys must be string.")
    return Map(kind, Field(kind.item_field, _type(kind.item_type, path + "{}", coerce)))


def _advice(kind: pa.DataType) -> str:
    if types.is_dictionary(kind):
        return f"declare it as {kind.value_type}"
    return "declare it as string or a number, and convert it after it is read"


RULES: tuple[Rule, ...] = (
    Rule(
        "bool",
        "`true` and `false`",
        types.is_boolean,
        partial(_scalar, Boolean),
        pa.bool_(),
        ("true",),
        ('"true"', "1"),
    ),
    Rule(
        "int8 … int64, uint8 … uint64",
        "a number without fraction or exponent, in range",
        types.is_integer,
        partial(_scalar, Integer),
        pa.int8(),
        ("-128",),
        ("1.0", "1e2", "128", '"12"'),
    ),
    Rule(
        "halffloat, float, double",
        "a number that is finite in the type; the nearest that it has",
        types.is_floating,
        partial(_scalar, Real),
        pa.float16(),
        ("0.1", "1e3"),
        ("NaN", "65520", '"1.5"'),
    ),
    Rule(
        "decimal128, decimal256",
        "a number or a string, exact from its text: no more digits than the type has, zeros at the end aside",
        lambda kind: (types.is_decimal128(kind) or types.is_decimal256(kind)) and kind.scale >= 0,
        partial(_scalar, Exact),
        pa.decimal128(6, 2),
        ("12.5", '"12.5"', "1.2300"),
        ("1.234", "123456", '"1,5"'),
    ),
    Rule(
        "string, large_string",
        "a string in Unicode; numbers and objects do not become text",
        lambda kind: types.is_string(kind) or types.is_large_string(kind),
        partial(_scalar, String),
        pa.string(),
        ('"cup"', '""'),
        ("12", "{}", '"\\ud800"'),
    ),
    Rule(
        "timestamp with a zone",
        "a string in ISO 8601: a date; `T` or a space and a time to hours, minutes, seconds or a fraction; `Z` or an "
        "offset, without one UTC. Up to nine digits of a fraction; those that the unit does not have must be zeros",
        lambda kind: types.is_timestamp(kind) and kind.tz is not None,
        partial(_scalar, Time),
        pa.timestamp("us", "UTC"),
        ('"2026-11-19T08:30:00Z"', '"2026-11-19 10:30+02:00"', '"2026-11-19"', '"2026-11-19T08:30:00.123456000Z"'),
        ('"2026-11-19T08:30:00.123456789Z"', '"19.11.2026"', "1795076000"),
    ),
    Rule(
        "timestamp without a zone",
        "the same without `Z` or an offset",
        types.is_timestamp,
        partial(_scalar, Time),
        pa.timestamp("ns"),
        ('"2026-11-19T08:30:00.123456789"',),
        ('"2026-11-19T08:30:00Z"',),
    ),
    Rule(
        "date32, date64",
        "a string `YYYY-MM-DD`",
        types.is_date,
        partial(_scalar, Time),
        pa.date32(),
        ('"2026-11-19"',),
        ('"2026-11-31"', "20776"),
    ),
    Rule(
        "binary, large_binary",
        "a string of standard Base64 with padding, as Spark and Kafka Connect write it",
        lambda kind: types.is_binary(kind) or types.is_large_binary(kind),
        partial(_scalar, Base64),
        pa.binary(),
        ('"aGk="',),
        ('"aGk"', '"hi!"'),
    ),
    Rule(
        "struct",
        "an object; names that the struct does not have are ignored",
        types.is_struct,
        _struct,
        pa.struct([pa.field("x", pa.int32(), nullable=False)]),
        ('{"x": 1, "y": 2}',),
        ("{}", "[1]"),
    ),
    Rule(
        "list, large_list",
        "an array",
        lambda kind: types.is_list(kind) or types.is_large_list(kind),
        _list,
        pa.list_(pa.int32()),
        ("[1, null]", "[]"),
        ("1", '["a"]'),
    ),
    Rule(
        "fixed_size_list",
        "an array of that length, such as a vector",
        types.is_fixed_size_list,
        _list,
        pa.list_(pa.float32(), 2),
        ("[0.5, 1]",),
        ("[0.5]", "[0.5, NaN]"),
    ),
    Rule(
        "map with string keys",
        "an object, each key once. It is read row by row, several times slower than the rest",
        types.is_map,
        _map,
        pa.map_(pa.string(), pa.int32()),
        ('{"a": 1}',),
        ('{"a": 1, "a": 2}', '{"a": "b"}'),
    ),
)
