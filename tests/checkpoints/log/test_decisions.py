"""Tables: what a batch may do, how far replay_after may go, where the next batch is planned, what is visible."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import replace

import pytest

from headgate.checkpoints.log.decisions import (
    BatchDecision,
    BatchSources,
    NewPartition,
    Refusal,
    Skip,
    Write,
    decide_batch,
    starting_offsets,
)
from headgate.checkpoints.log.positions import check_listable, checkpoint_limit, is_visible, next_plan, settled_position
from headgate.checkpoints.log.records import Batch, OpaqueRange, OpenRecord, ShardClaim
from headgate.checkpoints.log.state import RECENT, Head, ShardPositions, empty, fold, replayed, unfolded
from headgate.errors import Corrupt, InvalidInput
from headgate.shards.wal.entry import SourceRange
from tests.support.logs import OTHER, SHARD, batch, batch_record, open_record, part

R = SourceRange


def unasked(topic: str, partition: int) -> int:
    raise AssertionError(f"Kafka was asked for {topic}/{partition}, and the answer decides nothing")


def head(*batches: Batch) -> Head:
    """Of a log with one open record and these batches."""
    records = [open_record()]
    for number, one in enumerate(batches):
        known = {name: getattr(one, name) for name in Batch.__dataclass_fields__}
        records.append(replace(batch_record(2 + number, 0), **known))  # type: ignore[arg-type]
    return replayed(empty("orders"), records).head


def decide(at: Head, number: int, *ranges: SourceRange, query: str = "q", earliest: int | None = None) -> BatchDecision:
    lookup = unasked if earliest is None else lambda topic, partition: earliest
    return decide_batch(at, query, number, BatchSources(ranges), lookup)


THREE = head(batch(0, 0, 10, 1), batch(1, 10, 20, 2), batch(2, 20, 30, 3))


@pytest.mark.parametrize(
    ("at", "number", "ranges", "query", "expected"),
    [
        (head(), 0, (R("t", 0, 0, 5),), "q", Write),
        (head(), 0, (R("t", 0, 123, 456),), "q", Write),
        (head(), 7, (R("t", 0, 123, 456),), "q", Refusal),
        (THREE, 3, (R("t", 0, 30, 40),), "q", Write),
        (THREE, 3, (R("t", 0, 30, 30),), "q", Write),
        (THREE, 9, (R("t", 0, 30, 40),), "q", Write),
        (THREE, 0, (R("t", 0, 30, 40),), "new", Write),
        (THREE, 2, (R("t", 0, 20, 30),), "q", Skip),
        (THREE, 1, (R("t", 0, 10, 20),), "q", Skip),
        (THREE, 2, (R("t", 0, 20, 31),), "q", Refusal),
        (THREE, 2, (R("t", 0, 30, 40),), "q", Refusal),
        (THREE, 1, (R("t", 0, 30, 40),), "q", Refusal),
        (THREE, 3, (R("t", 0, 20, 40),), "q", Refusal),
        (THREE, 3, (R("t", 0, 31, 40),), "q", Refusal),
        (THREE, 3, (R("t", 0, 30, 29),), "q", Refusal),
        (THREE, 0, (R("t", 0, 0, 10),), "new", Refusal),
        (THREE, 2, (R("t", 0, 20, 30),), "new", Refusal),
        (THREE, 3, (R("t", 0, 30, 40), R("t", 0, 30, 40)), "q", Refusal),
    ],
    ids=[
        "the first batch",
        "the first batch may start anywhere",
        "a later batch that meets an empty log",
        "goes on",
        "goes on without rows",
        "batch ids may jump if offsets do not",
        "a new query that continues exactly",
        "the last batch again",
        "an older batch again",
        "the same batch with another end",
        "the same batch with other offsets",
        "an older batch with other offsets",
        "rewound",
        "jumped",
        "backwards",
        "a new query from the beginning",
        "another query's batch of the same number",
        "one partition twice",
    ],
)
def test_a_batch_is_skipped_written_or_refused(
    at: Head, number: int, ranges: tuple[SourceRange, ...], query: str, expected: type[BatchDecision]
) -> None:
    assert type(decide(at, number, *ranges, query=query)) is expected


def test_a_skip_names_the_record_and_a_write_its_ranges() -> None:
    skip = decide(THREE, 2, R("t", 0, 20, 30))
    assert isinstance(skip, Skip)
    assert skip.record == THREE.last
    write = decide(THREE, 3, R("t", 0, 30, 40))
    assert write == Write((R("t", 0, 30, 40),), ())


def test_a_batch_that_only_the_fold_remembers_is_skipped_if_it_is_the_last() -> None:
    state = replayed(empty("orders"), [open_record(), *(batch_record(2 + n, n, 1 + n) for n in range(3))])
    folded = unfolded(fold(state, {})).head
    assert isinstance(decide(folded, 2, R("t", 0, 20, 30)), Skip)
    assert isinstance(decide(folded, 1, R("t", 0, 10, 20)), Refusal)
    assert isinstance(decide(folded, 1, R("t", 0, 30, 40)), Refusal), "a query's batch ids never go back"
    assert isinstance(decide(folded, 3, R("t", 0, 30, 40)), Write)


def test_as_many_batches_are_remembered_as_spark_keeps() -> None:
    count = RECENT + 20
    state = replayed(empty("orders"), [open_record(), *(batch_record(2 + n, n, 1 + n) for n in range(count))])
    assert len(state.head.recent) == RECENT
    assert isinstance(decide(state.head, 20, R("t", 0, 200, 210)), Skip)
    assert isinstance(decide(state.head, 19, R("t", 0, 190, 200)), Refusal)


def test_a_refusal_gives_the_offsets_to_start_from_ready_to_paste() -> None:
    at = head(
        Batch(query_id="old", batch_id=4, sources=(R("a", 0, 0, 7), R("a", 1, 5, 9), R("b", 0, 0, 3))),
        Batch(query_id="old", batch_id=5, sources=(R("a", 0, 7, 8),)),
    )
    refused = decide(at, 0, R("a", 0, 0, 8), R("a", 1, 0, 9), R("a", 2, 0, 4))
    assert isinstance(refused, Refusal)
    text = str(refused.error)
    pasted = text.split("'startingOffsets', '")[1].split("'")[0]
    assert json.loads(pasted) == {"a": {"0": 8, "1": 9, "2": -2}, "b": {"0": 3}}
    assert "a/0 goes back to 0, the log ends at 8" in text
    assert "last_query_id=old, last_batch_id=5" in text


def test_a_partition_that_a_batch_left_out_goes_on_where_it_ended() -> None:
    at = head(
        Batch(query_id="q", batch_id=0, sources=(R("t", 0, 0, 5), R("t", 1, 0, 5))),
        Batch(query_id="q", batch_id=1, sources=(R("t", 0, 5, 8),)),
    )
    assert isinstance(decide(at, 2, R("t", 0, 8, 9), R("t", 1, 5, 6)), Write)
    assert isinstance(decide(at, 2, R("t", 0, 8, 9), R("t", 1, 0, 6)), Refusal)


@pytest.mark.parametrize(
    ("start", "earliest", "expected"),
    [(0, None, Write), (7, 7, Write), (6, 7, Write), (8, 7, Refusal), (1, 0, Refusal)],
)
def test_a_new_partition_is_accepted_only_from_its_earliest_offset(
    start: int, earliest: int | None, expected: type[BatchDecision]
) -> None:
    assert type(decide(THREE, 3, R("t", 0, 30, 40), R("t", 1, start, 20), earliest=earliest)) is expected


def new_partition(at: Head, number: int, earliest: int, until: int = 20, start: int = 30) -> BatchDecision:
    sources = BatchSources((R("t", 0, start, start + 10),), (NewPartition("t", 1, until),))
    return decide_batch(at, "q", number, sources, lambda topic, partition: earliest)


def test_a_partition_that_spark_meets_first_starts_at_its_earliest_offset() -> None:
    assert new_partition(THREE, 3, 5) == Write((R("t", 0, 30, 40), R("t", 1, 5, 20)), ())


def test_retention_that_moves_a_new_partitions_start_does_not_hide_that_the_batch_is_done() -> None:
    at = head(Batch(query_id="q", batch_id=3, sources=(R("t", 0, 30, 40), R("t", 1, 5, 20))))
    assert isinstance(new_partition(at, 3, earliest=9), Skip)
    assert isinstance(new_partition(at, 3, earliest=5, until=21), Refusal)
    missing = head(Batch(query_id="q", batch_id=3, sources=(R("t", 0, 30, 40),)))
    assert isinstance(new_partition(missing, 3, earliest=5), Refusal)


def test_a_partition_that_is_new_to_spark_and_known_to_the_log_must_continue() -> None:
    """A foreign checkpoint that never saw the partition would read it again from the beginning."""
    at = head(Batch(query_id="q", batch_id=3, sources=(R("t", 0, 20, 30), R("t", 1, 5, 20))))
    assert isinstance(new_partition(at, 4, earliest=20, until=25), Write)
    assert isinstance(new_partition(at, 4, earliest=0, until=25), Refusal)


@pytest.mark.parametrize(
    ("number", "start", "until", "expected"),
    [
        (1, "4", "9", Write),
        (0, None, "4", Skip),
        (0, None, "5", Refusal),
        (1, "3", "9", Refusal),
        (1, None, "9", Refusal),
    ],
)
def test_sources_that_are_not_kafkas_continue_by_their_text(
    number: int, start: str | None, until: str, expected: type[BatchDecision]
) -> None:
    at = head(Batch(query_id="q", batch_id=0, opaque=(OpaqueRange("0", None, "4"),)))
    sources = BatchSources(opaque=(OpaqueRange("0", start, until),))
    assert type(decide_batch(at, "q", number, sources, unasked)) is expected


def test_starting_offsets_of_an_empty_log_are_earliest() -> None:
    assert starting_offsets(head(), [("t", 0)]) == '{"t":{"0":-2}}'


# -- positions ---------------------------------------------------------------------


def opened_at(barrier: int, *batches: Batch) -> Head:
    """A driver with a barrier there, after (not before) these batches of its predecessor."""
    claims = {"s0": ShardClaim(SHARD, 2, "c2", barrier)}
    before = head(*batches)
    return before.after(
        OpenRecord(record_id="o2", sequence=before.sequence + 1, stream="orders", query_id="q", shards=claims)
    )


@pytest.mark.parametrize(
    ("at", "barrier", "settled"),
    [
        (Head("orders"), None, None),
        (Head("orders"), 4, 4),
        (opened_at(9), None, 9),
        (opened_at(9), 12, 12),
        (opened_at(9, batch(0, 0, 10, 5)), None, 9),
        (head(batch(0, 0, 10, 1, 5)), None, 5),
    ],
    ids=["nothing known", "a shard claimed later", "own barrier", "a later barrier", "barrier", "listed"],
)
def test_the_settled_position_is_the_highest_of_barrier_and_listed(
    at: Head, barrier: int | None, settled: int | None
) -> None:
    assert settled_position(at, SHARD, barrier=barrier) == settled


def test_another_shards_positions_settle_nothing() -> None:
    assert settled_position(opened_at(9, batch(0, 0, 10, 5)), OTHER) is None


@pytest.mark.parametrize(
    ("at", "advanced", "plan"),
    [
        (opened_at(9), None, 10),
        (opened_at(9, batch(0, 0, 10, 5)), None, 10),
        (head(batch(0, 0, 10, 1, 5)), None, 6),
        (opened_at(9), 14, 15),
        (opened_at(9), 3, 10),
    ],
)
def test_a_batch_is_planned_above_barrier_listed_and_what_the_driver_advanced(
    at: Head, advanced: int | None, plan: int
) -> None:
    assert next_plan(at, SHARD, advanced=advanced) == plan


def test_a_shard_that_was_not_claimed_has_no_plan() -> None:
    with pytest.raises(InvalidInput):
        next_plan(opened_at(9), OTHER)


@pytest.mark.parametrize(
    ("next_position", "planned", "limit"),
    [(15, None, 14), (10, None, 9), (15, 12, 11), (15, 10, 9), (12, 15, 11)],
    ids=["over dead entries", "nothing to go over", "not to the plan", "the plan is next", "not past the tip"],
)
def test_a_checkpoint_goes_over_dead_entries_and_never_to_the_plan_of_a_batch_in_flight(
    next_position: int, planned: int | None, limit: int
) -> None:
    assert checkpoint_limit(opened_at(9), SHARD, next_position=next_position, planned=planned) == limit


def test_a_checkpoint_does_not_move_a_shard_of_which_nothing_is_settled() -> None:
    assert checkpoint_limit(opened_at(9), OTHER, next_position=5, planned=None) is None


@pytest.mark.parametrize(
    ("positions", "replay_after", "refused"),
    [
        ((10,), {}, False),
        ((9,), {}, True),
        ((10, 11), {SHARD: 9}, False),
        ((10, 11), {SHARD: 10}, True),
        ((10, 11), {OTHER: 50}, False),
        ((5,), {}, True),
    ],
)
def test_a_record_lists_only_what_a_replay_reads(
    positions: tuple[int, ...], replay_after: Mapping[uuid.UUID, int], refused: bool
) -> None:
    one = Batch(query_id="q", batch_id=1, shards={"s0": part(*positions)})
    if refused:
        with pytest.raises(InvalidInput):
            check_listable(opened_at(9, batch(0, 0, 10, 5)), one, replay_after)
    else:
        check_listable(opened_at(9, batch(0, 0, 10, 5)), one, replay_after)


@pytest.mark.parametrize(
    ("attempt", "position", "visible"),
    [
        (None, 99, True),
        ("a", 5, True),
        ("b", 5, False),
        ("a", 6, False),
        ("whoever", 2, True),
        ("whoever", 3, True),
        ("whoever", 4, False),
        ("whoever", 1, False),
    ],
)
def test_an_entry_is_visible_without_an_attempt_or_where_a_record_lists_it(
    attempt: str | None, position: int, visible: bool
) -> None:
    assert is_visible(attempt, position, ShardPositions("s0", {5: "a"}, ((2, 3),))) is visible


def test_a_tagged_entry_of_a_shard_that_no_log_knows_is_invisible() -> None:
    assert not is_visible("a", 1, None)
    assert is_visible(None, 1, None)


# -- the log's own checks --------------------------------------------------------------


def test_a_batch_cannot_follow_an_open_record_of_another_driver() -> None:
    with pytest.raises(Corrupt):
        opened_at(9).after(batch_record(3, 0, 12, open_id="o1"))


def test_a_record_cannot_leave_one_out() -> None:
    with pytest.raises(Corrupt):
        head().after(batch_record(3, 0, 1))
