"""Dead letters that are replayed: exactly once, whatever happens, and the stream goes on as if nothing had been."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.dead_letters import ReplayProgress
from headgate.checkpoints.log.decisions import BatchSources, Skip, decide_batch
from headgate.checkpoints.log.state import Head
from headgate.errors import InvalidInput, Transient
from headgate.shards.sharding import by_partition
from headgate.shards.wal.entry import SourceRange
from headgate.steps import watching
from headgate.streaming.decode import api as decode
from headgate.streaming.replay import replay_dead_letters
from headgate.table.create import create_table
from headgate.table.table import Table
from tests.cli.calls import Headgate, files_of
from tests.support.streams import COLUMNS, QUERY, Record, Stream


def event(number: int, note: str = "late") -> bytes:
    """A change event: the stream reads plain JSON and refuses it."""
    return json.dumps({"op": "c", "after": {"id": number, "note": note}}).encode()


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Rows 1 and 2; five dead letters, four of which are change events."""
    table = create_table(
        str(tmp_path / "orders"), COLUMNS, primary_key="id", sharding=by_partition(key_is_partitioned=True)
    )
    orders = Stream(table, "orders", 2)
    orders.commit(
        [(0, 0, 4), (1, 0, 1)],
        [
            Record(0, 0, b'{"id": 1, "note": "a"}'),
            Record(0, 1, event(10)),
            Record(0, 2, b"garbage"),
            Record(0, 3, event(11)),
            Record(1, 0, event(20)),
        ],
    )
    orders.commit([(0, 4, 6)], [Record(0, 4, b'{"id": 2, "note": "b"}'), Record(0, 5, event(12))])
    return table


def replay(table: Table, **options: Any) -> Any:
    return hg.replay_dead_letters(
        table, stream="orders", decode=hg.decode.debezium(table.home.schema.logical), **options
    )


def rows(table: Table) -> dict[int, str]:
    found = [(row["id"], row["note"]) for row in table.scan().read_all().to_pylist()]
    assert len({number for number, _ in found}) == len(found)
    return dict(found)


def head(table: Table) -> Head:
    return CommitLog(table.home.records, "orders", table.uri).read().head


ALL = {1: "a", 2: "b", 10: "late", 11: "late", 12: "late", 20: "late"}


def test_a_replay_says_what_it_would_do_does_it_once_and_a_second_one_adds_nothing(
    headgate: Headgate, table: Table
) -> None:
    command = ("dead-letters", "replay", table.uri, "--stream", "orders", "--decode", "debezium", "--output", "json")
    before = files_of(table.home)
    told = json.loads(headgate(*command).stdout)
    assert (told["letters"], told["rows"], told["refused"], told["applied"]) == (5, 4, 1, False)
    assert told["examples"][0] | {"error": ""} == {"topic": "orders", "partition": 0, "offset": 2, "error": ""}
    assert files_of(table.home) == before
    done = json.loads(headgate(*command, "--apply").stdout)
    assert (done["rows"], done["refused"], done["applied"]) == (4, 1, True)
    assert rows(table) == ALL
    after = files_of(table.home)
    again = json.loads(headgate(*command, "--apply").stdout)
    assert (again["letters"], again["rows"], again["applied"]) == (1, 0, False)
    assert files_of(table.home) == after
    shown = headgate("dead-letters", "show", table.uri, "--waiting", "--output", "json").stdout.splitlines()
    assert [json.loads(line)["offset"] for line in shown] == [2]
    assert headgate("fsck", table.uri).exit_code == 0


def test_the_query_goes_on_as_if_there_had_been_no_replay(table: Table) -> None:
    last = head(table).last
    replay(table, apply=True)
    now = head(table)
    assert now.last == last
    assert now.ends == {("orders", 0): 6, ("orders", 1): 1}
    again = BatchSources((SourceRange("orders", 0, 4, 6),))
    assert isinstance(decide_batch(now, QUERY, 1, again, lambda topic, partition: 0), Skip)
    Stream(table, "orders", 2).commit([(0, 6, 7)], [Record(0, 6, b'{"id": 10, "note": "newer"}')])
    assert rows(table) == {**ALL, 10: "newer"}


def test_letters_that_were_refused_again_can_be_tried_again_alone(table: Table) -> None:
    replay(table, apply=True)

    class Lenient:
        schema = pa.schema([("id", pa.int64()), ("note", pa.string())])

        def decode(self, values: pa.Array) -> Any:
            assert values.to_pylist() == [b"garbage"]
            return hg.decode.json(self.schema).decode(pa.array([b'{"id": 30, "note": "mended"}'], pa.binary()))

    done = hg.replay_dead_letters(table, stream="orders", decode=Lenient(), apply=True)
    assert (done.letters, done.rows, done.refused) == (1, 1, 0)
    assert rows(table) == {**ALL, 30: "mended"}
    assert replay(table).letters == 0


def test_a_key_that_the_table_has_is_not_overwritten_unless_that_is_wanted(table: Table) -> None:
    Stream(table, "orders", 2).commit([(0, 6, 7)], [Record(0, 6, b'{"id": 11, "note": "newer"}')])
    with pytest.raises(InvalidInput, match="older values"):
        replay(table, apply=True)
    assert replay(table).present == 1
    replay(table, apply=True, overwrite=True)
    assert rows(table) == ALL


def test_a_crash_anywhere_replays_nothing_twice_and_loses_nothing(tmp_path: Path, table: Table) -> None:
    class Crash(Exception): ...

    steps: list[str] = []
    dry = table.clone(str(tmp_path / "dry"))
    with watching(steps.append):
        replay(dry, apply=True)
    assert {"commit", "committed", "replayed"} <= set(steps)
    for number in range(len(steps)):
        copy = table.clone(str(tmp_path / f"copy{number}"))
        left = iter(range(number))

        def pause(_: str, left: Any = left) -> None:
            if next(left, None) is None:
                raise Crash

        with pytest.raises(Crash):
            with watching(pause):
                replay(copy, apply=True)
        assert set(rows(copy)) in ({1, 2}, set(ALL)), f"step {number}: {steps[number]}"
        replay(copy, apply=True)
        assert rows(copy) == ALL, f"step {number}: {steps[number]}"
        assert sum(copy.scan().read_all().num_rows for _ in range(1)) == len(ALL)


def test_what_was_replayed_survives_its_text() -> None:
    state = ReplayProgress().after(3, pa.array([True, True, False, True]).to_numpy(zero_copy_only=False))
    assert ReplayProgress.of(state.text) == state
    assert state.waiting(3, 4).tolist() == [True, True, False, True]
    assert state.waiting(2, 2).tolist() == [False, False]
    assert state.waiting(4, 2).tolist() == [True, True]
    done = state.after(3, pa.array([False, False, False, True]).to_numpy(zero_copy_only=False))
    assert done.waiting(3, 4).tolist() == [False, False, False, True]


def test_a_column_that_was_added_before_the_replay_took_the_stream_over_is_not_passed_over(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), COLUMNS, primary_key="id", sharding=by_partition(key_is_partitioned=True))
    event = {"op": "c", "after": {"id": 2, "note": "n", "extra": "x"}}
    Stream(table, "t").commit([(0, 0, 1)], [Record(0, 0, json.dumps(event).encode())])
    added: list[Table] = []

    def add(step: str) -> None:
        if step == "read" and not added:
            added.append(hg.open_table(table.uri).add_column(pa.field("extra", pa.string())))

    with pytest.raises(Transient, match="Columns were added"):
        with watching(add):
            replay_dead_letters(table, stream="t", decode=decode.debezium(table.schema), apply=True)
    (now,) = added
    replay_dead_letters(now, stream="t", decode=decode.debezium(now.schema), apply=True)
    assert now.scan().read_all().to_pylist() == [{"id": 2, "note": "n", "extra": "x"}]
