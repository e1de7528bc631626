"""Tables: where a log ends, whose record has a slot, how far a flush goes, whether a tail is still the shard's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headgate.checkpoints.log.decisions import is_own, log_end
from headgate.checkpoints.log.positions import flush_limit, is_stale
from headgate.checkpoints.log.records import LogRecord, OpenRecord, ShardClaim
from headgate.checkpoints.log.state import Head, LogMachine, empty, replayed
from headgate.errors import Corrupt
from tests.support.logs import SHARD, batch_record, open_record

RECORD = OpenRecord(record_id="mine", sequence=3, stream="s", query_id="q", shards={})


@pytest.mark.parametrize(
    ("records", "folds", "end"),
    [((), (), 0), ((1, 2, 3), (), 3), ((3, 1), (2,), 3), ((1,), (5,), 5), ((), (5, 2), 5)],
    ids=["empty", "records", "a fold below", "the records are collected", "two folds"],
)
def test_a_log_ends_with_its_last_record_or_fold(records: tuple[int, ...], folds: tuple[int, ...], end: int) -> None:
    assert log_end(records, folds) == end


def test_a_record_is_known_by_its_id_and_by_nothing_else() -> None:
    assert is_own(RECORD, replace(RECORD, query_id="other"))
    assert not is_own(RECORD, replace(RECORD, record_id="other"))


@pytest.mark.parametrize(
    ("listed", "folded", "limit"),
    [((), (), None), ((4, 7), (), 7), ((), ((1, 3), (5, 9)), 9), ((12,), ((1, 3),), 12)],
)
def test_a_flush_goes_to_the_last_listed_position(
    listed: tuple[int, ...], folded: tuple[tuple[int, int], ...], limit: int | None
) -> None:
    assert flush_limit(listed, folded) == limit


@pytest.mark.parametrize(
    ("latest", "end", "stale"),
    [(4, None, False), (5, None, True), (4, 5, False), (5, 6, False), (6, 6, True), (9, 6, True)],
    ids=[
        "a loss",
        "missing because it was flushed",
        "nothing has moved",
        "flushed to just below the end",
        "the end is covered: it was a collected range",
        "far behind",
    ],
)
def test_a_tail_is_stale_where_a_flush_explains_what_is_missing(latest: int, end: int | None, stale: bool) -> None:
    assert is_stale(4, latest, end) is stale


def broken_by(*records: LogRecord, lost_before: int | None = None) -> list[tuple[str, int, bool]]:
    found: list[tuple[str, int, bool]] = []
    machine = LogMachine(Head("orders"), lambda one: found.append((one.rule, one.sequence, one.refused)))
    for record in records:
        if record.sequence == lost_before:
            machine.lose()
        machine.step(record)
    return found


def test_the_machine_tells_each_broken_rule_and_goes_on() -> None:
    opened, first, second = open_record(1), batch_record(2, 0, 1), batch_record(3, 1, 2)
    assert broken_by(opened, first, second) == []
    assert broken_by(first, opened, second) == [("fenced-batch", 2, True)]
    assert broken_by(opened, first, batch_record(3, 1, 1)) == [("position-twice", 3, True)]
    fenced = open_record(1, {"s0": ShardClaim(SHARD, 1, "claim", 5)})
    assert broken_by(fenced, first) == [("position-fenced", 2, False)]
    assert broken_by(opened, first, batch_record(3, 2, 2)) == [("offsets-jump", 3, False)]


def test_after_a_lost_record_the_machine_holds_nothing_against_later_ones_that_it_may_have_explained() -> None:
    opened, later = open_record(1), batch_record(4, 2, 9, open_id="o9")
    assert broken_by(opened, batch_record(2, 0, 1), later) == [("fenced-batch", 4, True), ("offsets-jump", 4, False)]
    assert broken_by(opened, batch_record(2, 0, 1), later, lost_before=4) == []


@pytest.mark.parametrize("records", [(batch_record(2, 0, 1),), (open_record(1), batch_record(3, 0, 1))])
def test_a_reader_refuses_what_no_driver_wrote(records: tuple[LogRecord, ...]) -> None:
    with pytest.raises(Corrupt):
        replayed(empty("orders"), records)
