from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate
from headgate.errors import InvalidInput, PermissionDenied, Transient
from headgate.shards.rows.schema import RowSchema
from headgate.streaming.decode.contract import Decoded, KeyDecoder
from tests.support.registry import Registry, serving, wire

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "place", "type": {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "float"}]}},
        {"name": "other", "type": ["null", "Place", "string", {"type": "fixed", "name": "F", "size": 3}]},
        {"name": "ratio", "type": "double"},
        {"name": "done", "type": "boolean"},
        {"name": "raw", "type": "bytes"},
        {"name": "next", "type": ["null", "Order"]},
    ],
}
COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("note", pa.string()),
        ("price", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("state", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("place", pa.struct([("x", pa.float64()), ("y", pa.int32())])),
        ("ratio", pa.float64()),
        ("done", pa.bool_()),
        ("raw", pa.binary()),
        ("missing", pa.int32()),
    ]
)


def order(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "note": None if number % 3 == 0 else f"Bestellung {number} ü",
        "price": Decimal(number * 37 - 1000).scaleb(-2),
        "at": datetime(2026, 1, 1, 0, 0, number % 60, 5000, tzinfo=UTC),
        "day": date(2026, 1, 1 + number % 28),
        "state": ("NEW", "PAID")[number % 2],
        "tags": [f"t{i}" for i in range(number % 4)],
        "counts": {f"k{i}": i - 1 for i in range(number % 3)},
        "place": {"x": number * 0.5},
        "other": (None, {"x": 1.0}, "text", b"abc")[number % 4],
        "ratio": number / 7,
        "done": number % 2 == 0,
        "raw": bytes([number % 256]) * (number % 5),
        "next": None if number % 5 else order(number + 1, other=None),
        **more,
    }


def expected(number: int) -> dict[str, Any]:
    row = order(number)
    del row["other"], row["next"]
    return {**row, "counts": list(row["counts"].items()), "place": {**row["place"], "y": None}, "missing": None}


def decoded(values: Sequence[bytes | None], schemas: dict[int, Any], columns: pa.Schema = COLUMNS) -> Decoded:
    texts = {number: json.dumps(schema) for number, schema in schemas.items()}
    return headgate.decode.avro(columns, schemas=texts).decode(pa.array(values, pa.binary()))


def errors(found: Decoded) -> dict[int, str]:
    return dict(zip(found.bad.indices.to_pylist(), found.bad.errors.to_pylist(), strict=True))


def test_what_another_library_wrote_is_read_column_by_column_as_it_was() -> None:
    found = decoded([None if n == 4 else wire(ORDER, order(n)) for n in range(200)], {7: ORDER})
    numbers = [n for n in range(200) if n != 4]
    assert errors(found) == {}
    assert found.indices.to_pylist() == numbers
    assert found.nulls.to_pylist() == [4]
    assert found.rows.schema == COLUMNS
    assert found.rows.to_pylist() == [expected(n) for n in numbers]


def test_a_bad_record_costs_no_other_row_and_says_what_is_wrong() -> None:
    good = wire(ORDER, order(1))
    enum = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
    values = [
        good,
        b"",
        good[:-1],
        good + b"\0",
        b"{}",
        b"\0\0\0\0\x09" + good[5:],
        good,
        good[:5],
        wire(enum, {"id": 5}, 8),
    ]
    found = decoded(values, {7: ORDER, 8: enum})
    assert found.indices.to_pylist() == [0, 6, 8]
    assert found.rows.column("id").to_pylist() == [1, 1, 5]
    told = errors(found)
    assert sorted(told) == [1, 2, 3, 4, 5, 7]
    assert "is cut off" in told[2]
    assert "bytes are left" in told[3]
    assert "Schema 9 is not in" in told[5]


def test_a_value_that_its_column_cannot_hold_is_bad_and_a_type_that_never_fits_names_the_field() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "id", "type": "long"}, {"name": "s", "type": "string"}],
    }
    values = [wire(schema, {"id": n, "s": "x"}) for n in (5, 1 << 20, -129, 127)]
    bad_text = wire(schema, {"id": 1, "s": "abc"})[:-1] + b"\xff"
    narrow = pa.schema([("id", pa.int8()), ("s", pa.string())])
    found = decoded([*values, bad_text], {7: schema}, narrow)
    assert found.rows.to_pylist() == [{"id": 5, "s": "x"}, {"id": 127, "s": "x"}]
    assert {at: next(word for word in ("int8", "UTF-8") if word in why) for at, why in errors(found).items()} == {
        1: "int8",
        2: "int8",
        4: "UTF-8",
    }
    assert "field 's'" in errors(decoded(values, {7: schema}, pa.schema([("s", pa.int32())])))[0]


def test_arrays_in_sized_blocks_and_counts_that_lie_are_told_apart() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "l", "type": {"type": "array", "items": "int"}}]}
    head = b"\0\0\0\0\x07"
    two_blocks = head + b"\x03\x04\x02\x04" + b"\x02\x06" + b"\x00"  # -2 items of 2 bytes: 1, 2; 1 item: 3
    lie = head + b"\xfe\xff\xff\xff\x0f\x02\x00"
    found = decoded([two_blocks, lie, head + b"\x00"], {7: schema}, pa.schema([("l", pa.list_(pa.int32()))]))
    assert found.rows.column("l").to_pylist() == [[1, 2, 3], []]
    assert "is cut off" in errors(found)[1]


@given(st.lists(st.binary(max_size=40), max_size=20))
@settings(max_examples=200, deadline=None)
def test_no_bytes_raise_and_every_position_is_somewhere(values: list[bytes]) -> None:
    good = wire(ORDER, order(3))
    found = decoded([good, *(b"\0\0\0\0\x07" + value for value in values), good], {7: ORDER})
    at = sorted([*found.indices.to_pylist(), *found.bad.indices.to_pylist()])
    assert at == list(range(len(values) + 2))
    assert {0, len(values) + 1} <= set(found.indices.to_pylist())
    found.rows.validate(full=True)


def test_keys_of_tombstones_are_read_in_the_same_format_bare_or_as_a_record() -> None:
    record = {"type": "record", "name": "K", "fields": [{"name": "id", "type": "long"}]}
    keys = [wire(record, {"id": 4}, 1), wire("long", 5, 2), b"6", b'{"id": 7}', b"\0\0\0\0\x01"]
    decoder = headgate.decode.avro(COLUMNS, schemas={1: json.dumps(record), 2: '"long"'})
    metadata = {b"lance-schema:unenforced-primary-key": b"true"}
    schema = RowSchema.of(pa.schema([pa.field("id", pa.int64(), False, metadata)]))
    assert isinstance(decoder, KeyDecoder)
    found = decoder.decode_keys(pa.array(keys, pa.binary()), schema)
    assert found.rows.column(0).to_pylist() == [4, 5, 6, 7]
    assert found.bad.indices.to_pylist() == [4]


# -- the registry ------------------------------------------------------------------


@pytest.fixture
def registry() -> Iterator[str]:
    place = {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "float"}]}
    shop = {
        "type": "record",
        "name": "Shop",
        "fields": [{"name": "id", "type": "long"}, {"name": "place", "type": "Place"}],
    }
    answers = {
        "/schemas/ids/7": (200, {"schema": json.dumps(ORDER)}),
        "/schemas/ids/8": (
            200,
            {"schema": json.dumps(shop), "references": [{"name": "Place", "subject": "a/b", "version": 3}]},
        ),
        "/subjects/a%2Fb/versions/3": (200, {"schema": json.dumps(place)}),
        "/schemas/ids/500": (503, {}),
    }
    with serving(answers) as address:
        yield address


def test_a_registry_is_asked_once_per_schema_and_a_schema_it_lacks_is_a_bad_record(registry: str) -> None:
    decoder = pickle.loads(pickle.dumps(headgate.decode.avro(COLUMNS, registry=registry, auth="u:secret")))
    values = [wire(ORDER, order(1)), wire(ORDER, order(2), 99), b"\0\0\0\0\x08\x0a\0\0\0\0"]
    for _ in range(2):
        found = decoder.decode(pa.array(values, pa.binary()))
        assert found.rows.column("id").to_pylist() == [1, 5]
        assert "does not have the schema" in errors(found)[1]
    assert Registry.asked.count("/schemas/ids/7") == 1
    assert Registry.asked.count("/schemas/ids/8") == 1
    assert "secret" not in repr(decoder)


def test_a_registry_that_is_away_or_refuses_is_an_error_of_the_task_not_of_the_record(registry: str) -> None:
    def decode(number: int, auth: str) -> None:
        headgate.decode.avro(COLUMNS, registry=registry, auth=auth).decode(
            pa.array([wire(ORDER, order(1), number)], pa.binary())
        )

    with pytest.raises(Transient, match="503"):
        decode(500, "u:secret")
    with pytest.raises(PermissionDenied) as refused:
        decode(501, "u:wrong")
    assert "wrong" not in str(refused.value)
    with pytest.raises(InvalidInput, match="credentials"):
        headgate.decode.avro(COLUMNS, registry="http://u:secret@127.0.0.1:1")
    with pytest.raises(InvalidInput, match="schemas"):
        headgate.decode.avro(COLUMNS)
