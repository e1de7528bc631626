"""Random rows, random damage: good rows equal a json.loads oracle, and exactly the damaged are bad.

A failure prints the example and a @reproduce_failure line to replay it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.streaming.decode import api as decode
from headgate.streaming.decode.json import columns as column_reader
from headgate.streaming.decode.json.base import Unfit, Unsure
from headgate.streaming.decode.json.coerce import COERCIONS
from headgate.streaming.decode.json.columns import ColumnReader
from headgate.streaming.decode.json.records import RecordReader
from headgate.streaming.decode.json.types import columns_of

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("small", pa.uint8()),
        pa.field("real", pa.float64()),
        pa.field("single", pa.float32()),
        pa.field("flag", pa.bool_()),
        pa.field("text", pa.string()),
        pa.field("bytes", pa.binary()),
        pa.field("price", pa.decimal128(38, 6)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("day", pa.date32()),
        pa.field(
            "place", pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("tags", pa.list_(pa.string()))])
        ),
        pa.field("path", pa.list_(pa.struct([("day", pa.date32()), ("n", pa.int16())]))),
        pa.field("pair", pa.list_(pa.float64(), 2)),
        pa.field("vector", pa.list_(pa.float16(), 2)),
    ]
)
COERCE: list[tuple[str, ...]] = [(), tuple(COERCIONS)]
WITH_MAP = SCHEMA.append(pa.field("more", pa.map_(pa.string(), pa.decimal128(38, 6))))

TEXT = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(["} null", "\0", "\u2028", "Inf", "]}{["])
REAL = st.floats(allow_nan=False, allow_infinity=False)
SINGLE = st.floats(allow_nan=False, allow_infinity=False, width=32)
PRICE = st.decimals(-(10**20), 10**20, places=6)
TIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
ZONES = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
DATES = st.dates()


def _maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


ROWS = st.fixed_dictionaries(
    {"id": st.integers(-(2**63), 2**63 - 1)},
    optional={
        "small": _maybe(st.integers(0, 255)),
        "real": _maybe(REAL | st.integers(-(10**30), 10**30)),
        "single": _maybe(SINGLE),
        "flag": _maybe(st.booleans()),
        "text": _maybe(TEXT),
        "bytes": _maybe(st.binary(max_size=9).map(lambda raw: base64.b64encode(raw).decode())),
        "price": _maybe(PRICE.map(str)),
        "at": _maybe(st.builds(lambda at, zone: at.replace(tzinfo=zone).isoformat(), TIMES, ZONES)),
        "local": _maybe(
            TIMES.map(lambda at: at.isoformat()) | TIMES.map(lambda at: at.isoformat(timespec="microseconds") + "000")
        ),
        "day": _maybe(DATES.map(lambda day: day.isoformat())),
        "place": _maybe(
            st.fixed_dictionaries(
                {"x": st.integers(-(2**31), 2**31 - 1)}, optional={"tags": _maybe(st.lists(_maybe(TEXT), max_size=3))}
            )
        ),
        "path": _maybe(
            st.lists(
                _maybe(
                    st.fixed_dictionaries(
                        {},
                        optional={"day": DATES.map(lambda day: day.isoformat()), "n": st.integers(-32768, 32767)},
                    )
                ),
                max_size=3,
            )
        ),
        "pair": _maybe(st.lists(REAL, min_size=2, max_size=2)),
        "vector": _maybe(st.lists(st.floats(-65519, 65519), min_size=2, max_size=2)),
        "more": _maybe(st.dictionaries(TEXT, _maybe(PRICE.map(str)), max_size=3)),
        "unknown": st.recursive(
            st.none() | st.booleans() | REAL | TEXT, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner)
        ),
    },
)
WRITE = st.builds(
    lambda ascii_only, indent, keys: {"ensure_ascii": ascii_only, "indent": indent, "sort_keys": keys},
    st.booleans(),
    st.sampled_from([None, 1]),
    st.booleans(),
)

# How to spoil a good row so that it surely is bad.
DAMAGE: list[Callable[[dict[str, Any], str], bytes]] = [
    lambda row, text: text.encode()[:-1],
    lambda row, text: text.encode() + b"x",
    lambda row, text: text.encode() * 2,
    lambda row, text: text.encode() + b"null" + text.encode(),
    lambda row, text: b"[" + text.encode() + b"]",
    lambda row, text: text.encode()[:-1] + b"\x00}",
    lambda row, text: text.encode()[:-1] + b',"x":"\xff"}',
    lambda row, text: text.encode()[:-1] + b',"id":1}',
    lambda row, text: text.encode()[:-1] + b',"x":"\\ud800"}',
    lambda row, text: text.encode()[:-1] + b',"x":' + b"[" * 2000 + b"}",
    lambda row, text: b"null",
    lambda row, text: b"",
    lambda row, text: b"\xfe\xff",
    lambda row, text: _with(row, id=None),
    lambda row, text: json.dumps({name: value for name, value in row.items() if name != "id"}).encode(),
    lambda row, text: _with(row, id=1.5),
    lambda row, text: _with(row, id=2**63),
    lambda row, text: _with(row, small=256),
    lambda row, text: _with(row, small="1"),
    lambda row, text: _with(row, real=float("nan")),
    lambda row, text: _with(row, single=1e39),
    lambda row, text: _with(row, flag=1),
    lambda row, text: _with(row, text=1),
    lambda row, text: _with(row, bytes="?"),
    lambda row, text: _with(row, price="0.0000001"),
    lambda row, text: _with(row, price="1e33"),
    lambda row, text: _with(row, at="yesterday"),
    lambda row, text: _with(row, local="2024-01-01T00:00:00Z"),
    lambda row, text: _with(row, day="2023-02-29"),
    lambda row, text: _with(row, place={"x": None}),
    lambda row, text: _with(row, place={"tags": []}),
    lambda row, text: _with(row, path=[{"n": 32768}]),
    lambda row, text: _with(row, pair=[1.0]),
    lambda row, text: _with(row, vector=[1.0, 65520.0]),
    lambda row, text: _with(row, vector=[1.0]),
]


def _with(row: dict[str, Any], **changed: Any) -> bytes:
    return json.dumps({**row, **changed}).encode()


def _oracle(text: str, schema: pa.Schema) -> dict[str, Any]:
    """The row by the stdlib alone."""
    row = json.loads(text)
    return {field.name: _value(row.get(field.name), field.type) for field in schema}


def _value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {kind.field(i).name: _value(value.get(kind.field(i).name), kind.field(i).type) for i in range(len(kind))}
    if pa.types.is_map(kind):
        return [(key, _value(item, kind.item_type)) for key, item in value.items()]
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return [_value(item, kind.value_type) for item in value]
    if pa.types.is_float64(kind):
        return float(value)
    if pa.types.is_float16(kind):
        return float(np.float16(value))
    if pa.types.is_float32(kind):
        return float(np.float32(value))
    if pa.types.is_decimal(kind):
        return Decimal(value)
    if pa.types.is_binary(kind):
        return base64.b64decode(value)
    if pa.types.is_date(kind):
        return date.fromisoformat(value)
    if pa.types.is_timestamp(kind):
        at = datetime.fromisoformat(value)
        return at.astimezone(UTC) if kind.tz else at
    return value


SIZES = {
    "sizes as they are": {},
    "tiny windows": {"WINDOW_BYTES": 300},
    "tiny pieces": {"LOOK_ROWS": 1, "MANY_ROWS": 1},
    "small pieces": {"LOOK_ROWS": 2, "MANY_ROWS": 3, "MANY_BAD": 1},
}


@contextmanager
def _sizes(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for constant, value in SIZES[name].items():
            patch.setattr(column_reader, constant, value)
        yield


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
@given(
    schema=st.sampled_from([SCHEMA, WITH_MAP]),
    rows=st.lists(st.tuples(ROWS, WRITE, st.none() | st.sampled_from([None, *DAMAGE])), max_size=8),
    nulls=st.sets(st.integers(0, 8)),
    sizes=st.sampled_from(sorted(SIZES)),
)
def test_good_rows_equal_the_oracle_and_exactly_the_damaged_are_bad(
    schema: pa.Schema,
    rows: list[tuple[dict[str, Any], dict[str, Any], Callable[[dict[str, Any], str], bytes] | None]],
    nulls: set[int],
    sizes: str,
) -> None:
    values: list[bytes | None] = []
    good: dict[int, dict[str, Any]] = {}
    bad: list[int] = []
    for i, (row, style, damage) in enumerate(rows):
        if i in nulls:
            values.append(None)
        text = json.dumps(row, **style)
        if damage is None:
            good[len(values)] = _oracle(text, schema)
            values.append(text.encode())
        else:
            bad.append(len(values))
            values.append(damage(row, text))
    with _sizes(sizes):
        result = decode.json(schema).decode(pa.array(values, pa.binary()))
    assert result.bad.indices.to_pylist() == bad
    assert result.indices.to_pylist() == list(good)
    assert result.rows.to_pylist() == list(good.values())
    assert result.nulls.to_pylist() == [i for i, value in enumerate(values) if value is None]
    result.rows.validate(full=True)


# Pieces of JSON that hit the differences between parsers.
SCRAPS = st.sampled_from(
    [
        *(
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            " ",
            "\n",
            '"',
            "\\",
            "null",
            "true",
            "NaN",
            "Inf",
            "-Infinity",
            "-",
            "1",
            "-0",
        ),
        *(
            "1.0",
            "1.50",
            "1e400",
            "0e99",
            "1e2",
            "99999999999",
            "9" * 20,
            "1" + "0" * 40,
            '"a"',
            '"id"',
            '"price"',
            '"at"',
        ),
        *('"real"', '"single"', '"small"', '"more"', '"x"', '"1.50"', '"2024-01-31"', '"2024-01-31T01:02:03.5Z"'),
        *('"aGk="', '"\\ud800"', '"\\u0000"', "é", "\0", "\ufeff", '"bytes"', '"place"', '{"x": 1}', '"2024-01-01T00"'),
    ]
)
VALUES = st.sampled_from(
    [
        *(
            "1",
            "-0",
            "1.0",
            "1.50",
            "1e400",
            "0e99",
            "1e2",
            "256",
            "9" * 20,
            "1" + "0" * 40,
            "1" + "0" * 5000,
            "3.4028236e38",
        ),
        *(
            "NaN",
            "Inf",
            "-NaN",
            "-Infinity",
            "null",
            "true",
            '"a"',
            '""',
            '"1.50"',
            '"+1"',
            '".5"',
            '"5."',
            '"."',
            '"1e9"',
        ),
        *('"2024-01-31T01:02:03.123456000Z"', '"2024-01-31T01:02:03.1234560"', '"2024-01-31T01:02:03.123456001"'),
        *('"12"', '"-1.5e3"', '" 1"', '"01"', '"99999999999999999999"', '"1e999"', '["1"]'),
        *('"2024-01-31"', '"2024-01-31T01:02:03.5Z"', '"2024-02-30"', '"2024-01-01T00"', '"2024-01-01T00+01"', '"é"'),
        *(
            '"2024-01-01 00:00-0130"',
            '"aGk="',
            '"aGl="',
            '"a==="',
            '"\\ud800"',
            '"\\u0000"',
            "{}",
            '{"x": 1}',
            "[]",
            "[1, 2]",
            "[1, 65520]",
            "[1, NaN]",
        ),
        *(
            '{"x": 1, "x": 1}',
            '{"a": 1, "a": 1}',
            '{"a": "1e9"}',
            "[{}]",
            '[{"n": 1, "n": 2}]',
            "[null]",
            '["\\ud800"]',
        ),
    ]
)
OBJECTS = st.lists(st.tuples(st.sampled_from([*WITH_MAP.names, "unknown"]), VALUES), max_size=3).map(
    lambda pairs: '{"id": 1' + "".join(f', "{name}": {value}' for name, value in pairs) + "}"
)
FUZZ = st.one_of(OBJECTS, st.lists(SCRAPS, max_size=10).map("".join)).map(str.encode) | st.binary(max_size=20)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
@given(
    schema=st.sampled_from([SCHEMA, WITH_MAP]),
    coerce=st.sampled_from(COERCE),
    values=st.lists(FUZZ, max_size=6),
    sizes=st.sampled_from(sorted(SIZES)),
)
def test_the_fate_of_a_record_does_not_depend_on_its_neighbours(
    schema: pa.Schema, coerce: tuple[str, ...], values: list[bytes], sizes: str
) -> None:
    decoder = decode.json(schema, coerce=coerce)
    alone = [decoder.decode(pa.array([value])) for value in values]
    with _sizes(sizes):
        together = decoder.decode(pa.array(values, pa.binary()))
    assert together.indices.to_pylist() == [i for i, one in enumerate(alone) if one.rows.num_rows]
    assert together.bad.indices.to_pylist() == [i for i, one in enumerate(alone) if len(one.bad)]
    assert together.rows.to_pylist() == [row for one in alone for row in one.rows.to_pylist()]


def _fits_columns(schema: pa.Schema, coerce: tuple[str, ...], text: str) -> bool:
    """Whether the whole-column reader takes the record by itself."""
    reader = ColumnReader(schema, coerce)
    try:
        reader._finish(reader._parse(pa.array([text])))
    except (pa.ArrowInvalid, Unfit, Unsure):
        return False
    return True


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
@given(schema=st.sampled_from([SCHEMA, WITH_MAP]), coerce=st.sampled_from(COERCE), text=OBJECTS)
def test_a_record_is_refused_only_where_its_columns_refuse_it(
    schema: pa.Schema, coerce: tuple[str, ...], text: str
) -> None:
    """The rule of each type is there twice; this is what the two halves owe each other."""
    try:
        RecordReader(columns_of(schema, coerce)).read(text)
    except Unfit:
        assert not _fits_columns(schema, coerce, text)
    except Unsure:
        pass
