"""A schema as people write it (pyarrow, Spark StructType, Spark DDL) as a pyarrow schema.

No Spark is started: Spark's own DDL parser lives in the JVM, so the DDL grammar of the
types that a table can hold is read here. Spark's types map as Spark maps them:
`timestamp` is microseconds in UTC, `timestamp_ntz` microseconds without a zone.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from headgate.errors import InvalidInput, nearest
from headgate.spark import versions


def arrow_schema(schema: Any) -> pa.Schema:
    """Convert `schema` to a pyarrow schema: from a pyarrow Schema, a pyspark StructType or a DDL string. Raises
    InvalidInput.
    """
    if isinstance(schema, pa.Schema):
        return schema
    if isinstance(schema, str):
        return _Ddl(schema).schema()
    if type(schema).__module__.startswith("pyspark.") and hasattr(schema, "fields"):
        return _of_struct_type(schema)
    raise InvalidInput(
        f"schema must be a pyarrow Schema, a pyspark StructType or a DDL string, got {type(schema).__name__}."
    )


def arrow_field(column: str) -> pa.Field:
    """The single column in a DDL string. Raises InvalidInput."""
    columns = arrow_schema(column)
    if len(columns) != 1:
        raise InvalidInput(f"Only one column can be added at a time, but {column!r} has {len(columns)}.")
    return columns.field(0)


def check_unicode(name: str) -> None:
    """Raises InvalidInput for text that no store and no Arrow schema can hold: a lone surrogate."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"Invalid column name {name[:80]!a}: it is not valid Unicode (lone surrogate at {error.start})."
        ) from error


def _of_struct_type(schema: Any) -> pa.Schema:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    if "variant" in schema.simpleString().lower():
        raise InvalidInput("VARIANT columns are not supported; declare the fields' types, or use string.")
    try:
        converted: pa.Schema = to_arrow_schema(schema, **versions.arrow_arguments())
    except PySparkException as error:
        raise InvalidInput(f"Spark cannot express this schema in Arrow: {error}") from error
    return converted


_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL = ("decimal", "dec", "numeric")
_SIZED_STRING = ("char", "varchar")
_NESTED = ("struct", "array", "map")
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\")|(\w+)|([<>(),:]))")


class _Ddl:
    """One pass over `name type [NOT NULL] [COMMENT '…'], …`."""

    def __init__(self, text: str) -> None:
        check_unicode(text)
        self._text = text
        self._tokens: list[tuple[str, int]] = []
        self._next = 0
        at = 0
        end = len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._error(at, "a name or a type")
            self._tokens.append((match.group(match.lastindex or 0), match.start(match.lastindex or 0)))
            at = match.end()

    def schema(self) -> pa.Schema:
        if len(self._tokens) > 1 and self._peek() == "struct" and self._tokens[1][0] == "<":
            self._take()
            fields = self._fields("<", ">")
        else:
            fields = self._columns()
        if self._next < len(self._tokens):
            raise self._error(self._at(), "the end")
        return pa.schema(fields)

    def _columns(self) -> list[pa.Field]:
        fields = [self._field()]
        while self._peek() == ",":
            self._take()
            fields.append(self._field())
        return fields

    def _fields(self, opening: str, closing: str) -> list[pa.Field]:
        self._expect(opening)
        fields = [] if self._peek() == closing else self._columns()
        self._expect(closing)
        return fields

    def _field(self) -> pa.Field:
        name = self._name()
        if self._peek() == ":":
            self._take()
        kind = self._type()
        nullable = True
        if self._peek() == "not":
            self._take()
            self._expect("null")
            nullable = False
        if self._peek() == "comment":
            self._take()
            if not self._peek().startswith(("'", '"')):
                raise self._error(self._at(), "the comment's text in quotes")
            self._take()
        return pa.field(name, kind, nullable)

    def _name(self) -> str:
        token = self._raw()
        if token.startswith("`"):
            self._take()
            return token[1:-1].replace("``", "`")
        if not re.fullmatch(r"\w+", token):
            raise self._error(self._at(), "a column name")
        self._take()
        return token

    def _type(self) -> pa.DataType:
        at = self._at()
        word = self._peek()
        if word in _TYPES:
            self._take()
            return _TYPES[word]
        if word in _DECIMAL:
            self._take()
            precision, scale = self._sizes(2, (10, 0))
            if not (1 <= precision <= 38 and 0 <= scale <= precision):
                raise self._error(at, "a decimal of 1 to 38 digits with a scale no larger")
            return pa.decimal128(precision, scale)
        if word in _SIZED_STRING:
            raise self._error(at, f"'string' ({word} lengths are not supported)")
        if word == "struct":
            self._take()
            return pa.struct(self._fields("<", ">"))
        if word == "array":
            self._take()
            (element,) = self._arguments(1)
            return pa.list_(pa.field("element", element))
        if word == "map":
            self._take()
            key, value = self._arguments(2)
            return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value))
        known = [*_TYPES, *_DECIMAL, *_NESTED]
        near = nearest(word, known)
        raise self._error(at, f"a type (did you mean {near!r}?)" if near else f"a type, one of {', '.join(known)}")

    def _arguments(self, count: int) -> list[pa.DataType]:
        self._expect("<")
        kinds = [self._type()]
        while len(kinds) < count:
            self._expect(",")
            kinds.append(self._type())
        self._expect(">")
        return kinds

    def _sizes(self, count: int, otherwise: tuple[int, ...]) -> tuple[int, ...]:
        if self._peek() != "(":
            return otherwise
        self._take()
        sizes = []
        while True:
            if not self._peek().isdecimal():
                raise self._error(self._at(), "a number")
            sizes.append(int(self._take()))
            if len(sizes) == count or self._peek() != ",":
                break
            self._take()
        self._expect(")")
        return (*sizes, *(0 for _ in range(count - len(sizes))))

    def _raw(self) -> str:
        return self._tokens[self._next][0] if self._next < len(self._tokens) else ""

    def _peek(self) -> str:
        token = self._raw()
        return token if token.startswith(("`", "'", '"')) else token.lower()

    def _take(self) -> str:
        token = self._peek()
        self._next += 1
        return token

    def _expect(self, token: str) -> None:
        if self._peek() != token:
            raise self._error(self._at(), repr(token))
        self._take()

    def _at(self) -> int:
        return self._tokens[self._next][1] if self._next < len(self._tokens) else len(self._text)

    def _error(self, at: int, wanted: str) -> InvalidInput:
        found = self._text[at : at + 20].strip()
        return InvalidInput(
            f"Invalid DDL schema at character {at}: expected {wanted}, found {repr(found) if found else 'its end'}."
        )
