"""Tables: where a log ends, whose record has a slot, how far a flush goes, whether a tail is still the shard's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headgate.checkpoints.log.decisions import is_own, log_end
from headgate.checkpoints.log.positions import flush_limit, is_stale
from headgate.checkpoints.log.records import OpenRecord

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
