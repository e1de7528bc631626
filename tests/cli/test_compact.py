from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from headgate.checkpoints.jobs.state import Delayed, JobFailure, MaintenanceState, put_state
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.search.build.build import BUILD_STAGES
from headgate.shards.sharding import by_partition
from headgate.table.create import create_table
from headgate.table.table import Table
from tests.cli.calls import Headgate
from tests.support.streams import COLUMNS, Record, Stream
from tests.support.tables import claimed

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
TEXTS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Four rows in two SSTables, and one in the WAL alone."""
    table = create_table(str(tmp_path / "orders"), SCHEMA, primary_key="id")
    with table.writer("single") as writer:
        for number in range(2):
            writer.put(pa.record_batch({"id": [number, 10 + number]}, schema=SCHEMA))
            writer.flush_memtable()
        writer.put(pa.record_batch({"id": [20]}, schema=SCHEMA))
    return table


def files(table: Table) -> set[str]:
    return {info.key for info in table.home.store.list("")}


def base_rows(table: Table) -> int:
    return int(lance.dataset(table.uri).count_rows())


def test_without_apply_it_says_what_would_go_in_and_who_would_be_fenced(headgate: Headgate, table: Table) -> None:
    before = files(table)
    told = json.loads(headgate("compact", table.uri, "--output", "json").stdout)
    assert files(table) == before
    assert told["applied"] is False
    assert told["sstables"] == 2
    assert [(one["name"], one["sstables"], one["rows"], one["owner"]) for one in told["shards"]] == [
        ("single", 2, 4, None)
    ]


def test_a_stream_that_would_be_fenced_is_named_and_goes_on_until_apply(headgate: Headgate, table: Table) -> None:
    driver = StreamDriver.open(table.home, "orders", "query", ["single"])
    told = json.loads(headgate("compact", table.uri, "--output", "json").stdout)
    assert told["shards"][0]["fences"] == "stream 'orders'"
    epoch = claimed(table)[0].epoch
    assert epoch == driver.claims["single"].epoch
    assert headgate("compact", table.uri, "--apply").exit_code == 0
    after = claimed(table)[0]
    assert (after.owner, after.epoch, after.sstables) == ("orders", epoch + 1, 0)


def test_with_apply_the_base_has_them_and_the_table_is_the_same(headgate: Headgate, table: Table) -> None:
    done = json.loads(headgate("compact", table.uri, "--apply", "--output", "json").stdout)
    assert (done["applied"], done["sstables"], done["rows"]) == (True, 2, 4)
    assert base_rows(table) == 4
    assert table.scan().read_all().num_rows == 5
    again = json.loads(headgate("compact", table.uri, "--apply", "--output", "json").stdout)
    assert again["sstables"] == 0


@pytest.fixture
def texts(tmp_path: Path) -> Table:
    """Two rows of text in an SSTable."""
    table = create_table(str(tmp_path / "texts"), TEXTS, primary_key="id", full_text="note")
    with table.writer("single") as writer:
        writer.put(pa.record_batch({"id": [1, 2], "note": ["late delivery", "paid"]}, schema=TEXTS))
        writer.flush_memtable()
    return table


def test_what_goes_in_is_indexed_and_it_says_so(headgate: Headgate, texts: Table) -> None:
    done = json.loads(headgate("compact", texts.uri, "--apply", "--output", "json").stdout)
    assert (done["sstables"], done["index_segments"]) == (1, 1)
    assert json.loads(headgate("index", "show", texts.uri, "--output", "json").stdout)["uncovered_fragments"] == 0
    again = json.loads(headgate("compact", texts.uri, "--apply", "--output", "json").stdout)
    assert (again["sstables"], again["index_segments"]) == (0, 0)


def test_progress_is_drawn_on_a_terminal_and_nowhere_else(texts: Table) -> None:
    ours, theirs = os.openpty()
    drawn = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):  # the other side is closed
            while data := os.read(ours, 65536):
                drawn.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    code = "from headgate.cli import main; main(prog_name='headgate')"
    command = [sys.executable, "-c", code, "compact", texts.uri, "--apply", "--output", "json"]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, env=env, check=True, timeout=120)
    os.close(theirs)
    reader.join(30)
    os.close(ours)
    assert json.loads(done.stdout)["index_segments"] == 1, "the result is in the pipe, alone"
    shown = drawn.decode()
    assert "compacting" in shown
    assert "1/1" in shown
    for stage in BUILD_STAGES:
        assert f"index: {stage.replace('_', ' ')}" in shown
    quiet = subprocess.run(command, capture_output=True, env=env, check=True, timeout=120)
    assert quiet.stderr == b""


def test_with_flush_and_without_apply_it_says_what_would_be_flushed_and_apply_does_that(
    headgate: Headgate, tmp_path: Path
) -> None:
    table = create_table(str(tmp_path / "t"), COLUMNS, sharding=by_partition())
    for name, mode in (("flushed", "memtable"), ("left", "wal")):
        stream = Stream(table, name, mode=mode)  # type: ignore[arg-type]
        stream.commit([(0, 0, 2)], [Record(0, n, json.dumps({"id": n}).encode()) for n in range(2)])
    before = files(table)
    told = json.loads(headgate("compact", table.uri, "--flush", "--output", "json").stdout)
    assert files(table) == before
    assert {(one["name"], one["wal_entries"], one["does"], one["fences"]) for one in told["flush"]} == {
        ("partition:flushed:0", 1, "flush", "stream 'flushed'"),
        ("partition:left:0", 1, "none: its stream is WAL-only", None),
    }
    assert "flushed or compacted" in headgate("compact", table.uri, "--flush").stdout
    done = json.loads(headgate("compact", table.uri, "--flush", "--apply", "--output", "json").stdout)
    assert (done["rows"], base_rows(table)) == (2, 2)
    assert "'left'" in done["note"]


def test_with_flush_rows_in_the_wal_alone_go_in_as_well(headgate: Headgate, table: Table) -> None:
    done = headgate("compact", table.uri, "--flush", "--apply")
    assert done.exit_code == 0
    assert "Compacted" in done.stdout
    assert base_rows(table) == 5


def test_old_versions_go_by_age_and_one_that_may_be_read_is_refused(headgate: Headgate, table: Table) -> None:
    refused = headgate("compact", table.uri, "--keep-versions", "5m", "--apply")
    assert refused.exit_code == 2
    assert "--nothing-else-runs" in refused.stderr
    before = len(lance.dataset(table.uri).versions())
    options = ("--keep-versions", "0s", "--nothing-else-runs", "--apply", "--output", "json")
    done = json.loads(headgate("compact", table.uri, *options).stdout)
    assert done["versions_removed"] >= before
    assert len(lance.dataset(table.uri).versions()) == 1
    assert table.scan().read_all().num_rows == 5


def test_help_has_an_example_and_a_missing_table_a_next_step(headgate: Headgate, tmp_path: Path) -> None:
    assert "headgate compact ./orders --apply" in headgate("compact", "--help").stdout
    missing = headgate("compact", str(tmp_path / "nothing"))
    assert missing.exit_code == 3
    assert "Next:" in missing.stderr


def test_status_shows_what_fails_what_waits_and_what_to_do(headgate: Headgate, table: Table) -> None:
    StreamDriver.open(table.home, "orders", "query", ["single"])
    failure = JobFailure("compaction", 3, "The base is away.", "2024-01-01T00:00:00+00:00", "in 4 s")
    delayed = Delayed("sstables", "70 SSTables of a shard wait, and the limit is 64", "2024-01-01T00:00:00+00:00")
    state = MaintenanceState("orders", flushes=7, failures=(failure,), delayed=delayed, notes=("Restart the query.",))
    state = replace(state, cached_bytes=123_456, cache_limit=7_654_321)
    put_state(table.home.records, state)
    told = json.loads(headgate("status", table.uri, "--output", "json").stdout)
    (shown,) = told["maintenance"]
    assert (shown["flushes"], shown["failures"][0]["times"], shown["delayed"]["reason"]) == (7, 3, "sstables")
    text = " ".join(headgate("status", table.uri).stdout.split())
    assert "compaction failed 3 times" in text
    assert "the limit is 64" in text
    assert "Restart the query." in text
    assert "123,456" in text
    assert "7,654,321" in text
