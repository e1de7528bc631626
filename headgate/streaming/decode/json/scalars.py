"""Booleans, strings and numbers."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from headgate.streaming.decode.json.base import JsonType, NumberText, Unfit, shown, wrong


class Boolean(JsonType):
    """true and false."""

    def read(self, value: Any, path: str) -> Any:
        if not isinstance(value, bool):
            raise wrong(path, "true or false", value)
        return value


class String(JsonType):
    """A string; pyarrow.json refuses half a surrogate pair."""

    def read(self, value: Any, path: str) -> Any:
        if not isinstance(value, str):
            raise wrong(path, "a string", value)
        if has_surrogate(value):
            raise Unfit(f"column {path!r} is not Unicode: half a surrogate pair")
        return value


def has_surrogate(text: str) -> bool:
    """True if the text contains half a surrogate pair."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


class Integer(JsonType):
    """A number without fraction or exponent. Types below 64 bits are read as int64, so that their range can be checked
    per row.
    """

    @property
    def stand_in(self) -> pa.DataType:
        return pa.int64() if self.kind.bit_width < 64 else self.kind

    @cached_property
    def _limits(self) -> tuple[int, int]:
        bits = self.kind.bit_width
        return (-(1 << bits - 1), (1 << bits - 1) - 1) if types.is_signed_integer(self.kind) else (0, (1 << bits) - 1)

    def finish(self, array: pa.Array, path: str) -> pa.Array:
        try:
            return array.cast(self.kind)
        except pa.ArrowInvalid:
            low, high = self._limits
            outside = pc.or_(pc.less(array, low), pc.greater(array, high))
            raise Unfit(f"column {path!r} is out of range for {self.kind}", outside) from None

    def read(self, value: Any, path: str) -> Any:
        if type(value) is not int:
            raise wrong(path, "a whole number", value)
        low, high = self._limits
        if not low <= value <= high:
            raise Unfit(f"column {path!r}: {shown(value)} is out of range for {self.kind}")
        return value


_FLOAT_MAX = 3.41e38
"""Above this no float is finite. Just below, the column's own conversion decides."""

_HALF_MAX = 65520.0
"""At or above this, the nearest half float is infinite."""


class Real(JsonType):
    """A number that is finite in the type: pyarrow.json accepts NaN and Infinity, and turns 1e39 into infinity in a
    float. It cannot read half floats, which are converted from doubles.
    """

    @property
    def stand_in(self) -> pa.DataType:
        return pa.float64() if types.is_float16(self.kind) else self.kind

    @cached_property
    def _limit(self) -> float:
        return {16: _HALF_MAX, 32: _FLOAT_MAX, 64: float("inf")}[self.kind.bit_width]

    def finish(self, array: pa.Array, path: str) -> pa.Array:
        made = array.cast(self.kind)
        finite = pc.is_finite(made)
        if pc.all(finite).as_py() is False:
            raise Unfit(f"column {path!r} is not a finite number of type {self.kind}", pc.invert(finite))
        return made

    def read(self, value: Any, path: str) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong(path, "a number", value)
        try:
            real = float(value)
        except OverflowError:
            real = float("inf")
        if not abs(real) < self._limit:  # also refuses NaN
            raise Unfit(f"column {path!r}: {shown(value)} is not a finite number of type {self.kind}")
        return real


_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?")


class Exact(JsonType):
    """A decimal, from its text: pyarrow.json refuses a finer fraction, and accepts 100000000 for a decimal(10, 2)."""

    @cached_property
    def _digits(self) -> tuple[int, int]:
        return self.kind.precision, self.kind.scale

    def finish(self, array: pa.Array, path: str) -> pa.Array:
        # Made from sign and digits: arithmetic, even a minus, would round to the context's 28 digits.
        precision, scale = self._digits
        low, high = (pa.scalar(Decimal((sign, (9,) * precision, -scale)), self.kind) for sign in (1, 0))
        outside = pc.or_(pc.less(array, low), pc.greater(array, high))
        if pc.any(outside).as_py():
            raise Unfit(f"column {path!r} is out of range for {self.kind}", outside)
        return array

    def read(self, value: Any, path: str) -> Any:
        if isinstance(value, NumberText):
            text = value.text
        elif type(value) is int:
            text = str(value)
        elif isinstance(value, str) and _DECIMAL.fullmatch(value):
            text = value
        else:
            raise wrong(path, "a decimal number", value)
        number = Decimal(text)
        _, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int)  # never NaN or infinite, by its text
        # Neither normalize() nor arithmetic: both round to the context's 28 digits.
        zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
        precision, scale = self._digits
        if number and -exponent - zeros > scale:
            raise Unfit(f"column {path!r}: {shown(value)} has more than {scale} digits after the point")
        if number and number.adjusted() + 1 + scale > precision:
            raise Unfit(f"column {path!r}: {shown(value)} is out of range for {self.kind}")
        return number
