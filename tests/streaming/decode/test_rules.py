"""The table of rules of JSON: its examples are decoded, and the page is what it renders."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headgate.errors import InvalidInput
from headgate.shards.rows.schema import RowSchema
from headgate.streaming.decode import api as decode
from headgate.streaming.decode.contract import Decoded
from headgate.streaming.decode.json.types import RULES, Rule, columns_of
from headgate.streaming.decode.kinds import KINDS
from headgate.streaming.decode.provenance import provenance_of, provenance_value


def decoded(kind: pa.DataType, *values: str, coerce: tuple[str, ...] = ()) -> Decoded:
    schema = pa.schema([pa.field("c", kind, nullable=False)])
    return decode.json(schema, coerce=coerce).decode(pa.array([f'{{"c": {value}}}'.encode() for value in values]))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.arrow)
def test_a_rule_takes_and_refuses_its_examples(rule: Rule) -> None:
    assert next(one for one in RULES if one.is_kind(rule.example)) is rule
    mixed = [*rule.taken, *rule.refused]
    found = decoded(rule.example, *mixed)
    assert found.indices.to_pylist() == list(range(len(rule.taken)))
    assert found.bad.indices.to_pylist() == list(range(len(rule.taken), len(mixed)))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_fractions_finer_than_the_unit_are_taken_where_they_are_zeros(unit: str, zone: str | None) -> None:
    digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[unit]
    whole = "123456789"[:digits]
    ending = "Z" if zone else ""
    kind = pa.timestamp(unit, zone)
    padded = [f'"2026-11-19T08:30:00.{whole.ljust(length, "0")}{ending}"' for length in range(max(digits, 1), 10)]
    found = decoded(kind, *padded, '"2026-11-19T08:30:00"')
    plain = decoded(kind, f'"2026-11-19T08:30:00{"." + whole if whole else ""}{ending}"')
    assert found.bad.indices.to_pylist() == []
    assert found.rows.column("c")[: len(padded)].unique() == plain.rows.column("c")
    finer = decoded(kind, f'"2026-11-19T08:30:00.{whole.ljust(9, "0")}1{ending}"')
    assert len(finer.bad) == 1
    if digits < 9:
        assert len(decoded(kind, f'"2026-11-19T08:30:00.{whole.ljust(8, "0")}1{ending}"').bad) == 1


def test_a_column_takes_a_string_for_a_number_only_where_that_is_wanted() -> None:
    texts = ('"12"', "13", '"1.0"', '" 1"', '""', '"300"', '"0x1"', '"' + "1" * 5000 + '"')
    assert decoded(pa.int8(), *texts).indices.to_pylist() == [1]
    found = decoded(pa.int8(), *texts, coerce=("string_to_number",))
    assert found.rows.column("c").to_pylist() == [12, 13]
    assert "'300' is out of range for int8" in found.bad.errors[3].as_py()
    reals = decoded(pa.float64(), '"1.5e3"', '"-0.5"', '"NaN"', '"1e999"', "2", coerce=("string_to_number",))
    assert reals.rows.column("c").to_pylist() == [1500.0, -0.5, 2.0]
    inside = decoded(pa.list_(pa.struct([("n", pa.int64())])), '[{"n": "7"}, {"n": 8}]', coerce=("string_to_number",))
    assert inside.rows.column("c").to_pylist() == [[{"n": 7}, {"n": 8}]]


def test_a_column_takes_a_number_for_a_string_with_the_digits_that_are_written() -> None:
    found = decoded(pa.string(), "1.50", "12", '"x"', "1e3", "true", "{}", coerce=("number_to_string",))
    assert found.rows.column("c").to_pylist() == ["1.50", "12", "x", "1e3"]
    assert found.bad.indices.to_pylist() == [4, 5]


def test_a_coercion_is_named_recorded_and_made_again() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'string_to_number'"):
        decode.json("id int", coerce="string_to_numbers")
    with pytest.raises(InvalidInput, match="for the decoder json, not for raw"):
        KINDS["raw"].made(pa.schema([("value", pa.binary())]), coerce=("string_to_number",))
    made = decode.json("id int", coerce="string_to_number")
    columns = RowSchema.of(pa.schema([("id", pa.int32())]))
    value = provenance_value(made, columns, changed=False)
    assert provenance_of(value).decoder == made
    assert "coerce" not in provenance_value(decode.json("id int"), columns, changed=False)["options"]
    assert columns_of(made.schema, ("string_to_number",)).fields[0].type.by_record
