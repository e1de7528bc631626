"""Which Arrow types JSON can fill, and the whole-column half of reading them.

Promise: `finish` returns a column of exactly the wanted type, or raises; a value that
JSON does not hold exactly is never rounded, wrapped, shifted or dropped on the way.

`pyarrow.json` reads a column as its *stand-in* type (the type itself where its reading
is strict, text where it is lenient or unable), and `finish` makes the wanted type of it.
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from headgate.errors import InvalidInput


class Unfit(Exception):
    """A value does not fit its column. The text names the column and the reason.

    `rows` marks, where it is known, rows among which all unfit ones of that column are.
    """

    def __init__(self, why: str, rows: pa.Array | None = None) -> None:
        super().__init__(why)
        self.rows = rows


def check_types(schema: pa.Schema) -> None:
    """Nothing, if JSON can fill every column. Raises InvalidInput naming the first one that it cannot."""
    if not schema.names:
        raise InvalidInput("A schema without columns decodes nothing.")
    _check_fields(list(schema), "")


def _check_fields(fields: list[pa.Field], above: str) -> None:
    names = [field.name for field in fields]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"The name {above + twice!r} is in the schema twice; a JSON object has it once.")
    for field in fields:
        _check_type(field.type, above + field.name)


def _check_type(kind: pa.DataType, path: str) -> None:
    if types.is_struct(kind):
        _check_fields(_children(kind), path + ".")
    elif types.is_map(kind):
        if not types.is_string(kind.key_type):
            raise InvalidInput(f"Column {path!r}: the keys of a JSON object are strings, so map keys must be string.")
        _check_type(kind.item_type, path + "{}")
    elif is_any_list(kind):
        _check_type(kind.value_type, path + "[]")
    elif not (_is_native(kind) or _is_text(kind)):
        raise InvalidInput(f"Column {path!r}: {kind} cannot be decoded from JSON.", advice=_advice(kind))


def _advice(kind: pa.DataType) -> str:
    if types.is_dictionary(kind):
        return f"declare it as {kind.value_type}"
    return "declare it as string or a number, and convert it after it is read"


def is_any_list(kind: pa.DataType) -> bool:
    """list, large_list or fixed_size_list."""
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def holds_map(kind: pa.DataType) -> bool:
    """Whether a map is in it at any depth: pyarrow.json cannot read those columns."""
    if types.is_map(kind):
        return True
    return any(holds_map(field.type) for field in _children(kind))


def _is_native(kind: pa.DataType) -> bool:
    """Types that pyarrow.json reads strictly (see the canary tests)."""
    return bool(
        types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_float32(kind)
        or types.is_float64(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or ((types.is_decimal128(kind) or types.is_decimal256(kind)) and kind.scale >= 0)
    )


def _is_text(kind: pa.DataType) -> bool:
    """Types that are read as text and made by `finish`.

    Timestamps, because pyarrow.json silently shifts "…T03:00+02:00" to 01:00 where the
    column has no zone; dates, because it takes days since 1970 only; binary, because it
    would keep the Base64 text.
    """
    return bool(types.is_timestamp(kind) or types.is_date(kind) or types.is_binary(kind) or types.is_large_binary(kind))


def stand_in(kind: pa.DataType) -> pa.DataType:
    """The type in which a column of `kind` is first read: all of it nullable.

    Nullability is ours to check: pyarrow.json refuses a null struct that has a required child.
    Small integers are read as int64, because `finish` can tell which row is out of range.
    """
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, stand_in(field.type)) for field in _children(kind)])
    if types.is_map(kind):
        return pa.map_(pa.string(), stand_in(kind.item_type))
    if is_any_list(kind):
        return pa.list_(stand_in(kind.value_type))
    if _is_text(kind):
        return pa.string()
    if types.is_integer(kind) and kind.bit_width < 64:
        return pa.int64()
    return kind


def finish(array: pa.Array, field: pa.Field, path: str = "") -> pa.Array:
    """The stand-in column as the column of `field`. Raises Unfit or ArrowInvalid if one value does not fit."""
    path = path or field.name
    if not field.nullable and array.null_count:
        raise Unfit(f"column {path!r} is missing or null", array.is_null())
    return _finished(array, field.type, path)


def _finished(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    if types.is_struct(kind):
        return _finished_struct(array, kind, path)
    if types.is_map(kind):
        items = _elements(array.items, kind.item_field, path + "{}")
        return pa.MapArray.from_arrays(array.offsets, array.keys, items, type=kind, mask=_null_mask(array))
    if is_any_list(kind):
        return _finished_list(array, kind, path)
    if types.is_floating(kind):
        # pyarrow.json takes NaN and Infinity, and makes infinity of 1e39 in a float.
        finite = pc.is_finite(array)
        if pc.all(finite).as_py() is False:
            raise Unfit(f"column {path!r} is not a finite number of type {kind}", pc.invert(finite))
        return array
    if types.is_timestamp(kind) or types.is_date(kind):
        return _times(array, kind, path)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _from_base64(array, path).cast(kind)
    if types.is_integer(kind):
        return _integers(array, kind, path)
    if types.is_decimal(kind):
        return _decimals(array, kind, path)
    return array


def _finished_struct(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    fields = _children(kind)
    # flatten() gives the children the struct's own nulls, so they have at least as many.
    for field, child in zip(fields, array.flatten(), strict=True):
        if not field.nullable and child.null_count > array.null_count:
            rows = pc.and_(array.is_valid(), child.is_null())
            raise Unfit(f"column {path + '.' + field.name!r} is missing or null", rows)
    children = [_finished(array.field(i), field.type, f"{path}.{field.name}") for i, field in enumerate(fields)]
    if not children:
        return array
    return pa.StructArray.from_arrays(children, fields=fields, mask=_null_mask(array))


def _finished_list(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    values = _elements(array.values, kind.value_field, path + "[]")
    mask = _null_mask(array)
    if types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(array.offsets.cast(pa.int64()), values, type=kind, mask=mask)
    made = pa.ListArray.from_arrays(array.offsets, values, type=pa.list_(kind.value_field), mask=mask)
    if types.is_list(kind):
        return made
    other = pc.not_equal(pc.list_value_length(made), kind.list_size)
    if pc.any(other).as_py():
        raise Unfit(f"column {path!r} does not have {kind.list_size} items", other)
    return made.cast(kind)


def _elements(array: pa.Array, field: pa.Field, path: str) -> pa.Array:
    try:
        return finish(array, field, path)
    except Unfit as error:
        raise Unfit(str(error)) from None  # its rows are elements here


def _children(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(i) for i in range(kind.num_fields)]


def _null_mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def integer_range(kind: pa.DataType) -> tuple[int, int]:
    """The lowest and the highest value of an integer type."""
    bits = kind.bit_width
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if types.is_signed_integer(kind) else (0, (1 << bits) - 1)


def _integers(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    if array.type == kind:
        return array
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        low, high = integer_range(kind)
        outside = pc.or_(pc.less(array, low), pc.greater(array, high))
        raise Unfit(f"column {path!r} is out of range for {kind}", outside) from None


def _decimals(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """The column itself: pyarrow.json makes 100000000.00 of 100000000 in a decimal(10, 2)."""
    # By sign and digits: arithmetic, even a minus, would round to the context's 28 digits.
    low, high = (pa.scalar(Decimal((sign, (9,) * kind.precision, -kind.scale)), kind) for sign in (1, 0))
    outside = pc.or_(pc.less(array, low), pc.greater(array, high))
    if pc.any(outside).as_py():
        raise Unfit(f"column {path!r} is out of range for {kind}", outside)
    return array


# -- times -----------------------------------------------------------------------

_ZONE = r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$"


def plain_time(kind: pa.DataType) -> str:
    """A regular expression of texts that surely fit: years that nanoseconds reach, days that every month has."""
    date = "(1[789]|2[01])[0-9]{2}-(0[1-9]|1[012])-(0[1-9]|1[0-9]|2[0-8])"
    if types.is_date(kind):
        return f"^{date}$"
    digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[kind.unit]
    fraction = rf"(\.[0-9]{{1,{digits}}})?" if digits else ""
    zone = "(Z|[+-]0[0-9]:[0-5][0-9])?" if kind.tz is not None else ""
    return f"^{date}[T ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]{fraction}{zone}$"


def _times(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        pass
    try:
        if types.is_timestamp(kind) and kind.tz is not None:
            return _in_utc(array).cast(kind)
    except pa.ArrowInvalid:
        pass
    doubtful = pc.invert(pc.match_substring_regex(array, plain_time(kind)))
    raise Unfit(f"column {path!r} is not a time that {kind} can hold", doubtful)


def _in_utc(array: pa.Array) -> pa.Array:
    """Texts without a zone get UTC's; a date gets midnight too."""
    zoned = pc.match_substring_regex(array, _ZONE)
    ending = pc.if_else(pc.greater(pc.binary_length(array), len("2024-01-01")), "Z", "T00Z")
    return pc.if_else(zoned, array, pc.binary_join_element_wise(array, ending, ""))


# -- Base64 ----------------------------------------------------------------------

_SIXTETS = np.full(256, 255, np.uint8)
_SIXTETS[np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)] = np.arange(64)
_PAD = ord("=")


def _from_base64(array: pa.Array, path: str) -> pa.Array:
    """The bytes of padded, standard Base64 texts, nulls kept; all rows at once."""
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4).astype(np.int64)
    data = array.buffers()[2]
    text = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]] if data is not None else np.empty(0, np.uint8)
    offsets -= offsets[0]
    lengths = np.diff(offsets)
    if (lengths % 4).any():
        raise Unfit(f"column {path!r} is not Base64 with padding")
    pads = np.zeros(len(lengths), np.int64)
    full = np.flatnonzero(lengths)
    ends = offsets[1:][full]
    last = text[ends - 1] == _PAD
    pads[full] = last.astype(np.int64) + (last & (text[ends - 2] == _PAD))
    sixtets = _SIXTETS[text]
    for back in (1, 2):
        sixtets[ends[pads[full] >= back] - back] = 0
    if (sixtets == 255).any():
        raise Unfit(f"column {path!r} is not Base64")
    quads = sixtets.reshape(-1, 4)
    octets = np.empty((len(quads), 3), np.uint8)
    octets[:, 0] = quads[:, 0] << 2 | quads[:, 1] >> 4
    octets[:, 1] = quads[:, 1] << 4 | quads[:, 2] >> 2
    octets[:, 2] = quads[:, 2] << 6 | quads[:, 3]
    keep = np.ones(octets.size, bool)
    tails = ends // 4 * 3
    for back in (1, 2):
        keep[tails[pads[full] >= back] - back] = False
    made = np.concatenate(([0], np.cumsum(lengths // 4 * 3 - pads))).astype(np.int32)
    validity = None if not array.null_count else pc.invert(array.is_null()).buffers()[1]
    buffers = [validity, pa.py_buffer(made), pa.py_buffer(octets.reshape(-1)[keep])]
    return pa.Array.from_buffers(pa.binary(), len(array), buffers)
