"""Coercions: a column also takes values of another JSON kind, if the caller allows it by name. Off by default."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from headgate.errors import InvalidInput, nearest
from headgate.streaming.decode.json.base import JsonType, NumberText, Unfit, shown
from headgate.streaming.decode.json.scalars import Integer, Real, String

Coerce: TypeAlias = tuple[str, ...]

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")

MAX_DIGITS = 400
"""Maximum digits of a number in a string: no column holds more."""


@dataclass(frozen=True)
class Coerced(JsonType):
    """A type that also takes values of another kind; the type's own rule then checks the converted value.

    pyarrow.json cannot read it: its column is built from `read`.
    """

    inner: JsonType

    @property
    def by_record(self) -> bool:
        return True

    @property
    def parts(self) -> tuple[JsonType, ...]:
        return (self.inner,)

    @property
    def stand_in(self) -> pa.DataType:
        return self.inner.stand_in

    def finish(self, array: pa.Array, path: str) -> pa.Array:
        return self.inner.finish(array, path)

    def read(self, value: Any, path: str) -> Any:
        return self.inner.read(self._meant(value, path), path)

    def _meant(self, value: Any, path: str) -> Any:
        """The converted value; the value itself if it is of the column's own kind."""
        raise NotImplementedError


class NumberFromText(Coerced):
    """Integers and floats from a string that is a JSON number as a whole."""

    def _meant(self, value: Any, path: str) -> Any:
        if not isinstance(value, str) or (match := _NUMBER.fullmatch(value)) is None:
            return value
        if len(value) > MAX_DIGITS:
            raise Unfit(f"column {path!r}: {shown(value)} has too many digits")
        return NumberText(value) if match[1] or match[2] else int(value)


class TextFromNumber(Coerced):
    """Strings from a number, as it is written in the JSON."""

    def _meant(self, value: Any, path: str) -> Any:
        if isinstance(value, NumberText):
            return value.text
        return str(value) if type(value) is int else value


@dataclass(frozen=True)
class Coercion:
    """One coercion."""

    of: tuple[type[JsonType], ...]
    by: type[Coerced]
    rule: str
    """Its description in the docs."""


COERCIONS: Mapping[str, Coercion] = {
    "string_to_number": Coercion(
        (Integer, Real),
        NumberFromText,
        "integers and floats take a string that is a JSON number as a whole, without spaces",
    ),
    "number_to_string": Coercion((String,), TextFromNumber, "strings take a number, with the digits that are written"),
}


def check_coerce(names: str | Iterable[str]) -> Coerce:
    """The names, sorted and without duplicates. Raises InvalidInput for an unknown name, with the nearest known one."""
    given = (names,) if isinstance(names, str) else tuple(names)
    known = list(COERCIONS)
    for name in given:
        if name not in known:
            near = nearest(str(name), known)
            raise InvalidInput(
                f"There is no coercion {str(name)[:80]!r}.",
                advice=f"did you mean {near!r}?" if near else f"coerce takes {', '.join(known)}",
            )
    return tuple(sorted(set(given)))


def coerced(kind: JsonType, names: Coerce) -> JsonType:
    """The type with the coercions that the names allow."""
    found = next((one for name in names if isinstance(kind, (one := COERCIONS[name]).of)), None)
    return kind if found is None else found.by(kind.kind, kind)
