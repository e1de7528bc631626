from __future__ import annotations

import json
import pickle
from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.cli.options.sharding import SHARDING
from headgate.connectors.lance.dataset import NativeSharding
from headgate.errors import Corrupt, InvalidInput
from headgate.records import build, plain, understood
from headgate.shards.rows.schema import PRIMARY_KEY, RowSchema
from headgate.shards.sharding import (
    Sharding,
    bucket,
    by_partition,
    single,
)

ALL = [single(), bucket("id", 4), bucket("ünï", 1024), by_partition(), by_partition(3, key_is_partitioned=True)]


@dataclass(frozen=True)
class Spread:
    sharding: Sharding


def rows(key: str | None = None) -> RowSchema:
    fields = [pa.field("id", pa.int64(), False), pa.field("note", pa.string()), pa.field("raw", pa.binary(), False)]
    marked = [field.with_metadata({PRIMARY_KEY: "true"}) if field.name == key else field for field in fields]
    return RowSchema.of(pa.schema(marked))


@pytest.mark.parametrize("sharding", ALL, ids=str)
def test_is_printed_as_python_and_the_command_line_write_it(sharding: Sharding) -> None:
    assert eval(repr(sharding), {"single": single, "bucket": bucket, "by_partition": by_partition}) == sharding
    assert SHARDING.convert(str(sharding), None, None) == sharding


@pytest.mark.parametrize("sharding", ALL, ids=str)
def test_survives_json_and_pickle(sharding: Sharding) -> None:
    assert build(Spread, json.loads(json.dumps(plain(Spread(sharding))))) == Spread(sharding)
    assert pickle.loads(pickle.dumps(sharding)) == sharding


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"kind": "hash"},
        {"kind": ["bucket"]},
        {"kind": "bucket", "column": "id"},
        {"kind": "bucket", "column": "id", "n": "4"},
        {"kind": "bucket", "column": "id", "n": 0},
        {"kind": "by_partition", "max_shards": 0},
        {"kind": "by_partition", "key_is_partitioned": "yes"},
    ],
    ids=str,
)
def test_json_that_is_no_sharding_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(Corrupt), understood("It"):
        build(Spread, {"sharding": data})


def test_names_are_what_people_expect() -> None:
    assert single().shard_name() == "single"
    assert bucket("id", 4).shard_name(3) == "bucket-00003"
    assert bucket("id", 2).known_names() == ("bucket-00000", "bucket-00001")
    assert by_partition().shard_name("orders", 7) == "partition:orders:7"
    assert by_partition(max_shards=4).shard_name("orders", 7) == "partition:orders:3"


@given(st.text(min_size=1), st.integers(0, 10**6), st.text(min_size=1), st.integers(0, 10**6))
def test_two_partitions_never_share_a_name(topic: str, partition: int, other: str, number: int) -> None:
    sharding = by_partition()
    one, two = sharding.shard_name(topic, partition), sharding.shard_name(other, number)
    assert (one == two) == ((topic, partition) == (other, number))
    sharding.check_name(one)


@given(st.text(min_size=1), st.integers(0, 10**6), st.integers(1, 100))
def test_with_max_shards_a_topic_never_has_more(topic: str, partition: int, most: int) -> None:
    sharding = by_partition(most)
    name = sharding.shard_name(topic, partition)
    assert name in {sharding.shard_name(topic, number) for number in range(most)}
    sharding.check_name(name)


@pytest.mark.parametrize("sharding", ALL, ids=str)
@pytest.mark.parametrize("name", ["", "bucket-9999", "BUCKET-00000", "single ", "partition:", "partition:a:01", "../x"])
def test_a_name_that_no_shard_can_have_is_refused(sharding: Sharding, name: str) -> None:
    with pytest.raises(InvalidInput, match="The table has no shard") as refused:
        sharding.check_name(name)
    assert "use " in str(refused.value)


def test_a_partition_at_or_above_max_shards_is_refused() -> None:
    by_partition(3).check_name("partition:a:2")
    with pytest.raises(InvalidInput, match="numbers below 3"):
        by_partition(3).check_name("partition:a:3")


def test_a_bucket_or_partition_that_is_not_there_has_no_name() -> None:
    for number in (-1, 4):
        with pytest.raises(InvalidInput):
            bucket("id", 4).shard_name(number)
    with pytest.raises(InvalidInput):
        by_partition().shard_name("orders", -1)
    with pytest.raises(InvalidInput):
        by_partition().shard_name("", 0)


@pytest.mark.parametrize(
    ("sharding", "key", "message"),
    [
        (bucket("idd", 4), None, "did you mean 'id'"),
        (bucket("zzz", 4), None, "the table has"),
        (bucket("raw", 4), "raw", "bucket does not support column"),
        (bucket("note", 4), "id", "not part of the primary key"),
        (by_partition(), "id", "key_is_partitioned=True"),
    ],
    ids=str,
)
def test_what_cannot_keep_a_key_together_is_refused(sharding: Sharding, key: str | None, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        sharding.validate(rows(key))


@pytest.mark.parametrize("sharding", [single(), bucket("id", 4), by_partition(key_is_partitioned=True)], ids=str)
def test_what_keeps_a_key_together_is_accepted(sharding: Sharding) -> None:
    sharding.validate(rows("id"))


@pytest.mark.parametrize("sharding", [single(), bucket("note", 4), by_partition(2)], ids=str)
def test_without_a_key_any_sharding_is_accepted(sharding: Sharding) -> None:
    sharding.validate(rows())


@pytest.mark.parametrize(("column", "n"), [("id", 0), ("id", 1025), ("id", True), ("id", 2.0), (None, 2)])
def test_a_bucket_that_native_refuses_cannot_be_made(column: object, n: object) -> None:
    with pytest.raises(InvalidInput):
        bucket(column, n)  # type: ignore[arg-type]


def test_native_gets_its_own_words_where_it_has_them() -> None:
    assert single().native() == NativeSharding("unsharded")
    assert bucket("id", 4).native() == NativeSharding("bucket", "id", 4)
    assert by_partition(4).native() == NativeSharding()
