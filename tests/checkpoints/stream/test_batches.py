"""Batch writes hold their shards no longer than their job lives, wherever it dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.checkpoints.stream.batches import begin, free_of_batches
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import Fenced, InvalidInput
from headgate.steps import watching
from headgate.table.create import create_table
from headgate.table.table import Table
from tests.support.histories import WAL_ONLY, rows
from tests.support.life import SCHEMA
from tests.support.stores import Crash

NAME = "single"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = create_table(str(tmp_path / "table"), SCHEMA, primary_key="id")
    with made.writer(NAME, WAL_ONLY) as writer:
        writer.put(rows(1, 2))
    return made


def dies(step: str) -> None:
    if step == "open record":
        raise Crash("the job dies")


def test_a_stream_starts_where_a_job_died_between_its_claims_and_its_open_record(table: Table) -> None:
    with pytest.raises(Crash), watching(dies):
        begin(table.home, None, [NAME])
    with pytest.raises(InvalidInput, match="belongs to stream 'batch-writes'"):
        StreamDriver.open(table.home, "s", "q", [NAME])

    def free(found: list[str]) -> None:
        assert free_of_batches(table.home, table.shard_ids(), found=found) == [NAME]

    driver = StreamDriver.open(table.home, "s", "q", [NAME], free=free)
    assert list(driver.claims) == [NAME]
    assert sorted(table.scan().read_all().column("id").to_pylist()) == [1, 2]


def test_a_job_that_slept_there_is_fenced_by_the_stream(table: Table) -> None:
    def starts(step: str) -> None:
        if step == "open record":
            with watching(lambda step: None):
                StreamDriver.open(
                    table.home, "s", "q", [NAME], free=lambda found: free_of_batches(table.home, [], found=found)
                )

    with pytest.raises(Fenced), watching(starts):
        begin(table.home, None, [NAME])
