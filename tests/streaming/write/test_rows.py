"""RowMaker: every record becomes a row, a tombstone or a dead letter of exactly one shard, in the order it came."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import InvalidInput
from headgate.shards.bucket import bucket_ids
from headgate.shards.rows.schema import TOMBSTONE, RowSchema
from headgate.shards.sharding import Bucket, ByPartition, Sharding, Single
from headgate.streaming.decode.api import json as json_decoder
from headgate.streaming.write.rows import Routed, RowMaker
from tests.support.life import KAFKA, KEYED, SCHEMA, TOPIC

SHARDINGS = [ByPartition(), ByPartition(max_shards=2), Bucket("id", 3), Single()]
GOOD, NO_KEY, NOT_JSON, DELETE, NO_DELETE = "good", "null id", "not json", "delete", "delete without a key"


def maker(sharding: Sharding, schema: pa.Schema = KEYED, **more: Any) -> RowMaker:
    return RowMaker(
        RowSchema.of(schema), sharding, json_decoder(SCHEMA.set(0, SCHEMA.field(0).with_nullable(True))), **more
    )


def batch(kinds: list[str], partitions: list[int], topics: list[str] | None = None) -> pa.RecordBatch:
    values: list[bytes | None] = []
    keys: list[bytes | None] = []
    for offset, kind in enumerate(kinds):
        value = {
            GOOD: json.dumps({"id": offset, "note": "n"}).encode(),
            NO_KEY: b'{"note": "no id"}',
            NOT_JSON: b"nothing",
        }.get(kind)
        values.append(value)
        keys.append(None if kind == NO_DELETE else b"%d" % offset)
    found = {
        "value": values,
        "partition": partitions,
        "offset": list(range(len(kinds))),
        "key": keys,
        "topic": topics or [TOPIC] * len(kinds),
    }
    return pa.record_batch(found, schema=KAFKA)


def shard_of(sharding: Sharding, offset: int, topic: str, partition: int) -> str:
    if isinstance(sharding, ByPartition):
        return sharding.shard_name(topic, partition)
    if isinstance(sharding, Bucket):
        return sharding.shard_name(bucket_ids(pa.array([offset]), sharding.n)[0].as_py())
    return sharding.shard_name()


@settings(max_examples=150, deadline=None, print_blob=True)
@given(
    st.sampled_from(SHARDINGS),
    st.lists(
        st.tuples(
            st.sampled_from([GOOD, NO_KEY, NOT_JSON, DELETE, NO_DELETE]), st.integers(0, 4), st.sampled_from("ab")
        ),
        min_size=1,
        max_size=30,
    ),
    st.booleans(),
)
def test_every_record_ends_in_one_place_and_order_is_kept(
    sharding: Sharding, plan: list[tuple[str, int, str]], keyed: bool
) -> None:
    kinds, partitions, topics = (list(column) for column in zip(*plan, strict=True))
    parts = list(maker(sharding, KEYED if keyed else SCHEMA).from_kafka(batch(kinds, partitions, topics)))
    rows: dict[str, list[tuple[int, bool]]] = {}
    dead: set[int] = set()
    for part in parts:
        assert part.rows.num_rows
        assert part.order is not None
        assert part.order.num_rows == part.rows.num_rows
        if part.dead:
            dead |= set(part.rows.column("offset").to_pylist())
        else:
            ids, deletes = part.rows.column("id").to_pylist(), part.rows.column(TOMBSTONE).to_pylist()
            rows.setdefault(part.shard, []).extend(zip(ids, deletes, strict=True))
            assert part.order.column("_offset").to_pylist() == ids, "the order travels with its row"
    good = [offset for offset, kind in enumerate(kinds) if kind == GOOD or (keyed and kind == DELETE)]
    assert dead == set(range(len(kinds))) - set(good)
    wanted: dict[str, list[tuple[int, bool]]] = {}
    for offset in good:
        shard = shard_of(sharding, offset, topics[offset], partitions[offset])
        wanted.setdefault(shard, []).append((offset, kinds[offset] == DELETE))
    assert rows == wanted


def test_dead_letters_keep_topic_partition_offset_error_key_and_value() -> None:
    (part,) = maker(Single()).from_kafka(batch([NOT_JSON, NO_KEY], [3, 4]))
    assert part.dead
    assert part.rows.drop_columns([TOMBSTONE, "timestamp", "headers"]).to_pylist() == [
        {
            "topic": TOPIC,
            "partition": 3,
            "offset": 0,
            "error": "not a JSON object: 'nothing'",
            "key": b"0",
            "value": b"nothing",
        },
        {
            "topic": TOPIC,
            "partition": 4,
            "offset": 1,
            "error": "column 'id' must not be null",
            "key": b"1",
            "value": b'{"note": "no id"}',
        },
    ]


def test_a_topic_that_is_the_same_for_all_rows_need_not_be_a_column() -> None:
    with_column = list(maker(ByPartition()).from_kafka(batch([GOOD, NOT_JSON], [0, 1])))
    without = list(
        maker(ByPartition(), topic=TOPIC).from_kafka(batch([GOOD, NOT_JSON], [0, 1]).drop_columns(["topic"]))
    )
    assert [(p.shard, p.dead, p.rows) for p in without] == [(p.shard, p.dead, p.rows) for p in with_column]


# -- typed frames ------------------------------------------------------------------------


def typed(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array([1, 2], pa.int64()), "note": ["a", "b"], **columns})


def route(sharding: Sharding, rows: pa.RecordBatch, **more: Any) -> list[Routed]:
    return list(RowMaker(RowSchema.of(KEYED), sharding, **more).from_typed(rows))


def test_typed_rows_are_routed_by_the_origin_that_the_frame_kept() -> None:
    rows = typed(_topic=["a", "b"], _partition=pa.array([0, 7], pa.int32()), _offset=[5, 6])
    parts = route(ByPartition(), rows)
    assert {part.shard: part.rows.column("id").to_pylist() for part in parts} == {
        "partition:a:0": [1],
        "partition:b:7": [2],
    }
    assert parts[0].rows.schema.names == ["id", "note", TOMBSTONE]


def test_a_column_of_the_table_that_is_named_topic_is_no_origin() -> None:
    schema = pa.schema([*KEYED, pa.field("topic", pa.string())])
    rows = typed(topic=["mine", "mine"], _topic=["t", "t"], _partition=pa.array([0, 0], pa.int32()), _offset=[5, 6])
    (part,) = RowMaker(RowSchema.of(schema), ByPartition()).from_typed(rows)
    assert part.shard == "partition:t:0"
    assert part.rows.column("topic").to_pylist() == ["mine", "mine"]


def test_sequence_by_may_be_a_column_of_the_table_or_one_beside_it() -> None:
    (part,) = route(Single(), typed(version=[9, 8]), sequence_by="version")
    assert part.order is not None
    assert part.order.to_pydict() == {"_sequence": [9, 8]}
    assert "version" not in part.rows.schema.names
    (part,) = route(Single(), typed(), sequence_by="id")
    assert part.rows.column("id").to_pylist() == [1, 2]


@pytest.mark.parametrize("missing", ["_topic", "_partition"])
def test_by_partition_refuses_rows_whose_origin_is_unknown(missing: str) -> None:
    origin = {"_topic": ["a", "b"], "_partition": pa.array([0, 7], pa.int32()), "_offset": [5, 6]}
    del origin[missing]
    with pytest.raises(InvalidInput, match="keep the columns _topic, _partition, _offset"):
        route(ByPartition(), typed(**origin))


@pytest.mark.parametrize("name", ["_topic", "_partition", "_offset"])
def test_an_origin_that_is_null_is_refused_by_name(name: str) -> None:
    origin: dict[str, Any] = {"_topic": ["a", "b"], "_partition": pa.array([0, 7], pa.int32()), "_offset": [5, 6]}
    origin[name] = pa.array([None, None], origin[name].type if name == "_partition" else None)
    with pytest.raises(InvalidInput, match=f"'{name}' must not be null, but 2 rows lack it"):
        route(ByPartition(), typed(**origin))


@settings(max_examples=100, deadline=None, print_blob=True)
@given(st.sampled_from([Bucket("id", 3), Single()]), st.lists(st.sampled_from([True, False, None]), min_size=1))
def test_rows_of_a_typed_frame_that_are_gone_delete_their_key_in_order(
    sharding: Sharding, gone: list[bool | None]
) -> None:
    schema = pa.schema([*KEYED, pa.field("must", pa.int64(), nullable=False)])
    numbers = list(range(len(gone)))
    # What a row that is gone has in its other columns does not count, not even a null that the table would refuse.
    must = [None if deleted else number for number, deleted in zip(numbers, gone, strict=True)]
    frame = {"id": numbers, "note": ["n"] * len(gone), "must": must, "version": numbers, "_deleted": gone}
    columns = {**frame, "must": pa.array(must, pa.int64()), "_deleted": pa.array(gone, pa.bool_())}
    parts = list(RowMaker(RowSchema.of(schema), sharding, sequence_by="version").from_typed(pa.record_batch(columns)))
    found = [row for part in parts for row in part.rows.to_pylist()]
    assert sorted((row["id"], row["must"], row["note"], row[TOMBSTONE]) for row in found) == [
        (n, None, None, True) if deleted else (n, n, "n", False) for n, deleted in zip(numbers, gone, strict=True)
    ]
    for part in parts:
        assert part.rows.schema.names == ["id", "note", "must", TOMBSTONE]
        ids, deletes = part.rows.column("id").to_pylist(), part.rows.column(TOMBSTONE).to_pylist()
        assert part.order is not None
        assert part.order.to_pydict() == {"_sequence": ids, "_stays": [not deleted for deleted in deletes]}
        assert ids == sorted(ids)
        assert {part.shard} == {shard_of(sharding, one, "", 0) for one in ids}


def test_a_column_of_the_table_that_is_called_deleted_deletes_nothing() -> None:
    schema = pa.schema([*KEYED, pa.field("_deleted", pa.bool_())])
    (part,) = RowMaker(RowSchema.of(schema), Single()).from_typed(typed(_deleted=[True, False]))
    assert part.rows.column("_deleted").to_pylist() == [True, False]
    assert part.rows.column(TOMBSTONE).to_pylist() == [False, False]


def test_what_says_that_rows_are_gone_must_be_true_or_false() -> None:
    with pytest.raises(InvalidInput, match="must be boolean, got int64"):
        route(Single(), typed(_deleted=[1, 0]))


def test_a_null_key_in_a_typed_frame_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'id' is not nullable"):
        route(Single(), pa.record_batch({"id": pa.array([None], pa.int64()), "note": ["a"]}))


def test_partition_numbers_are_taken_as_they_are() -> None:
    many = np.arange(5)
    (only,) = {p.shard for p in maker(ByPartition(max_shards=1)).from_kafka(batch([GOOD] * 5, list(many)))}
    assert only == f"partition:{TOPIC}:0"
