"""The table of types in headgate.streaming.decode.api, line by line."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headgate.errors import InvalidInput
from headgate.streaming.decode import api as decode
from headgate.table.create import create_table

INTEGERS = {
    pa.int8(): (-128, 127),
    pa.int16(): (-32768, 32767),
    pa.int32(): (-(2**31), 2**31 - 1),
    pa.int64(): (-(2**63), 2**63 - 1),
    pa.uint8(): (0, 255),
    pa.uint16(): (0, 65535),
    pa.uint32(): (0, 2**32 - 1),
    pa.uint64(): (0, 2**64 - 1),
}
NOT_INTEGERS = ["1.0", "1.5", "1e2", '"1"', "true", "[1]", "{}", "NaN"]
STRUCT = pa.struct([pa.field("x", pa.int8(), nullable=False), pa.field("at", pa.timestamp("us"))])
REQUIRED_LIST = pa.list_(pa.field("item", pa.int64(), nullable=False))

# type, {JSON text: value}, [JSON texts that are bad]
CASES: list[tuple[pa.DataType, dict[str, Any], list[str]]] = [
    *((kind, {str(low): low, str(high): high}, [str(low - 1), str(high + 1), *NOT_INTEGERS])
      for kind, (low, high) in INTEGERS.items()),
    (pa.bool_(), {"true": True, "false": False}, ["1", "0", '"true"', "[]"]),
    (pa.float64(),
     {"1": 1.0, "0.1": 0.1, "-0.0": -0.0, "1e308": 1e308, "5e-324": 5e-324, "1e-400": 0.0,
      "9007199254740993": 9007199254740992.0},
     ["1e309", "1.7976931348623159e308", "NaN", "Infinity", "-Infinity", "Inf", '"1.0"', '"NaN"', "true"]),
    (pa.float32(),
     {"0.5": 0.5, "16777217": 16777216.0, "3.4028234e38": 3.4028234663852886e38},
     ["1e39", "3.4028236e38", "1e400", "NaN", "-Infinity", '"1"']),
    (pa.float16(),
     {"0.5": 0.5, "1": 1.0, "-0.0": -0.0, "0.1": 0.0999755859375, "65504": 65504.0, "65519.9": 65504.0,
      "6e-8": 5.960464477539063e-08, "1e-8": 0.0, "2049": 2048.0, "1.00146484375": 1.001953125},
     ["65520", "-65520", "1e39", "1e400", "NaN", "-Infinity", '"1"', "true"]),
    (pa.string(),
     {'"a"': "a", '""': "", '"\\u0000"': "\0", '"\\ud83d\\ude00"': "😀", '"é"': "é", '"} null"': "} null"},
     ["1", "true", "{}", "[]", '"\\ud800"', '"\\x"']),
    (pa.large_string(), {'"a"': "a"}, ["1"]),
    (pa.binary(),
     {'""': b"", '"aGk="': b"hi", '"aA=="': b"h", '"aGkh"': b"hi!", '"//79"': b"\xff\xfe\xfd"},
     ['"a"', '"aGk"', '"a==="', '"===="', '"aG=="x"', '"aG=k"', '"-_79"', '"aGk=\\n"', '"é==="', "1", "[104]"]),
    (pa.large_binary(), {'"aGk="': b"hi"}, ['"a"']),
    (pa.decimal128(10, 2),
     {"1.5": Decimal("1.50"), '"1.5"': Decimal("1.50"), "-99999999.99": Decimal("-99999999.99"), "1e2": Decimal("100"),
      "0.07": Decimal("0.07"), '"+1"': Decimal("1"), "-0.00": Decimal("0"),
      "1.500": Decimal("1.50"), "0.0000": Decimal("0")},
     ["1.005", '"1.005"', "100000000", "1e8", '"0e99"',
      '""', '" 1"', '"1 "', '"NaN"', "NaN", '"0x1"', "true", "1e400"]),
    (pa.decimal128(38, 18),
     {"0.100000000000000005": Decimal("0.100000000000000005"),
      "12345678901234567890.123456789012345678": Decimal("12345678901234567890.123456789012345678")},
     ["0.1000000000000000055", "123456789012345678901"]),
    (pa.decimal256(60, 2), {"1" * 58 + ".25": Decimal("1" * 58 + ".25")}, ["1" * 59, "0.001"]),
    (pa.timestamp("us"),
     {'"2024-01-02T03:04:05"': datetime(2024, 1, 2, 3, 4, 5),
      '"2024-01-02 03:04:05.123456"': datetime(2024, 1, 2, 3, 4, 5, 123456),
      '"2024-02-29T03:04"': datetime(2024, 2, 29, 3, 4), '"2024-01-02"': datetime(2024, 1, 2),
      '"0001-01-01"': datetime(1, 1, 1), '"9999-12-31T23:59:59.999999"': datetime(9999, 12, 31, 23, 59, 59, 999999)},
     ['"2024-01-02T03:04:05Z"', '"2024-01-02T03:04:05+02:00"', '"2024-01-02T03:04:05.1234567"', '"2024-02-30"',
      '"2024-01-01T24:00:00"', '"x"', '""', "1704164645", "true", '" 2024-01-02"', '"2024-01-02T03:04:05 "']),
    (pa.timestamp("us", "UTC"),
     {'"2024-01-02T03:04:05Z"': datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC),
      '"2024-01-02T03:04:05+02:00"': datetime(2024, 1, 2, 1, 4, 5, tzinfo=UTC),
      '"2024-01-02T03:04:05-0130"': datetime(2024, 1, 2, 4, 34, 5, tzinfo=UTC),
      '"2024-01-02T03:04:05.5"': datetime(2024, 1, 2, 3, 4, 5, 500000, tzinfo=UTC),
      '"2024-01-02 03:04"': datetime(2024, 1, 2, 3, 4, tzinfo=UTC),
      '"2024-01-02T03"': datetime(2024, 1, 2, 3, tzinfo=UTC), '"2024-01-31"': datetime(2024, 1, 31, tzinfo=UTC)},
     ['"2024-01-02T03:04:05.1234567Z"', '"2024-01-02Z"', '"2024-02-30T00:00Z"', '"2024-01-02T03:04:05+25:00"',
      '"2024-01-02T03:04:05 Z"', '"2024-01-02t03:04:05z"', '"now"', "1704164645", "1704164645.5"]),
    (pa.timestamp("s"), {'"2024-01-02T03:04:05"': datetime(2024, 1, 2, 3, 4, 5)}, ['"2024-01-02T03:04:05.5"']),
    (pa.timestamp("ms", "UTC"),
     {'"2024-01-02T03:04:05.678Z"': datetime(2024, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)},
     ['"2024-01-02T03:04:05.6789Z"']),
    (pa.timestamp("ns", "UTC"), {}, ['"1600-01-01T00:00:00Z"', '"2500-01-01"']),
    (pa.date32(), {'"2024-02-29"': date(2024, 2, 29)},
     ['"2023-02-29"', '"2024-1-2"', '"2024-01-02T00:00:00"', "19000"]),
    (pa.date64(), {'"2024-02-29"': date(2024, 2, 29)}, ['"20240229"', "1"]),
    (STRUCT,
     {'{"x": 1, "at": "2024-01-02", "y": 2}': {"x": 1, "at": datetime(2024, 1, 2)}, '{"x": 1}': {"x": 1, "at": None}},
     ["{}", '{"x": null}', '{"x": 200}', '{"x": 1, "x": 1}', '{"x": 1, "at": "2024-01-02Z"}', "[]", "1", '"{}"']),
    (pa.list_(pa.int64()), {"[]": [], "[1, null]": [1, None]}, ["{}", "1", "[1.5]", '["1"]', "[[1]]"]),
    (REQUIRED_LIST, {"[]": [], "[1]": [1]}, ["[null]", "[1, null]"]),
    (pa.large_list(pa.date32()), {'["2024-01-02", null]': [date(2024, 1, 2), None]}, ['["x"]', "1"]),
    (pa.list_(pa.float32(), 2), {"[1, 2.5]": [1.0, 2.5]}, ["[]", "[1]", "[1, 2, 3]", "[1, 1e39]", "1"]),
    (pa.list_(pa.float16(), 3),
     {"[0.5, -2, 65504]": [0.5, -2.0, 65504.0], "[1, null, 3]": [1.0, None, 3.0]},
     ["[1, 2]", "[1, 2, 3, 4]", "[1, 2, 65520]", "[1, 2, NaN]", "[1, 2, Infinity]", '[1, 2, "3"]', "{}"]),
    (pa.map_(pa.string(), pa.list_(pa.float16(), 1)), {'{"k": [0.5]}': [("k", [0.5])]}, ['{"k": [1e5]}', '{"k": []}']),
    (pa.list_(STRUCT), {'[{"x": 1}, null]': [{"x": 1, "at": None}, None]}, ["[{}]", '[{"x": 1, "x": 2}]']),
    (pa.struct([("l", pa.list_(pa.list_(pa.decimal128(5, 2))))]),
     {'{"l": [[1.25, "2"], []]}': {"l": [[Decimal("1.25"), Decimal("2")], []]}},
     ['{"l": [[1.255]]}', '{"l": [1]}']),
    (pa.map_(pa.string(), pa.int8()),
     {"{}": [], '{"k": 1, "": null}': [("k", 1), ("", None)]},
     ["[]", '{"k": 200}', '{"k": "1"}', '{"k": 1, "k": 1}', '{"\\ud800": 1}', '[{"key": "k", "value": 1}]']),
    (pa.map_(pa.string(), pa.field("value", pa.int8(), nullable=False)), {'{"k": 1}': [("k", 1)]}, ['{"k": null}']),
    (pa.map_(pa.string(), pa.timestamp("us", "UTC")),
     {'{"a": "2024-01-02", "b": "2024-01-02T02:00+02:00"}':
      [("a", datetime(2024, 1, 2, tzinfo=UTC)), ("b", datetime(2024, 1, 2, tzinfo=UTC))]},
     ['{"a": "x"}', '{"a": 1}']),
    (pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.decimal128(20, 18))))])),
     {'[{"m": {"k": [0.100000000000000005, "1", 2]}}, {}]':
      [{"m": [("k", [Decimal("0.100000000000000005"), Decimal(1), Decimal(2)])]}, {"m": None}]},
     ['[{"m": {"k": [0.1000000000000000055]}}]', '[{"m": {"k": [true]}}]']),
    (pa.map_(pa.string(), pa.float64()), {'{"k": 1}': [("k", 1.0)]}, ['{"k": NaN}', '{"k": 1e999}']),
    (pa.map_(pa.string(), pa.binary()), {'{"k": "aGk="}': [("k", b"hi")]}, ['{"k": "?"}']),
]  # fmt: skip
IDS = [str(kind) for kind, _, _ in CASES]


def _same(left: Any, right: Any) -> bool:
    return bool(left == right and (not isinstance(left, float) or math.copysign(1, left) == math.copysign(1, right)))


@pytest.mark.parametrize(("kind", "good", "bad"), CASES, ids=IDS)
def test_good_texts_give_exactly_their_value(kind: pa.DataType, good: dict[str, Any], bad: list[str]) -> None:
    values = [*(f'{{"a": {text}}}' for text in good), "{}", '{"a": null}']
    result = decode.json(pa.schema([("a", kind)])).decode(pa.array(values))
    assert result.bad.errors.to_pylist() == []
    assert result.rows.schema.field("a").type == kind
    result.rows.validate(full=True)
    for got, wanted in zip(result.rows.column("a").to_pylist(), [*good.values(), None, None], strict=True):
        assert _same(got, wanted)


@pytest.mark.parametrize(("kind", "good", "bad"), CASES, ids=IDS)
def test_bad_texts_are_bad_alone_and_in_company(kind: pa.DataType, good: dict[str, Any], bad: list[str]) -> None:
    decoder = decode.json(pa.schema([("a", kind)]))
    for text in bad:
        alone = decoder.decode(pa.array([f'{{"a": {text}}}']))
        assert len(alone.bad) == 1, text
    texts = [text for one in bad for text in (*good, one)]
    result = decoder.decode(pa.array([f'{{"a": {text}}}' for text in texts]))
    assert [texts[i] for i in result.bad.indices.to_pylist()] == bad
    assert result.rows.column("a").to_pylist() == list(good.values()) * len(bad)
    result.rows.validate(full=True)


@pytest.mark.parametrize(("kind", "good", "bad"), CASES, ids=IDS)
def test_what_is_required_may_not_be_null_or_missing(kind: pa.DataType, good: dict[str, Any], bad: list[str]) -> None:
    decoder = decode.json(pa.schema([pa.field("a", kind, nullable=False)]))
    values = ["{}", '{"a": null}', *(f'{{"a": {text}}}' for text in good)]
    result = decoder.decode(pa.array(values))
    assert result.bad.errors.to_pylist() == ["column 'a' is missing", "column 'a' is null"]
    assert result.rows.column("a").to_pylist() == list(good.values())


def test_a_vector_that_does_not_fit_says_what_is_wrong_with_it() -> None:
    schema = pa.schema([("v", pa.list_(pa.float16(), 2))])
    texts = ["[1, 2]", "[1]", "[1, NaN]", "[1, 70000]", "[1, 2, 3]"]
    bad = decode.json(schema).decode(pa.array([f'{{"v": {text}}}' for text in texts])).bad
    assert dict(zip(bad.indices.to_pylist(), bad.errors.to_pylist(), strict=True)) == {
        1: "column 'v' has 1 items, wanted 2",
        2: "column 'v[]': 'nan' is not a finite number of type halffloat",
        3: "column 'v[]': '70000' is not a finite number of type halffloat",
        4: "column 'v' has 3 items, wanted 2",
    }


def test_vectors_are_the_same_in_wal_sstables_and_base(tmp_path: Path) -> None:
    vectors = [pa.field("half", pa.list_(pa.float16(), 3)), pa.field("single", pa.list_(pa.float32(), 2))]
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), *vectors, pa.field("score", pa.float16())])
    texts = ['{"id": 1, "half": [0.5, -2, 1e-3], "single": [1.5, 2], "score": 0.25}', '{"id": 2, "half": null}']
    with create_table(tmp_path / "t", schema, primary_key="id") as table:
        table.upsert(decode.json(table.schema).decode(pa.array(texts)).rows)
        wanted = table.to_arrow()
        assert wanted["half"].to_pylist() == [[0.5, -2.0, 0.0010004043579101562], None]
        table.flush()
        assert table.to_arrow() == wanted
        table.compact()
        assert table.to_arrow() == wanted
        assert table.scan(columns="id", filter="score = 0.25").read_all()["id"].to_pylist() == [1]


def test_nanoseconds_are_kept() -> None:
    values = pa.array(['{"a": "2024-01-02T03:04:05.123456789Z"}'])
    rows = decode.json(pa.schema([("a", pa.timestamp("ns", "UTC"))])).decode(values).rows
    assert rows.column("a").cast(pa.int64()).to_pylist() == [1704164645123456789]


def test_a_null_struct_may_lack_its_required_fields() -> None:
    schema = pa.schema([("s", STRUCT), ("l", pa.list_(STRUCT))])
    result = decode.json(schema).decode(pa.array(['{"s": null}', "{}", '{"s": {"x": 1}, "l": [null]}', '{"s": {}}']))
    assert result.bad.errors.to_pylist() == ["column 's.x' is missing"]
    assert result.rows.column("s").to_pylist() == [None, None, {"x": 1, "at": None}]


REFUSED = [
    pa.dictionary(pa.int32(), pa.string()),
    pa.time64("us"),
    pa.duration("us"),
    pa.null(),
    pa.binary(16),
    pa.string_view(),
    pa.decimal128(5, -2),
    pa.month_day_nano_interval(),
    pa.map_(pa.int32(), pa.string()),
    pa.dense_union([pa.field("i", pa.int32())]),
    pa.uuid(),
    pa.run_end_encoded(pa.int32(), pa.string()),
]


@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_a_type_that_json_cannot_fill_is_refused_by_name_when_the_decoder_is_made(kind: pa.DataType) -> None:
    for nested, path in ((kind, "'c'"), (pa.list_(pa.struct([("deep", kind)])), r"'c\[\]\.deep'")):
        with pytest.raises(InvalidInput, match=path):
            decode.json(pa.schema([("fine", pa.int32()), ("c", nested)]))


def test_names_that_a_json_object_cannot_have_are_refused() -> None:
    with pytest.raises(InvalidInput, match="has the name 'a' twice"):
        decode.json(pa.schema([("a", pa.int32()), ("a", pa.int32())]))
    with pytest.raises(InvalidInput, match=r"has the name 's\.a' twice"):
        decode.json(pa.schema([("s", pa.struct([("a", pa.int32()), ("a", pa.int32())]))]))
    with pytest.raises(InvalidInput, match="at least one column"):
        decode.json(pa.schema([]))
