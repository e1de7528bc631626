"""An executor that dies, and two attempts of one task at once, on a Spark with executor processes: each row once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.shards import names
from tests.support.runs import Topic, check_table, make_table, row
from tests.support.services import MakeTopic
from tests.support.tables import claimed

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

ROWS = 12_000
"""Per partition and batch: two tasks a batch, one per partition."""


@pytest.mark.deep
def test_a_lost_executor_and_two_attempts_at_once_leave_no_row_twice(
    tmp_path: Path, kafka_servers: str, make_topic: MakeTopic
) -> None:
    topic = Topic(kafka_servers, make_topic(2), 2)
    topic.put_numbers(range(4 * ROWS))
    table = make_table(tmp_path, headgate.by_partition())
    told: dict[str, Any] = {
        "table": table.uri,
        "servers": kafka_servers,
        "topic": topic.name,
        "checkpoint": str(tmp_path / "checkpoint"),
        "log": str(tmp_path / "spark.log"),
        "flag": str(tmp_path / "flag"),
        "max_offsets": 2 * ROWS,
        # The last row of partition 1 in the first of two batches.
        "trigger": json.dumps(row(2 * ROWS - 1)),
    }
    command = [sys.executable, "-m", "tests.recovery.cluster_process", json.dumps(told)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:] + Path(told["log"]).read_text()[-3000:]
    assert (tmp_path / "flag, second attempt").exists(), "the executor was lost, and its task ran again"
    check_table(table, topic)
    state = CommitLog(table.home.records, "s", table.uri).read()
    assert state.head.last is not None
    assert state.head.last.batch_id == 1
    listed = sum(len(positions.attempts) for positions in state.shards.values())
    stored = sum(
        names.wal_position(one.key) is not None
        for info in claimed(table)
        for one in table.home.store.list(names.wal_folder(info.id) + "/")
    )
    assert stored > listed + len(claimed(table)), "the first attempt wrote as well, and none of it counts"
