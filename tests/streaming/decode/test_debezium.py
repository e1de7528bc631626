from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

import headgate
from headgate.errors import InvalidInput
from headgate.shards.rows.schema import PRIMARY_KEY, RowSchema
from headgate.shards.sharding import single
from headgate.streaming.decode.debezium import UNAVAILABLE, DebeziumDecoder
from headgate.streaming.write.rows import Routed, RowMaker

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), False, {PRIMARY_KEY: b"true"}),
        pa.field("name", pa.string(), nullable=False),
        pa.field("photo", pa.binary()),
        pa.field("amount", pa.decimal128(10, 2)),
    ]
)


def event(op: str | None, after: Any = None, before: Any = None, *, wrapped: bool = False) -> bytes:
    told = {"op": op, "before": before, "after": after, "source": {"lsn": 1, "snapshot": "false"}, "ts_ms": 5}
    return json.dumps({"schema": {"type": "struct"}, "payload": told} if wrapped else told).encode()


def row(number: int, name: str = "n") -> dict[str, Any]:
    return {"id": number, "name": name, "photo": "YWI=", "amount": "1.50", "unknown": 1}


def routed(records: Sequence[tuple[bytes | None, bytes | None]]) -> tuple[list[Any], dict[int, str]]:
    """(id, name, deleted) of every stored row in order, and the dead letters by offset."""
    schema = RowSchema.of(COLUMNS)
    maker = RowMaker(schema, single(), headgate.decode.debezium(COLUMNS), topic="t")
    batch = pa.record_batch(
        {
            "key": pa.array([key for key, _ in records], pa.binary()),
            "value": pa.array([value for _, value in records], pa.binary()),
            "partition": pa.array([0] * len(records), pa.int32()),
            "offset": pa.array(range(len(records)), pa.int64()),
        }
    )
    stored: list[Any] = []
    dead: dict[int, str] = {}
    parts: list[Routed] = list(maker.from_kafka(batch))
    for part in parts:
        if part.dead:
            dead.update({one["offset"]: one["error"] for one in part.rows.to_pylist()})
        else:
            stored += [(one["id"], one["name"], one["_tombstone"]) for one in part.rows.to_pylist()]
    return stored, dead


@pytest.mark.parametrize("wrapped", [False, True])
def test_snapshots_inserts_updates_and_deletes_come_out_in_order(wrapped: bool) -> None:
    key = b'{"schema": {}, "payload": {"id": 1}}' if wrapped else b'{"id": 1}'
    records = [
        (key, event("r", row(1, "snapshot"), wrapped=wrapped)),
        (key, event("u", row(1, "updated"), {"id": 1, "name": "snapshot"}, wrapped=wrapped)),
        (b"2", event("c", row(2), wrapped=wrapped)),
        (key, event("d", None, {"id": 1, "name": ""}, wrapped=wrapped)),
        (key, None),
        (key, event("c", row(1, "again"), wrapped=wrapped)),
        (key, event("d", None, None, wrapped=wrapped)),
    ]
    stored, dead = routed(records)
    assert dead == {}
    assert stored == [
        (1, "snapshot", False),
        (1, "updated", False),
        (2, "n", False),
        (1, None, True),
        (1, None, True),
        (1, "again", False),
        (1, None, True),
    ]


def test_both_shapes_may_stand_in_one_batch() -> None:
    stored, dead = routed([(b"1", event("c", row(1))), (b"2", event("c", row(2), wrapped=True)), (b"3", b"{}")])
    assert [one[0] for one in stored] == [1, 2]
    assert "no 'op'" in dead[2]


def test_what_is_no_change_of_one_row_is_a_dead_letter_and_costs_no_other() -> None:
    records = [
        (b"1", event("c", row(1))),
        (None, event("t")),
        (None, event("m")),
        (b"2", event("u", None)),
        (b"3", event("c", {**row(3), "name": UNAVAILABLE})),
        (b"4", event("c", {**row(4), "photo": "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="})),
        (b"5", event("c", {"id": 5})),
        (b"6", b'{"op": "c", "after": {"id": "x"}}'),
        (None, event("d", None, None)),
        (b"9", event("c", row(9))),
    ]
    stored, dead = routed(records)
    assert [one[0] for one in stored] == [1, 9]
    assert sorted(dead) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert "does not change a single row" in dead[1]
    assert "no 'after'" in dead[3]
    assert "'name' was not sent" in dead[4]
    assert "'photo' was not sent" in dead[5]
    assert "name" in dead[6]
    assert "no key" in dead[8]


def test_a_decoder_without_a_key_is_refused() -> None:
    with pytest.raises(InvalidInput, match="key"):
        headgate.decode.debezium("id bigint, name string")
    made = headgate.decode.debezium("id bigint, name string", primary_key="id")
    assert isinstance(made, DebeziumDecoder)
    assert made.primary_key == ("id",)
    with pytest.raises(InvalidInput, match="not one of the columns"):
        headgate.decode.debezium("id bigint", primary_key=["other"])


def test_raw_values_are_kept_as_they_are_and_text_must_be_text() -> None:
    values = pa.array([b"a", None, b"\xff", b""], pa.binary())
    kept = headgate.decode.raw().decode(values)
    assert (kept.rows.column(0).to_pylist(), kept.nulls.to_pylist()) == ([b"a", b"\xff", b""], [1])
    text = headgate.decode.raw("line", kind=pa.string()).decode(values)
    assert (text.rows.to_pylist(), text.bad.indices.to_pylist()) == ([{"line": "a"}, {"line": ""}], [2])
    with pytest.raises(InvalidInput):
        headgate.decode.raw("x", kind=pa.int64())
