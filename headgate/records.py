"""Records: JSON objects that people can read, each with its format, the release that wrote it and a checksum.

Promises:
1. A reader gets what was written. Any damage raises Corrupt, including deep nesting and numbers that no release writes.
2. A record of an older format is read. A newer one raises InvalidInput, which names the release that wrote it.
3. Unknown keys are ignored.

A record's fields are those of a frozen dataclass. A class may describe its JSON in class variables: KIND, the value of
the key "kind"; DERIVED, properties that are written as well, and must agree; ROW, that it is a list of its values;
UNSEALED, that earlier releases wrote it without a checksum.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID

import xxhash

from headgate.errors import Corrupt, InvalidInput

T = TypeVar("T")
Reader = Callable[[Any], Any]

FORMAT = 3
"""Newest format that this release reads. Incremented when an older release would misread newer content.

2 added rewinds, 3 schema records. A record states the lowest format it needs, so that old releases still read logs that
use no new feature.
"""
FIRST_FORMAT, REWIND_FORMAT = 1, 2

LEFT_OUT: Mapping[str, Any] = {"left out": True}
"""Field metadata: write the field only if it is not the default. Any field with a default may be missing."""

_HIGHEST = 2**64
MAX_VALUES = 1_000_000
"""Of one record: a list of empty lists takes thirty times its bytes in memory."""
"""No release writes a larger number."""


# -- whole records ---------------------------------------------------------------


def encode(record: Any, version: int = FIRST_FORMAT, **given: Any) -> bytes:
    """The bytes of a record. `given` supplies JSON values for fields that need their own encoding."""
    return text_of(plain(record, **given), version)


def decode(cls: type[T], data: bytes | memoryview, what: str) -> T:
    """The record in the bytes. `what` names it in errors. Raises Corrupt, and InvalidInput for a newer format."""
    found = fields_of(data, what, sealed=not getattr(cls, "UNSEALED", False))
    with understood(what):
        return build(cls, found)


@contextmanager
def understood(what: str) -> Iterator[None]:
    """Turn errors raised by wrong values into Corrupt."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise Corrupt(f"{what} is invalid: {_shown(error)}.") from error
    except (InvalidInput, Corrupt) as error:
        raise Corrupt(f"{what} is invalid: {error.what:.200}") from error


# -- JSON with a checksum ------------------------------------------------------------


def text_of(content: Mapping[str, Any], version: int = FIRST_FORMAT) -> bytes:
    """JSON values with a format, a release and a checksum: one key per line, compact values."""
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in sealed(content, version).items())
    return f"{{\n{lines}\n}}\n".encode()


def sealed(content: Mapping[str, Any], version: int = FIRST_FORMAT) -> dict[str, Any]:
    """The same as values, to embed in other JSON."""
    found = {"format": version, "release": release(), **content}
    return {**found, "checksum": checksum(found)}


@cache
def release() -> str:
    """The running release of headgate."""
    try:
        return f"headgate {version('headgate')}"
    except PackageNotFoundError:
        return "headgate from source"


def fields_of(data: bytes | memoryview | str, what: str, *, sealed: bool = True) -> dict[str, Any]:
    """The fields that `text_of` wrote. Raises Corrupt, and InvalidInput for a newer format.

    The checksum is optional: earlier releases did not write one.
    """
    text = data.encode() if isinstance(data, str) else bytes(data)
    if sum(map(text.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise Corrupt(f"{what} has more than {MAX_VALUES:,} values.")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{what} is not JSON.") from error
    return checked(found, what, sealed=sealed)


def checked(found: Any, what: str, *, sealed: bool = True) -> dict[str, Any]:
    """The same for JSON that is already parsed."""
    if not isinstance(found, dict):
        raise Corrupt(f"{what} is not a JSON object.")
    number = found.get("format", None if sealed else FIRST_FORMAT)
    if type(number) is not int or number < 1:
        raise Corrupt(f"{what} has no format number.")
    if number > FORMAT:
        raise InvalidInput(
            f"{what} has format {number}, written by {found.get('release')!s:.80}; "
            f"this is {release()}, which reads up to format {FORMAT}.",
            advice="upgrade to that release of headgate or a later one; nothing was written",
        )
    # Whoever writes a checksum names its release: one damaged byte cannot hide both.
    if not sealed and not {"checksum", "release"} & found.keys():
        return found
    try:
        same = found.get("checksum") == checksum(found)
    except RecursionError as error:
        raise Corrupt(f"{what} is nested too deeply.") from error
    if not same:
        raise Corrupt(f"{what} does not match its checksum.")
    return found


def checksum(content: Mapping[str, Any]) -> str:
    """Checksum of everything but itself, in canonical form, so that white space and key order do not matter."""
    rest = {key: value for key, value in content.items() if key != "checksum"}
    return xxhash.xxh3_64_hexdigest(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode())


# -- values as JSON values -------------------------------------------------------------


def plain(record: Any, **given: Any) -> dict[str, Any]:
    """A dataclass as JSON values. `given` supplies fields that need their own encoding."""
    found: dict[str, Any] = {"kind": record.KIND} if hasattr(record, "KIND") else {}
    for one in fields(record):
        value = getattr(record, one.name)
        if one.name in given:
            found[one.name] = given[one.name]
        elif value != one.default or "left out" not in one.metadata:
            found[one.name] = _plain(value)
    return found | {name: getattr(record, name) for name in getattr(record, "DERIVED", ())}


def _plain(value: Any) -> Any:
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, frozenset):
        return sorted(map(_plain, value))
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if getattr(value, "ROW", False):
        return [_plain(getattr(value, one.name)) for one in fields(value)]
    return plain(value)


# -- JSON values as values ---------------------------------------------------------------


def build(cls: type[T], found: Any, **given: Any) -> T:
    """The dataclass from the values of `plain`, with the fields in `given`. `understood` turns errors of wrong values
    into Corrupt.
    """
    if not isinstance(found, Mapping):
        raise ValueError(f"{_shown(found)} is not an object")
    kind = getattr(cls, "KIND", None)
    if kind is not None and found["kind"] != kind:
        raise ValueError(f"kind {_shown(found['kind'])}")
    values = dict(given)
    for name, read, required in _readers(cast("Hashable", cls)):
        if name not in given and (required or name in found):
            values[name] = read(found[name])
    record = cls(**values)
    for name in getattr(cls, "DERIVED", ()):
        if found[name] != getattr(record, name):
            raise ValueError(f"{name} is {_shown(found[name])}, but its parts add up to {getattr(record, name)}")
    return record


@cache
def _readers(cls: Any) -> tuple[tuple[str, Reader, bool], ...]:
    """For each field: name, decoder, and whether it is required."""
    hints = get_type_hints(cls, include_extras=True)
    return tuple(
        (one.name, _reader(hints[one.name]), one.default is MISSING and one.default_factory is MISSING)
        for one in fields(cls)
    )


def _reader(hint: Any) -> Reader:
    origin, args = get_origin(hint), get_args(hint)
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if origin is Annotated:
        return partial(_number, lowest=args[1])
    if origin is Literal:
        return partial(_one_of, args)
    if origin in (Union, UnionType):
        return _union(args)
    if origin is frozenset:
        return partial(_set, _reader(args[0]))
    if origin is tuple and args[1:] == (...,):
        return partial(_each, _reader(args[0]))
    if origin is tuple:
        return partial(_row, tuple(map(_reader, args)), None)
    if origin is Mapping:
        return partial(_mapping, _reader(args[0]), _reader(args[1]))
    if getattr(hint, "ROW", False):
        return partial(_row, tuple(read for _, read, _ in _readers(hint)), hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return partial(build, hint)
    raise TypeError(f"{hint} has no JSON form")


def _union(hints: tuple[Any, ...]) -> Reader:
    """An optional type, or dataclasses distinguished by KIND."""
    some = [one for one in hints if one is not NoneType]
    if len(some) == 1:
        return partial(_unless_none, _reader(some[0]))
    return partial(_by_kind, {one.KIND: one for one in some})


def _unless_none(read: Reader, value: Any) -> Any:
    return None if value is None else read(value)


def _by_kind(kinds: Mapping[str, type], value: Any) -> Any:
    kind = value["kind"]
    if not isinstance(kind, str) or kind not in kinds:
        raise ValueError(f"kind {_shown(kind)}")
    return build(kinds[kind], value)


def _one_of(known: tuple[Any, ...], value: Any) -> Any:
    if value not in known:
        raise ValueError(f"{_shown(value)} is not one of {known}")
    return value


def _each(read: Reader, values: Any) -> tuple[Any, ...]:
    return tuple(map(read, _list(values)))


def _set(read: Reader, values: Any) -> frozenset[Any]:
    return frozenset(map(read, _list(values)))


def _row(reads: tuple[Reader, ...], cls: Any, values: Any) -> Any:
    row = tuple(read(value) for read, value in zip(reads, _list(values), strict=True))
    return row if cls is None else cls(*row)


def _mapping(key: Reader, read: Reader, values: Any) -> dict[Any, Any]:
    if not isinstance(values, Mapping):
        raise ValueError(f"{_shown(values)} is not an object")
    return {key(one): read(value) for one, value in values.items()}


def _list(values: Any) -> list[Any]:
    if not isinstance(values, list):
        raise ValueError(f"{_shown(values)} is not a list")
    return values


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{_shown(value)} is not text")
    return value


def _number(value: Any, lowest: int = 0) -> int:
    if type(value) is not int or not lowest <= value <= _HIGHEST:
        raise ValueError(f"{_shown(value)} is not a number of {lowest} or more")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{_shown(value)} is not true or false")
    return value


def _amount(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{_shown(value)} is not a number")
    return float(value)


def _uuid(value: Any) -> UUID:
    return UUID(_text(value))


def _shown(value: Any) -> str:
    """Any value, shortened for an error message."""
    try:
        return f"{value!r:.200}"
    except (RecursionError, ValueError):
        return f"a {type(value).__name__}"


_SIMPLE: Mapping[Any, Reader] = {
    str: _text,
    int: _number,
    bool: _flag,
    float: _amount,
    UUID: _uuid,
    Any: lambda value: value,
}
