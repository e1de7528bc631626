"""Types that JSON writes as strings: times and bytes."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from headgate.streaming.decode.cast import cast_each
from headgate.streaming.decode.json.base import JsonType, Unfit, shown, wrong

_ZONE = r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$"


class Time(JsonType):
    """Timestamps and dates. They are read as text, because pyarrow.json silently shifts "…T03:00+02:00" to 01:00 if the
    column has no zone, and reads dates only as days since 1970.
    """

    @property
    def stand_in(self) -> pa.DataType:
        return pa.string()

    @property
    def _has_zone(self) -> bool:
        return bool(types.is_timestamp(self.kind)) and self.kind.tz is not None

    @property
    def _noun(self) -> str:
        zone = "" if self._has_zone else " without a zone"
        return "an ISO date" if types.is_date(self.kind) else f"an ISO time{zone}"

    def finish(self, array: pa.Array, path: str) -> pa.Array:
        try:
            return array.cast(self.kind)
        except pa.ArrowInvalid:
            pass
        written = self._without_zeros(_in_utc(array) if self._has_zone else array)
        try:
            return written.cast(self.kind)
        except pa.ArrowInvalid:
            pass
        bad = np.zeros(len(array), bool)
        doubtful = np.flatnonzero(pc.fill_null(pc.invert(pc.match_substring_regex(array, self._plain.pattern)), False))
        bad[doubtful] = ~cast_each(written.take(pa.array(doubtful)), self.kind)[1]
        raise Unfit(f"column {path!r} is not {self._noun} that {self.kind} can hold", pa.array(bad))

    def read(self, value: Any, path: str) -> Any:
        if not isinstance(value, str):
            raise wrong(path, f"{self._noun} as a string", value)
        if not self._plain.fullmatch(value):
            try:
                self.finish(pa.array([value], pa.string()), path)
            except (Unfit, UnicodeEncodeError):
                what = f"column {path!r}: {shown(value)} is not {self._noun} that {self.kind} can hold"
                raise Unfit(what) from None
        return value

    def _without_zeros(self, array: pa.Array) -> pa.Array:
        """The texts, with trailing zeros removed from fractions that are finer than the unit, up to nanoseconds."""
        if not types.is_timestamp(self.kind) or not (spare := 9 - self._digits):
            return array
        kept = rf"(\.[0-9]{{{self._digits}}})" if self._digits else r"()\."
        return pc.replace_substring_regex(array, rf"^(.{{19}}){kept}0{{1,{spare}}}(Z|[+-].*)?$", r"\1\2\3")

    @property
    def _digits(self) -> int:
        return {"s": 0, "ms": 3, "us": 6, "ns": 9}[self.kind.unit]

    @cached_property
    def _plain(self) -> re.Pattern[str]:
        """Matches only texts that surely fit: years within the range of nanoseconds, days that every month has."""
        date = "(1[789]|2[01])[0-9]{2}-(0[1-9]|1[012])-(0[1-9]|1[0-9]|2[0-8])"
        if types.is_date(self.kind):
            return re.compile(f"^{date}$")
        fraction = rf"(\.[0-9]{{1,{self._digits}}})?" if self._digits else ""
        zone = "(Z|[+-]0[0-9]:[0-5][0-9])?" if self._has_zone else ""
        return re.compile(f"^{date}[T ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]{fraction}{zone}$")


def _in_utc(array: pa.Array) -> pa.Array:
    """Add UTC to texts without a zone, and midnight to dates."""
    zoned = pc.match_substring_regex(array, _ZONE)
    ending = pc.if_else(pc.greater(pc.binary_length(array), len("2024-01-01")), "Z", "T00Z")
    return pc.if_else(zoned, array, pc.binary_join_element_wise(array, ending, ""))


_BASE64 = re.compile(r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$")
_SIXTETS = np.full(256, 255, np.uint8)
_SIXTETS[np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)] = np.arange(64)
_PAD = ord("=")


class Base64(JsonType):
    """Bytes in Base64, read as text: pyarrow.json would keep the Base64 text."""

    @property
    def stand_in(self) -> pa.DataType:
        return pa.string()

    def finish(self, array: pa.Array, path: str) -> pa.Array:
        made = _from_base64(array)
        if made is None:
            bad = pc.fill_null(pc.invert(pc.match_substring_regex(array, _BASE64.pattern)), False)
            raise Unfit(f"column {path!r} is not Base64 with padding", bad)
        return made.cast(self.kind)

    def read(self, value: Any, path: str) -> Any:
        if not isinstance(value, str):
            raise wrong(path, "Base64 as a string", value)
        if not _BASE64.fullmatch(value):
            raise Unfit(f"column {path!r} is not Base64 with padding: {shown(value)}")
        return value


def _from_base64(array: pa.Array) -> pa.Array | None:
    """Decode padded, standard Base64 texts, all rows at once; nulls stay. None if any text is invalid."""
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4).astype(np.int64)
    data = array.buffers()[2]
    text = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]] if data is not None else np.empty(0, np.uint8)
    offsets -= offsets[0]
    lengths = np.diff(offsets)
    if (lengths % 4).any():
        return None
    pads = np.zeros(len(lengths), np.int64)
    full = np.flatnonzero(lengths)
    ends = offsets[1:][full]
    last = text[ends - 1] == _PAD
    pads[full] = last.astype(np.int64) + (last & (text[ends - 2] == _PAD))
    sixtets = _SIXTETS[text]
    for back in (1, 2):
        sixtets[ends[pads[full] >= back] - back] = 0
    if (sixtets == 255).any():
        return None
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
