"""A commit record as rows of a ledger: every offset is found, every sum is right."""

from __future__ import annotations

import random
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

import headgate
from headgate.checkpoints.log.records import BatchRecord, OpaqueRange, ShardPart
from headgate.shards.sharding import Sharding
from headgate.shards.wal.entry import SourceRange
from headgate.streaming.delta.ledger_rows import (
    LEDGER_SCHEMA,
    Folded,
    LedgerKey,
    LedgerRecord,
    ledger_table,
    placements,
)

AT = datetime(2026, 11, 16, 20, 0, tzinfo=UTC)
KEY = LedgerKey("id", "/lake/orders", "s")


def record(
    shards: dict[str, tuple[int, ...]],
    sources: tuple[SourceRange, ...] = (),
    dead: dict[str, tuple[int, ...]] | None = None,
    **more: Any,
) -> BatchRecord:
    def part(name: str, positions: tuple[int, ...]) -> ShardPart:
        return ShardPart(uuid.uuid5(uuid.NAMESPACE_OID, name), "a", positions, 10 * len(positions), 100)

    return BatchRecord(
        record_id="r",
        sequence=7,
        stream="s",
        open_id="o",
        query_id="q",
        batch_id=5,
        sources=sources,
        shards={name: part(name, positions) for name, positions in shards.items()},
        dead_letters={f"dead-letters:{name}": part(name, positions) for name, positions in (dead or {}).items()},
        **more,
    )


def rows(sharding: Sharding, *parts: BatchRecord | Folded) -> list[dict[str, Any]]:
    dated = [part if isinstance(part, Folded) else LedgerRecord(part, AT) for part in parts]
    found = ledger_table(KEY, sharding, dated)
    assert found.schema == LEDGER_SCHEMA
    return list(found.to_pylist())


def where(found: list[dict[str, Any]], topic: str, partition: int, offset: int) -> list[tuple[str | None, Any]]:
    """What the SQL of docs/guides/delta.md asks."""
    return [
        (row["shard"], row["positions"])
        for row in found
        if (row["topic"], row["partition"]) == (topic, partition)
        and (row["from_offset"] or 0) <= offset < row["until_offset"]
    ]


def test_a_partitions_shard_holds_that_partitions_offsets_and_nothing_else() -> None:
    sources = (SourceRange("t", 0, 5, 9), SourceRange("t", 1, 0, 4), SourceRange("t", 2, 3, 3))
    found = rows(headgate.by_partition(), record({"partition:t:0": (4, 6), "partition:t:1": (9,)}, sources))
    assert where(found, "t", 0, 8) == [("partition:t:0", [4, 6])]
    assert where(found, "t", 1, 0) == [("partition:t:1", [9])]
    assert where(found, "t", 1, 4) == where(found, "t", 2, 3) == []
    assert [row["candidates"] for row in found] == [1, 1]
    first = found[0]
    assert (first["first_position"], first["last_position"], first["row_count"]) == (4, 6, 20)
    assert (first["batch"], first["sequence"], first["committed_at"]) == (5, 7, AT)


def test_over_buckets_every_shard_with_rows_is_a_candidate_and_sums_stay_right() -> None:
    sources = (SourceRange("t", 0, 5, 9), SourceRange("t", 1, 0, 4))
    found = rows(headgate.bucket("id", 4), record({"bucket-00001": (4,), "bucket-00003": (2,)}, sources))
    assert where(found, "t", 0, 5) == [("bucket-00001", [4]), ("bucket-00003", [2])]
    assert {row["candidates"] for row in found} == {2}
    assert sum(row["row_count"] or 0 for row in found) == 20
    assert sum(row["byte_count"] or 0 for row in found) == 200


def test_partitions_that_share_a_shard_each_find_it() -> None:
    sources = (SourceRange("t", 0, 5, 9), SourceRange("t", 2, 0, 4), SourceRange("t", 1, 1, 2))
    made = record({"partition:t:0": (4,), "partition:t:1": (1,)}, sources)
    found = rows(headgate.by_partition(max_shards=2), made)
    assert where(found, "t", 0, 5) == where(found, "t", 2, 0) == [("partition:t:0", [4])]
    assert sum(row["row_count"] or 0 for row in found) == made.rows


def test_dead_letters_holes_empty_batches_and_other_sources_have_rows_too() -> None:
    sources = (SourceRange("t", 0, 5, 9), SourceRange("t", 1, 0, 4))
    (dead, hole) = rows(headgate.by_partition(), record({}, sources, {"partition:t:0": (3,)}))
    assert (dead["shard"], dead["positions"], dead["dead_positions"], dead["dead_letters"]) == (
        "partition:t:0",
        None,
        [3],
        10,
    )
    assert (hole["shard"], hole["row_count"], hole["partition"]) == (None, 0, 1)
    (empty,) = rows(headgate.single(), record({}))
    assert (empty["sequence"], empty["topic"], empty["row_count"]) == (7, None, 0)
    (rate,) = rows(headgate.single(), record({"single": (1,)}, opaque=(OpaqueRange("0", None, "5"),)))
    assert (rate["shard"], rate["topic"], rate["candidates"]) == ("single", None, None)
    replay = record({"single": (1,)}, opaque=(OpaqueRange("dead-letters:single", None, "x"),))
    assert [row["kind"] for row in rows(headgate.single(), replay)] == ["replay"]


def test_rows_of_a_window_that_closes_claim_no_offsets_of_another_partition() -> None:
    sources = (SourceRange("t", 0, 5, 9),)
    made = record({"partition:t:1": (4,)}, sources)
    assert placements(made, headgate.by_partition()) == [("partition:t:1", None), (None, sources[0])]


def test_what_was_folded_says_which_offsets_it_had_read() -> None:
    found = rows(headgate.single(), Folded(9, {("t", 1): (0, 50), ("t", 0): (None, 7)}))
    assert [(row["kind"], row["sequence"], row["from_offset"], row["until_offset"]) for row in found] == [
        ("folded", 9, None, 7),
        ("folded", 9, 0, 50),
    ]
    assert where(found, "t", 1, 49) == [(None, None)]
    assert [row["kind"] for row in rows(headgate.single(), Folded(9))] == ["folded"]


@pytest.mark.parametrize("sharding", [headgate.by_partition(), headgate.by_partition(2), headgate.bucket("id", 3)])
def test_every_offset_of_a_random_batch_is_found_and_only_in_shards_that_it_may_be_in(sharding: Sharding) -> None:
    for seed in range(50):
        chance = random.Random(seed)
        sources = tuple(SourceRange("t", p, s := chance.randrange(9), s + chance.randrange(5)) for p in range(4))
        names = sharding.known_names() or {sharding.shard_name("t", p) for p in range(4)}  # type: ignore[call-arg, arg-type]
        held: dict[str, tuple[int, ...]] = {
            name: (chance.randrange(9),) for name in sorted(names) if chance.random() < 0.6
        }
        made = record(held, sources)
        found = rows(sharding, made)
        assert sum(row["row_count"] or 0 for row in found) == made.rows, f"seed {seed}"
        for part in sources:
            for offset in range(part.start, part.until):
                places = where(found, "t", part.partition, offset)
                assert places, f"seed {seed}: {part}"
                assert len({name for name, _ in places}) == len(places), f"seed {seed}: {part}"
