"""Bad input costs no other row: where every value goes, and why."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from headgate.errors import InvalidInput
from headgate.streaming.decode import api as decode
from headgate.streaming.decode.json import columns as column_reader

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("price", pa.float64()),
    ]
)
GOOD = b'{"id": 1, "name": "a", "price": 1.5, "unknown": [1, {"x": null}]}'
ROW = {"id": 1, "name": "a", "price": 1.5}


def decoded(*values: bytes | None, schema: pa.Schema = SCHEMA) -> decode.Decoded:
    result = decode.json(schema).decode(pa.array(values, pa.binary()))
    everywhere = [*result.indices.to_pylist(), *result.bad.indices.to_pylist(), *result.nulls.to_pylist()]
    assert sorted(everywhere) == list(range(len(values)))
    assert result.indices.to_pylist() == sorted(result.indices.to_pylist())
    assert result.bad.indices.to_pylist() == sorted(result.bad.indices.to_pylist())
    assert result.rows.num_rows == len(result.indices)
    assert result.rows.schema.equals(schema, check_metadata=True)
    result.rows.validate(full=True)
    return result


BAD = {
    "nothing": (b"", "empty value"),
    "only space": (b" \n ", "empty value"),
    "not JSON": (b"hello", "not a JSON object"),
    "not JSON inside braces": (b"{hello}", "not JSON"),
    "cut short": (b'{"id": 1, "name": "a', "not JSON"),
    "cut short at a brace": (b'{"id": 1, "x": {}', "not JSON"),
    "text after the object": (b'{"id": 1}x', "not JSON"),
    "a comment": (b'{"id": 1 /* one */}', "not JSON"),
    "a comma too many": (b'{"id": 1,}', "not JSON"),
    "single quotes": (b"{'id': 1}", "not JSON"),
    "two documents": (b'{"id": 1}{"id": 2}', "not JSON"),
    "two documents on two lines": (b'{"id": 1}\n{"id": 2}', "not JSON"),
    "top-level null": (b"null", "not a JSON object"),
    "null between documents": (b'{"id": 1}null{"id": 2}', "null after the object"),
    "null between documents, spaced": (b'{"id": 1} \t\r\n null {"id": 2}', "null after the object"),
    "top-level number": (b"1", "not a JSON object"),
    "top-level string": (b'"{}"', "not a JSON object"),
    "top-level array": (b'[{"id": 1}]', "not a JSON object"),
    "invalid UTF-8 in a column": (b'{"id": 1, "name": "\xff"}', "not UTF-8: byte 19"),
    "invalid UTF-8 elsewhere": (b'{"id": 1, "x": "\xc0\x80"}', "not UTF-8"),
    "a surrogate in UTF-8": (b'{"id": 1, "x": "\xed\xa0\x80"}', "not UTF-8"),
    "a byte order mark": (b'\xef\xbb\xbf{"id": 1}', "not a JSON object"),
    "UTF-16": ('{"id": 1}'.encode("utf-16"), "not UTF-8"),
    "UTF-16 without a mark": ('{"id": 1}'.encode("utf-16-be"), "not a JSON object"),
    "NUL between documents": (b'{"id": 1}\x00{"id": 2}', "NUL"),
    "NUL in a string": (b'{"id": 1, "name": "\x00"}', "NUL"),
    "a newline in a string": (b'{"id": 1, "name": "a\nb"}', "not JSON"),
    "half a surrogate pair": (b'{"id": 1, "name": "\\ud800"}', "surrogate"),
    "half a surrogate pair elsewhere": (b'{"id": 1, "x": "\\ud800"}', "surrogate"),
    "wrong type": (b'{"id": "1"}', "column 'id': wanted a whole number, got a string '1'"),
    "a fraction for an integer": (b'{"id": 1.5}', "column 'id': wanted a whole number"),
    "1.0 for an integer": (b'{"id": 1.0}', "column 'id': wanted a whole number"),
    "too large for int32": (b'{"id": 2147483648}', "column 'id': '2147483648' is out of range for int32"),
    "too large for int64": (b'{"id": 9223372036854775808}', "column 'id'"),
    "missing": (b'{"name": "a"}', "column 'id' is missing"),
    "null where it may not be": (b'{"id": null}', "column 'id' is null"),
    "a column twice": (b'{"id": 1, "id": 1}', "column 'id' is duplicated"),
    "NaN": (b'{"id": 1, "price": NaN}', "column 'price'"),
    "Inf": (b'{"id": 1, "price": -Inf}', "column 'price'"),
    "Infinity": (b'{"id": 1, "price": Infinity}', "column 'price'"),
    "too large for a double": (b'{"id": 1, "price": 1e400}', "column 'price'"),
    "400 digits for a double": (b'{"id": 1, "price": 1' + b"0" * 400 + b"}", "column 'price'"),
    "an object for a string": (b'{"id": 1, "name": {}}', "column 'name': wanted a string, got an object"),
    "100,000 brackets": (b"[" * 100_000, "not a JSON object"),
    "100,000 brackets inside": (b'{"id": 1, "x": ' + b"[" * 100_000 + b"}", "JSON"),
    "100,000 levels in a column": (b'{"id": 1, "name": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "/name"),
    "100,000 levels, null behind": (b'{"id":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}null{}", "null after"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_record_is_named_and_costs_no_other_row(name: str) -> None:
    value, error = BAD[name]
    result = decoded(GOOD, value, None, GOOD)
    assert result.rows.to_pylist() == [ROW, ROW]
    assert result.indices.to_pylist() == [0, 3]
    assert result.nulls.to_pylist() == [2]
    assert result.bad.indices.to_pylist() == [1]
    assert error in result.bad.errors[0].as_py()


def test_all_kinds_of_bad_records_together_are_told_apart() -> None:
    values = [value for value, _ in BAD.values()]
    result = decoded(*(value for bad in values for value in (GOOD, bad)))
    assert result.rows.to_pylist() == [ROW] * len(values)
    assert result.bad.indices.to_pylist() == list(range(1, 2 * len(values), 2))
    for why, (_, error) in zip(result.bad.errors.to_pylist(), BAD.values(), strict=True):
        assert error in why


GOOD_SHAPES = {
    "unknown fields": GOOD,
    "space around": b' \r\n\t{"id": 1, "name": "a", "price": 1.5}\n',
    "newlines inside": b'{\n  "id": 1,\r\n  "name": "a",\n "price": 1.5\n}',
    "an escaped name": b'{"\\u0069d": 1, "name": "a", "price": 1.5}',
    "an unknown name twice": b'{"id": 1, "name": "a", "price": 1.5, "x": 1, "x": 2}',
    "another case is another name": b'{"id": 1, "name": "a", "price": 1.5, "ID": 2, "Name": 3}',
    "'} null' inside a string": b'{"id": 1, "name": "a", "price": 1.5, "x": "} null {"}',
    "NaN where nobody reads": b'{"id": 1, "name": "a", "price": 1.5, "x": NaN}',
    "Inf where nobody reads": b'{"id": 1, "name": "a", "price": 1.5, "x": [Inf, -Inf, -NaN]}',
    "5,000 digits where nobody reads": b'{"id": 1, "name": "a", "price": 1.5, "x": ' + b"7" * 5000 + b"}",
    "100,000 levels where nobody reads": b'{"id": 1, "name": "a", "price": 1.5, "x": '
    + b"[" * 100_000
    + b"]" * 100_000
    + b"}",
}


@pytest.mark.parametrize("company", [GOOD, b'{"id": 1.5}', b"{]}"], ids=["good", "a bad value", "bad syntax"])
@pytest.mark.parametrize("name", GOOD_SHAPES)
def test_a_good_record_stays_good_whatever_its_neighbours(name: str, company: bytes) -> None:
    result = decoded(company, GOOD_SHAPES[name], company)
    assert 1 in result.indices.to_pylist()
    assert result.rows.to_pylist()[result.indices.to_pylist().index(1)] == ROW


def test_documents_that_make_up_for_lost_ones_do_not_shift_rows() -> None:
    """Two documents in one value and a value that ends the input early would balance the row count."""
    result = decoded(b'{"id": 1}{"id": 2}', b'{"id": 3}', b'{"id": 4}\x00}', b'{"id": 5}')
    assert result.rows.column("id").to_pylist() == [3, 5]
    halves = decoded(b'{"id": 1, "x":', b'{"id": 2}}', b'{"id": 3}{"id": 4}', b'{"id": 5}')
    assert halves.rows.column("id").to_pylist() == [5]


def test_no_values_and_only_nulls_give_no_rows() -> None:
    assert decoded().rows.num_rows == 0
    assert decoded(None, None).nulls.to_pylist() == [0, 1]


@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view(), pa.string_view()],
    ids=str,
)
def test_bytes_and_text_of_every_layout_decode_alike(kind: pa.DataType) -> None:
    values = pa.array([b"cut off", GOOD, None, b"[]", GOOD], pa.binary()).cast(kind).slice(1)
    for column in (values, pa.chunked_array([values.slice(0, 2), values.slice(2)])):
        result = decode.json(SCHEMA).decode(column)
        assert result.rows.to_pylist() == [ROW, ROW]
        assert (result.indices.to_pylist(), result.nulls.to_pylist(), result.bad.indices.to_pylist()) == (
            [0, 3],
            [1],
            [2],
        )


def test_values_that_are_no_bytes_are_refused() -> None:
    with pytest.raises(InvalidInput, match="binary or string, got int64"):
        decode.json(SCHEMA).decode(pa.array([1]))


@pytest.mark.parametrize("every", [1, 2, 7, 150, 1000, 9999])
@pytest.mark.parametrize("bad", [b'{"id": 99999999999}', b'{"id": 1.5}', b'{"id": 1 2}', b"?"])
def test_any_share_of_bad_records_leaves_the_rest(every: int, bad: bytes) -> None:
    values = [bad if i % every == every - 1 else b'{"id": %d}' % i for i in range(10_000)]
    result = decoded(*values)
    good = [i for i in range(10_000) if i % every != every - 1]
    assert result.indices.to_pylist() == good
    assert result.rows.column("id").to_pylist() == good


def test_windows_keep_order_and_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_reader, "WINDOW_BYTES", 100)
    values = [b'{"id": %d, "name": "%s"}' % (i, b"x" * (i % 37 * 10)) for i in range(500)]
    values[250] = b"bad"
    result = decoded(*values)
    assert result.rows.column("id").to_pylist() == [i for i in range(500) if i != 250]


def test_a_value_that_the_parser_cannot_count_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_reader, "WINDOW_BYTES", 100)
    monkeypatch.setattr(column_reader, "MAX_VALUE_BYTES", 1000)
    result = decoded(GOOD, b'{"id": 1, "name": "%s"}' % (b"x" * 1000), GOOD)
    assert result.bad.errors.to_pylist() == ["larger than 1000 bytes"]
    assert result.rows.num_rows == 2


def test_a_huge_string_is_just_a_string() -> None:
    result = decoded(GOOD, b'{"id": 2, "name": "%s"}' % (b"x" * (20 << 20)), GOOD)
    assert len(result.rows.column("name")[1].as_py()) == 20 << 20
    assert result.rows.column("id").to_pylist() == [1, 2, 1]


@pytest.mark.parametrize("secret", ["s" * 5000, "é" * 5000, "\\u0001" * 3000])
@pytest.mark.parametrize(
    "shape", ['{"id": "%s"}', '{"id": 1, "at": "%s"}', "%s", '{"id": 1, "at": "2024-01-01" %s}', '{"id": 1}%s', "{%s}"]
)
def test_an_error_shows_at_most_80_characters_of_a_value(shape: str, secret: str) -> None:
    schema = pa.schema(
        [pa.field("id", pa.int32()), pa.field("at", pa.timestamp("us")), pa.field("d", pa.decimal128(5))]
    )
    values = [(shape % secret).encode(), b'{"d": "%s"}' % secret.encode(), b'{"d": 0.%s}' % (b"1" * 5000)]
    for why in decoded(*values, schema=schema).bad.errors.to_pylist():
        assert len(why) < 200
        assert "s" * 81 not in why
        assert "é" * 81 not in why
        assert "1" * 81 not in why
        assert why.isprintable()


def test_a_decoder_is_a_picklable_value_that_meets_the_contract() -> None:
    decoder = decode.json(SCHEMA)
    assert pickle.loads(pickle.dumps(decoder)) == decoder
    assert isinstance(decoder, decode.Decoder)
    assert decoder.schema == SCHEMA
    again: decode.Decoder = pickle.loads(pickle.dumps(decoder))
    assert again.decode(pa.array([GOOD])).rows.to_pylist() == [ROW]
    with pytest.raises(AttributeError):
        decoder.schema = SCHEMA  # type: ignore[misc]
