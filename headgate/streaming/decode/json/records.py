"""The type rules for one record at a time: what the whole-column reader refused is named here.

`Rules.read` says why a record does not fit, column and reason, or gives its columns as
Python values. It refuses only what the whole-column reader refuses as well; what it lets
through, that reader still judges. So a record's fate does not depend on its neighbours.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types

from headgate.streaming.decode.json.types import Unfit, holds_map, integer_range, is_any_list, plain_time

SAMPLE = 40
"""Characters of a value that an error may show: enough to find it, too few to leak a document."""


class Unsure(Exception):
    """Python's reader gives up on the record; only the whole-column reader can tell."""


@functools.lru_cache(maxsize=64)
def rules_of(schema: pa.Schema) -> Rules:
    """The rules, made once per schema and process."""
    return Rules(schema)


class Rules:
    """The rules of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = _fields(list(schema), "")
        self._mapped = _fields([field for field in schema if holds_map(field.type)], "")
        decimals = any(_holds_decimal(field.type) for field in schema)
        self._json = json.JSONDecoder(object_pairs_hook=_object, parse_float=_Real if decimals else None)

    def read(self, text: str) -> None:
        """Nothing, if the record fits. Raises Unfit, or Unsure."""
        self._columns(self.load(text))

    def mapped(self, text: str) -> dict[str, Any]:
        """The columns that hold maps, as values for `stand_in`. Raises Unfit, or Unsure."""
        return self._mapped(self.load(text))

    def load(self, text: str) -> dict[str, Any]:
        """The record as one JSON object. Raises Unfit, or Unsure."""
        try:
            record = self._json.decode(text)
        except RecursionError:
            raise Unsure("nested too deeply") from None
        except json.JSONDecodeError as error:
            # pyarrow.json also knows Inf and -NaN, which are harmless in a field that nobody reads.
            if "Inf" in text or "NaN" in text:
                raise Unsure(f"not JSON: {error.msg}") from None
            raise Unfit(f"not JSON: {error.msg} at character {error.pos}") from None
        except ValueError:
            raise Unsure("a number of too many digits") from None
        if not isinstance(record, dict):
            raise Unfit(f"not a JSON object but {_noun(record)}")
        return record


Rule = Callable[[Any, str], Any]
"""Takes a value that is not null and where it stands; gives the value to build from."""


class _Real(float):
    """A number with a fraction or an exponent, and its text: decimals are made of that."""

    text: str

    def __new__(cls, text: str) -> _Real:
        made = super().__new__(cls, text)
        made.text = text
        return made


class _Twice(dict[str, Any]):
    """An object in which names are given more than once."""

    names: frozenset[str]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    twice = _Twice(made)
    seen = [name for name, _ in pairs]
    twice.names = frozenset(name for name in made if seen.count(name) > 1)
    return twice


_MISSING = object()


def _fields(fields: list[pa.Field], above: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The rule of an object with these fields; other names are ignored."""
    each = [(field.name, above + field.name, field.nullable, _rule(field.type)) for field in fields]
    names = frozenset(field.name for field in fields)

    def read(record: dict[str, Any]) -> dict[str, Any]:
        if isinstance(record, _Twice) and record.names & names:
            raise Unfit(f"column {above + min(record.names & names)!r} is given twice")
        made: dict[str, Any] = {}
        for name, path, nullable, rule in each:
            value = record.get(name, _MISSING)
            if value is None or value is _MISSING:
                if not nullable:
                    raise Unfit(f"column {path!r} is {'null' if value is None else 'missing'}")
                made[name] = None
            else:
                made[name] = rule(value, path)
        return made

    return read


def _rule(kind: pa.DataType) -> Rule:
    if types.is_struct(kind):
        return _struct_rule(kind)
    if types.is_map(kind):
        return _map_rule(kind)
    if is_any_list(kind):
        return _list_rule(kind)
    if types.is_boolean(kind):
        return _boolean_rule
    if types.is_integer(kind):
        return _integer_rule(kind)
    if types.is_floating(kind):
        return _real_rule(kind)
    if types.is_decimal(kind):
        return _decimal_rule(kind)
    if types.is_timestamp(kind) or types.is_date(kind):
        return _time_rule(kind)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _base64_rule
    return _string_rule


def _struct_rule(kind: pa.DataType) -> Rule:
    # Paths below a struct depend on where it stands; there are few, so they are made once each.
    inner = functools.lru_cache(maxsize=None)(
        lambda path: _fields([kind.field(i) for i in range(kind.num_fields)], path + ".")
    )

    def read(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(path, "an object", value)
        return inner(path)(value)

    return read


def _map_rule(kind: pa.DataType) -> Rule:
    item, nullable = _rule(kind.item_type), kind.item_field.nullable

    def read(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(path, "an object", value)
        if isinstance(value, _Twice):
            raise Unfit(f"column {path!r} has a key twice: {_shown(min(value.names))}")
        if any(_has_surrogate(key) for key in value):
            raise Unfit(f"column {path!r} has a key that is not Unicode")
        return [(key, _element(one, nullable, item, path + "{}")) for key, one in value.items()]

    return read


def _list_rule(kind: pa.DataType) -> Rule:
    item, nullable = _rule(kind.value_type), kind.value_field.nullable
    size = kind.list_size if types.is_fixed_size_list(kind) else None

    def read(value: Any, path: str) -> Any:
        if not isinstance(value, list):
            raise _wrong(path, "an array", value)
        if size is not None and len(value) != size:
            raise Unfit(f"column {path!r} has {len(value)} items, wanted {size}")
        return [_element(one, nullable, item, path + "[]") for one in value]

    return read


def _element(value: Any, nullable: bool, rule: Rule, path: str) -> Any:
    if value is not None:
        return rule(value, path)
    if not nullable:
        raise Unfit(f"column {path!r} is null")
    return None


def _boolean_rule(value: Any, path: str) -> Any:
    if not isinstance(value, bool):
        raise _wrong(path, "true or false", value)
    return value


def _string_rule(value: Any, path: str) -> Any:
    if not isinstance(value, str):
        raise _wrong(path, "a string", value)
    if _has_surrogate(value):
        raise Unfit(f"column {path!r} is not Unicode: half a surrogate pair")
    return value


def _integer_rule(kind: pa.DataType) -> Rule:
    low, high = integer_range(kind)

    def read(value: Any, path: str) -> Any:
        if type(value) is not int:
            raise _wrong(path, "a whole number", value)
        if not low <= value <= high:
            raise Unfit(f"column {path!r}: {_shown(value)} is out of range for {kind}")
        return value

    return read


_FLOAT_MAX = 3.41e38
"""Above this no float is finite. Just below it, the column's own conversion decides."""


def _real_rule(kind: pa.DataType) -> Rule:
    limit = _FLOAT_MAX if types.is_float32(kind) else float("inf")

    def read(value: Any, path: str) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong(path, "a number", value)
        try:
            real = float(value)
        except OverflowError:
            real = float("inf")
        if not abs(real) < limit:  # NaN too
            raise Unfit(f"column {path!r}: {_shown(value)} is not a finite number of type {kind}")
        return real

    return read


_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?")


def _decimal_rule(kind: pa.DataType) -> Rule:
    precision, scale = kind.precision, kind.scale

    def read(value: Any, path: str) -> Any:
        if isinstance(value, _Real):
            text = value.text
        elif type(value) is int:
            text = str(value)
        elif isinstance(value, str) and _DECIMAL.fullmatch(value):
            text = value
        else:
            raise _wrong(path, "a decimal number", value)
        number = Decimal(text)
        _, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int)  # never NaN or infinite, by its text
        # Neither normalize() nor arithmetic: both round to the context's 28 digits.
        zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
        if number and -exponent - zeros > scale:
            raise Unfit(f"column {path!r}: {_shown(value)} has more than {scale} digits after the point")
        if number and number.adjusted() + 1 + scale > precision:
            raise Unfit(f"column {path!r}: {_shown(value)} is out of range for {kind}")
        return number

    return read


def _time_rule(kind: pa.DataType) -> Rule:
    plain, zone = re.compile(plain_time(kind)), types.is_timestamp(kind) and kind.tz is not None
    noun = "an ISO date" if types.is_date(kind) else "an ISO time" if zone else "an ISO time without a zone"

    def read(value: Any, path: str) -> Any:
        if not isinstance(value, str):
            raise _wrong(path, f"{noun} as a string", value)
        if not (plain.fullmatch(value) or _casts(value, kind) or (zone and _casts(value, pa.timestamp(kind.unit)))):
            raise Unfit(f"column {path!r}: {_shown(value)} is not {noun} that {kind} can hold")
        return value

    return read


def _casts(text: str, kind: pa.DataType) -> bool:
    try:
        pa.scalar(text, pa.string()).cast(kind)
    except (pa.ArrowInvalid, UnicodeEncodeError):
        return False
    return True


_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


def _base64_rule(value: Any, path: str) -> Any:
    if not isinstance(value, str):
        raise _wrong(path, "Base64 as a string", value)
    if not _BASE64.fullmatch(value):
        raise Unfit(f"column {path!r} is not Base64 with padding: {_shown(value)}")
    return value


def _holds_decimal(kind: pa.DataType) -> bool:
    return types.is_decimal(kind) or any(_holds_decimal(kind.field(i).type) for i in range(kind.num_fields))


def _has_surrogate(text: str) -> bool:
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _wrong(path: str, wanted: str, value: Any) -> Unfit:
    shown = "" if isinstance(value, dict | list | bool) else f" {_shown(value)}"
    return Unfit(f"column {path!r}: wanted {wanted}, got {_noun(value)}{shown}")


def _noun(value: Any) -> str:
    for kind, noun in ((bool, "a boolean"), (str, "a string"), (dict, "an object"), (list, "an array")):
        if isinstance(value, kind):
            return noun
    return "null" if value is None else "a number"


def _shown(value: Any) -> str:
    """The start of a value, printable."""
    text = value if isinstance(value, str) else value.text if isinstance(value, _Real) else _digits(value)
    printable = ascii(text[:SAMPLE])[1:-1]
    return repr(text) if len(text) <= SAMPLE and len(printable) <= SAMPLE else f"'{printable[:SAMPLE]}…'"


def _digits(value: Any) -> str:
    # str() of an int above 4300 digits raises.
    return f"a number of {value.bit_length()} bits" if isinstance(value, int) and abs(value) >> 256 else str(value)
