"""Avro values of one schema as Arrow columns: all values are read side by side, without a loop over rows.

Every value has a cursor, and each step of the schema moves all cursors at once. A varint takes at most ten steps, each
over the values that still have a byte of it; a union takes one step per branch. Only arrays and maps take one step per
item of the longest one.

Promises: the content of a value never raises. A value that ends early, is too long, or does not fit its column is
reported in `errors`, and does not affect how other values are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from headgate.errors import InvalidInput
from headgate.streaming.decode.avro.schema import Enum, Fixed, Items, Node, Pairs, Primitive, Record, Union
from headgate.streaming.decode.cast import cast_each, keeps_values

Numbers = npt.NDArray[np.int64]

_ENDS_EARLY = "the value is cut off"
_DECIMAL_BYTES = 16
_DEPTH = 100
"""Maximum depth of nested records that are skipped; records that are read end with their column's type."""


class Cursors:
    """The position of each value. `rows` are always indices of values."""

    def __init__(self, data: npt.NDArray[np.uint8], starts: Numbers, ends: Numbers) -> None:
        """`data` holds all values; value i is at [starts[i], ends[i])."""
        self._data = data if len(data) else np.zeros(1, np.uint8)
        self._at = starts.copy()
        self._ends = ends
        self._depth = 0
        self.errors: dict[int, str] = {}
        """The reason of each bad value."""

    def read(self, node: Node, rows: Numbers, kind: pa.DataType | None) -> pa.Array | None:
        """Read what the values hold next, as type `kind`; None skips it.

        Raises InvalidInput if the schema can never become that type.
        """
        if kind is None and not len(rows):
            return None
        if isinstance(node, Primitive):
            return self._primitive(node, rows, kind)
        if isinstance(node, Fixed):
            return self._fixed(node, rows, kind)
        if isinstance(node, Enum):
            return self._enum(node, rows, kind)
        if isinstance(node, Union):
            return self._union(node, rows, kind)
        if isinstance(node, Record):
            return self._record(node, rows, kind)
        return self._items(node, rows, kind)

    def fail(self, rows: Iterable[int], why: str) -> None:
        """Mark these values as bad, and move their cursors to the end. The first reason stays."""
        for row in rows:
            self.errors.setdefault(int(row), why)
            self._at[row] = self._ends[row]

    def check_ends(self, rows: Numbers) -> None:
        """Mark values as bad that have bytes left after their last field."""
        self.fail(rows[self._at[rows] < self._ends[rows]], "bytes are left after the value")

    # -- bytes -----------------------------------------------------------------------

    def _long(self, rows: Numbers) -> Numbers:
        """Read zigzag varints."""
        at = self._at[rows]
        ends = self._ends[rows]
        found = np.zeros(len(rows), np.uint64)
        left = np.arange(len(rows))
        for step in range(10):
            short = at[left] >= ends[left]
            if short.any():
                self.fail(rows[left[short]], _ENDS_EARLY)
                at[left[short]] = ends[left[short]]
                left = left[~short]
            byte = self._data[at[left]]
            found[left] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * step)
            at[left] += 1
            left = left[byte >= 0x80]
            if not len(left):
                break
        self._at[rows] = at
        if len(left):
            self.fail(rows[left], "a number has too many bytes")
        return (found >> np.uint64(1)).astype(np.int64) ^ -(found & np.uint64(1)).astype(np.int64)

    def _span(self, rows: Numbers, lengths: Numbers) -> tuple[Numbers, Numbers]:
        """Starts and lengths of the next bytes; moves the cursors past them."""
        starts = self._at[rows]
        wrong = (lengths < 0) | (lengths > self._ends[rows] - starts)
        if wrong.any():
            self.fail(rows[wrong], _ENDS_EARLY)
            lengths = np.where(wrong, 0, lengths)
            starts = self._at[rows]
        self._at[rows] = starts + lengths
        return starts, lengths

    def _matrix(self, rows: Numbers, size: int) -> npt.NDArray[np.uint8]:
        """The next `size` bytes of each value; zeros if they are missing."""
        starts, lengths = self._span(rows, np.full(len(rows), size, np.int64))
        where = np.minimum(starts[:, None] + np.arange(size), len(self._data) - 1)
        return np.where(lengths[:, None] > 0, self._data[where], 0).astype(np.uint8)

    def _binary(self, starts: Numbers, lengths: Numbers) -> pa.Array:
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        where = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        return pa.Array.from_buffers(
            pa.large_binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(self._data[where])]
        )

    # -- single values ---------------------------------------------------------------

    def _primitive(self, node: Primitive, rows: Numbers, kind: pa.DataType | None) -> pa.Array | None:
        name = node.kind
        if name == "null":
            return None if kind is None else pa.nulls(len(rows), kind)
        if name in ("int", "long"):
            numbers = self._long(rows)
            if name == "int":
                self.fail(rows[numbers != numbers.astype(np.int32)], "an int has more than 32 bits")
                numbers = numbers.astype(np.int32).astype(np.int64)
            return None if kind is None else self._to(_timed(numbers, node, kind), rows, kind, node)
        if name in ("bytes", "string"):
            starts, lengths = self._span(rows, self._long(rows))
            if kind is None:
                return None
            if node.logical == "decimal":
                return self._to(self._decimals(starts, lengths, rows, node.scale), rows, kind, node)
            found = self._binary(starts, lengths)
            return self._text(found, rows, kind) if name == "string" else self._to(found, rows, kind, node)
        size, dtype = {"boolean": (1, "u1"), "float": (4, "<f4"), "double": (8, "<f8")}[name]
        raw = self._matrix(rows, size)
        if name == "boolean":
            self.fail(rows[raw[:, 0] > 1], "a boolean is neither 0 nor 1")
            return None if kind is None else self._to(pa.array(raw[:, 0] == 1), rows, kind, node)
        return None if kind is None else self._to(pa.array(raw.view(dtype)[:, 0]), rows, kind, node)

    def _fixed(self, node: Fixed, rows: Numbers, kind: pa.DataType | None) -> pa.Array | None:
        starts, lengths = self._span(rows, np.full(len(rows), node.size, np.int64))
        if kind is None:
            return None
        if node.logical == "decimal":
            return self._to(self._decimals(starts, lengths, rows, node.scale), rows, kind, node)
        return self._to(self._binary(starts, lengths), rows, kind, node)

    def _enum(self, node: Enum, rows: Numbers, kind: pa.DataType | None) -> pa.Array | None:
        found = self._long(rows)
        wrong = (found < 0) | (found >= len(node.symbols))
        self.fail(rows[wrong], "an enum has no such symbol")
        if kind is None:
            return None
        words = pa.array(node.symbols, pa.string()).take(pa.array(np.where(wrong, 0, found)))
        return self._to(words, rows, kind, node)

    def _decimals(self, starts: Numbers, lengths: Numbers, rows: Numbers, scale: int) -> pa.Array:
        """Big-endian two's complement of any length, as Arrow's 16 little-endian bytes."""
        long = lengths > _DECIMAL_BYTES
        self.fail(rows[long], "a decimal has more than 16 bytes")
        lengths = np.where(long, 0, lengths)
        negative = (lengths > 0) & (self._data[np.minimum(starts, len(self._data) - 1)] >= 0x80)
        out = np.where(negative, 0xFF, 0).astype(np.uint8)[:, None].repeat(_DECIMAL_BYTES, axis=1)
        for place in range(_DECIMAL_BYTES):
            there = lengths > place
            out[there, place] = self._data[starts[there] + lengths[there] - 1 - place]
        return pa.Array.from_buffers(pa.decimal128(38, scale), len(rows), [None, pa.py_buffer(out)])

    def _text(self, found: pa.Array, rows: Numbers, kind: pa.DataType) -> pa.Array:
        text, fits = cast_each(found, pa.large_string())
        return self._to(self._spread(text, fits, rows, "a string is not UTF-8"), rows, kind, Primitive("string"))

    def _to(self, found: pa.Array, rows: Numbers, kind: pa.DataType, node: Node) -> pa.Array:
        """Cast to the column's type; values that do not fit are bad."""
        if found.type == kind:
            return found
        if not (keeps_values(found.type, kind) or (kinds.is_binary(kind) and found.type == pa.large_binary())):
            raise InvalidInput(f"Avro's {_named(node)} cannot be converted to {kind} without loss")
        values, fits = cast_each(found, kind)
        return self._spread(values, fits, rows, f"{kind} cannot hold the value of {_named(node)}")

    def _spread(self, values: pa.Array, fits: npt.NDArray[np.bool_], rows: Numbers, why: str) -> pa.Array:
        """The values that fit, null elsewhere; the other rows are bad."""
        if fits.all():
            return values
        self.fail(rows[~fits], why)
        return _placed(values, np.flatnonzero(fits), len(rows))

    # -- values of values --------------------------------------------------------------

    def _union(self, node: Union, rows: Numbers, kind: pa.DataType | None) -> pa.Array | None:
        real = [branch for branch in node.branches if not _is_null(branch)]
        if kind is not None and len(real) > 1:
            raise InvalidInput(f"an Avro union of {len(real)} types besides null is not supported")
        chosen = self._long(rows)
        self.fail(rows[(chosen < 0) | (chosen >= len(node.branches))], "a union has no such branch")
        found = None
        for number, branch in enumerate(node.branches):
            here = np.flatnonzero(chosen == number)
            if _is_null(branch):
                continue
            values = self.read(branch, rows[here], kind)
            if values is not None:
                found = _placed(values, here, len(rows))
        return pa.nulls(len(rows), kind) if found is None and kind is not None else found

    def _record(self, node: Record, rows: Numbers, kind: pa.DataType | None) -> pa.Array | None:
        if kind is not None and not kinds.is_struct(kind):
            raise InvalidInput(f"an Avro record cannot be converted to {kind}")
        wanted = {} if kind is None else {kind.field(i).name: kind.field(i) for i in range(kind.num_fields)}
        if kind is None and self._depth == _DEPTH:
            self.fail(rows, "records are nested too deeply")
            return None
        self._depth += 1
        columns = self.columns(node, rows, wanted.values())
        self._depth -= 1
        return None if kind is None else pa.StructArray.from_arrays(columns, fields=list(wanted.values()))

    def columns(self, node: Record, rows: Numbers, wanted: Iterable[pa.Field]) -> list[pa.Array]:
        """The wanted fields of records, by name; a field that the writer does not have is null."""
        fields = {field.name: field for field in wanted}
        found: dict[str, pa.Array] = {}
        for name, inner in node.fields:
            field = fields.get(name)
            try:
                values = self.read(inner, rows, None if field is None else field.type)
            except InvalidInput as error:
                raise InvalidInput(f"field {name!r}: {error.what}") from None
            if values is not None:
                found[name] = values
        columns = []
        for name, field in fields.items():
            column = found[name] if name in found else pa.nulls(len(rows), field.type)
            if not field.nullable and column.null_count:
                nulls = column.is_null().to_numpy(zero_copy_only=False)
                self.fail(rows[nulls], f"field {name!r} must not be null")
            columns.append(column)
        return columns

    def _items(self, node: Items | Pairs, rows: Numbers, kind: pa.DataType | None) -> pa.Array | None:
        """Blocks of items. Each block begins with its count; a negative count is followed by the block's size in
        bytes.
        """
        is_map = isinstance(node, Pairs)
        if kind is not None and not (kinds.is_map(kind) if is_map else _is_list(kind)):
            raise InvalidInput(f"an Avro {'map' if is_map else 'array'} cannot be converted to {kind}")
        parts: list[tuple[Numbers, list[pa.Array]]] = []
        read = self._pair(node, kind) if isinstance(node, Pairs) else self._item(node, kind)
        left = rows
        numbers = np.arange(len(rows))
        while len(left):
            counts = self._long(left)
            sized = counts < 0
            if sized.any():
                self._long(left[sized])
                counts = np.abs(counts)
            too_many = counts > self._ends[left] - self._at[left]
            self.fail(left[too_many], _ENDS_EARLY)
            counts = np.where(too_many, 0, counts)
            going = counts > 0
            left, numbers, counts = left[going], numbers[going], counts[going]
            for step in range(int(counts.max(initial=0))):
                here = counts > step
                values = read(left[here])
                if kind is not None:
                    parts.append((numbers[here], values))
        return None if kind is None else self._listed(parts, rows, kind)

    def _item(self, node: Items, kind: pa.DataType | None) -> Callable[[Numbers], list[Any]]:
        return lambda rows: [self.read(node.item, rows, None if kind is None else kind.value_type)]

    def _pair(self, node: Pairs, kind: pa.DataType | None) -> Callable[[Numbers], list[Any]]:
        key = Primitive("string")
        return lambda rows: [
            self.read(key, rows, None if kind is None else kind.key_type),
            self.read(node.value, rows, None if kind is None else kind.item_type),
        ]

    def _listed(self, parts: list[tuple[Numbers, list[pa.Array]]], rows: Numbers, kind: pa.DataType) -> pa.Array:
        owners = np.concatenate([np.zeros(0, np.int64), *(numbers for numbers, _ in parts)])
        order = pa.array(np.argsort(owners, kind="stable"))
        offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=len(rows)))])
        fields = [kind.key_field, kind.item_field] if kinds.is_map(kind) else [kind.value_field]
        columns = []
        for place, field in enumerate(fields):
            values = pa.concat_arrays([pa.nulls(0, field.type), *(found[place] for _, found in parts)]).take(order)
            if not field.nullable and values.null_count:
                nulls = values.is_null().to_numpy(zero_copy_only=False)
                self.fail(rows[np.unique(np.sort(owners)[nulls])], "an item must not be null")
            columns.append(values)
        if kinds.is_map(kind):
            return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), *columns, type=kind)
        if kinds.is_fixed_size_list(kind):
            size = kind.list_size
            wrong = np.diff(offsets) != size
            if wrong.any():
                self.fail(rows[wrong], f"the array does not have {size} items")
                right = np.repeat(~wrong, np.diff(offsets))
                columns = [values.filter(pa.array(right)) for values in columns]
            whole = pa.FixedSizeListArray.from_arrays(columns[0], type=kind)
            return _placed(whole, np.flatnonzero(~wrong), len(rows))
        if kinds.is_large_list(kind):
            return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), columns[0], type=kind)
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), columns[0], type=kind)


def _timed(numbers: Numbers, node: Primitive, kind: pa.DataType) -> pa.Array:
    """Numbers of a time type as times; as numbers if the column is numeric."""
    logical = node.logical
    if logical is None or kinds.is_integer(kind):
        return pa.array(numbers)
    if logical == "date":
        return pa.array(numbers.astype(np.int32)).cast(pa.date32())
    unit = {"millis": "ms", "micros": "us", "nanos": "ns"}[logical.rpartition("-")[2]]
    if logical.startswith("time-"):
        raise InvalidInput(f"Avro's {logical} is not supported as a column type; declare a number")
    return pa.array(numbers).cast(pa.timestamp(unit, None if logical.startswith("local") else "UTC"))


def _placed(values: pa.Array, where: Numbers, length: int) -> pa.Array:
    """An array of that length with the values at these positions, null elsewhere."""
    if len(where) == length:
        return values
    at = np.full(length, -1, np.int64)
    at[where] = np.arange(len(where))
    return values.take(pa.array(at, mask=at < 0))


def _is_null(node: Node) -> bool:
    return isinstance(node, Primitive) and node.kind == "null"


def _is_list(kind: pa.DataType) -> bool:
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def _named(node: Node) -> str:
    if isinstance(node, Primitive):
        return node.logical or node.kind
    return "decimal" if isinstance(node, Fixed) and node.logical else type(node).__name__.lower()
