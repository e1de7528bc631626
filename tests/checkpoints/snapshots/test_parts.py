"""A table cut into parts: together they are the table of one instant, whatever happens between planning and reading."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from headgate.checkpoints.gc.base import tidy_base
from headgate.checkpoints.jobs.policy import BasePolicy
from headgate.checkpoints.snapshots.parts import part_batches
from headgate.checkpoints.snapshots.splits import BasePart, ReadPlan, SsTablePart, TailPart, grouped, plan_at, plan_read
from headgate.checkpoints.snapshots.take import READ_PREFIX
from headgate.errors import Expired, InvalidInput
from headgate.shards.config import WriterConfig
from headgate.shards.writer import ShardWriter
from headgate.table.table import Table
from tests.support.compactions import KINDS, Models, claimed, keys, make_table, one_round, open_writer, rows, scanned
from tests.support.datasets import Pairs, pairs

NOW = timedelta(0)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def made(models: Models, kind: str, tmp_path: Path) -> tuple[Table, Pairs]:
    return models.copy(tmp_path / "table", kind)


def planned(table: Table, hold: float | None = 3600) -> ReadPlan:
    return plan_read(table.home, table.shard_ids(), hold)


def read(plan: ReadPlan, filter: str | None = None) -> Pairs:
    plan = pickle.loads(pickle.dumps(plan))
    batches = [batch for part in plan.parts for batch in part_batches(plan, part, None, filter)]
    return pairs(pa.Table.from_batches(batches, schema=plan.home.schema.logical.remove_metadata()))


def collected(table: Table) -> None:
    """Everything goes that nobody holds, versions of the base too."""
    tidy_base(table.home, BasePolicy(keep_versions=NOW, max_small=2))
    table.collect_garbage(min_age=NOW, apply=True)


def test_the_parts_together_are_the_table(made: tuple[Table, Pairs]) -> None:
    table, expected = made
    plan = planned(table)
    kinds = [type(part) for part in plan.parts]
    assert kinds == [BasePart, SsTablePart, SsTablePart, SsTablePart, TailPart]
    assert read(plan) == expected == scanned(table)
    assert read(plan, "id > 4 AND note <> 'c'") == [one for one in expected if one[0] > 4 and one[1] != "c"]


def test_fragments_may_be_read_apart(made: tuple[Table, Pairs]) -> None:
    table, expected = made
    plan = plan_at(table.home, planned(table).at, part_bytes=1)
    assert sum(isinstance(part, BasePart) for part in plan.parts) == 2
    assert read(plan) == expected


def test_an_older_row_does_not_come_back_because_the_newest_is_filtered_out(models: Models, tmp_path: Path) -> None:
    table, _ = models.copy(tmp_path / "table", "key")
    assert read(planned(table), "note = 'a'") == []
    assert read(planned(table), "note = 'base'") == [(70, "base"), (71, "base"), (72, "base")]


def test_what_was_planned_is_read_after_flush_compaction_tidying_and_collection(
    made: tuple[Table, Pairs], kind: str
) -> None:
    table, expected = made
    plan = planned(table)
    with open_writer(table) as writer:
        if kind == "key":
            writer.delete(keys(1, 70))
        writer.put(rows((4, "later"), (99, "later")))
        writer.flush_memtable()
    assert one_round(claimed(table)) is not None
    collected(table)
    assert read(plan) == expected
    assert read(planned(table)) == scanned(table) != expected
    table.drop_checkpoint(plan.at.name)
    collected(table)
    with pytest.raises(Expired, match="start the read again"):
        read(plan)


def test_a_read_that_holds_nothing_writes_nothing_and_is_told_when_it_is_too_late(made: tuple[Table, Pairs]) -> None:
    table, expected = made
    before = sorted(info.key for info in table.home.store.list(""))
    plan = planned(table, hold=None)
    assert read(plan) == expected
    assert sorted(info.key for info in table.home.store.list("")) == before
    assert one_round(claimed(table)) is not None
    collected(table)
    with pytest.raises(Expired):
        read(plan)


def test_reads_that_are_over_are_dropped_by_the_next_one(made: tuple[Table, Pairs]) -> None:
    table, _ = made
    old = planned(table, hold=1e-6)
    long = planned(table)
    kept = planned(table)
    assert {one.checkpoint.name for one in table.checkpoints()} == {long.at.name, kept.at.name}
    assert old.at.name.startswith(READ_PREFIX)
    with pytest.raises(InvalidInput, match="readers"):
        table.checkpoint(name="read/mine")


def test_a_checkpoint_is_read_by_the_same_parts(made: tuple[Table, Pairs]) -> None:
    table, expected = made
    table.checkpoint(name="then")
    with open_writer(table) as writer:
        writer.put(rows((1, "later"), (100, "later")))
    stored = next(one for one in table.checkpoints() if one.checkpoint.name == "then")
    assert read(plan_at(table.home, stored.checkpoint)) == expected


def test_columns_are_those_of_the_instant(made: tuple[Table, Pairs]) -> None:
    table, expected = made
    plan = planned(table)
    table.rename_column("note", "text").add_column(pa.field("more", pa.int64()))
    assert read(plan) == expected
    now = planned(table.refreshed())
    names = {name for part in now.parts for batch in part_batches(now, part) for name in batch.schema.names}
    assert names == {"id", "text", "more"}
    with pytest.raises(InvalidInput, match="Column 'note' not found"):
        list(part_batches(now, now.parts[0], ["note"]))


def test_an_empty_table_has_no_parts(tmp_path: Path, kind: str) -> None:
    table = make_table(tmp_path / "empty", kind)
    assert planned(table).parts == ()


def test_a_tail_without_a_key_is_read_entry_by_entry(tmp_path: Path) -> None:
    table = make_table(tmp_path / "table", "no key")
    with ShardWriter.open(table.home, table.shard("single").id, WriterConfig(enable_memtable=False)) as writer:
        for number in range(20):
            writer.put(rows((number, "n")))
    plan = planned(table)
    found: Iterator[pa.RecordBatch] = part_batches(plan, plan.parts[-1])
    assert next(found).num_rows == 1
    assert sum(batch.num_rows for batch in found) == 19


@pytest.mark.parametrize(
    ("sizes", "limit", "groups"),
    [
        ([], 10, []),
        ([(0, 5)], 10, [(0,)]),
        ([(0, 5), (1, 5), (2, 1)], 10, [(0, 1), (2,)]),
        ([(0, 50), (1, 5), (2, 5)], 10, [(0,), (1, 2)]),
        ([(0, 5), (1, 50), (2, 5)], 10, [(0,), (1,), (2,)]),
    ],
)
def test_neighbours_share_a_part_up_to_a_size(
    sizes: list[tuple[int, int]], limit: int, groups: list[tuple[int, ...]]
) -> None:
    assert grouped(sizes, limit) == groups
