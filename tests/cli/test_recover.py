"""`headgate recover`: the numbers it shows, what it leaves alone, and what it mends."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from headgate.checkpoints.log.commit_log import CommitLog
from headgate.errors import InvalidInput
from headgate.shards.sharding import by_partition
from headgate.streaming.sink import ShardSink
from headgate.table.create import create_table
from headgate.table.table import Table
from tests.cli.calls import Headgate, files_of
from tests.support.streams import COLUMNS, QUERY, Record, Stream

GOOD = b'{"id": %d, "note": "n"}'


@pytest.fixture
def streamed(tmp_path: Path) -> Table:
    """Batches 0 and 1 of topic orders: [0, 10) and [10, 20) of one partition."""
    table = create_table(str(tmp_path / "orders"), COLUMNS, sharding=by_partition())
    stream = Stream(table, "orders", 1)
    for number in range(2):
        start = number * 10
        stream.commit([(0, start, start + 10)], [Record(0, n, GOOD % n) for n in range(start, start + 10)])
    return table


def spark_directory(root: Path, planned: int, done: int, step: int = 10) -> None:
    """A query that has logged and finished so many batches of ten offsets each."""

    def put(name: str, content: str) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    put("metadata", json.dumps({"id": QUERY}))
    put("sources/0/0", '\0v1\n{"orders":{"0":0}}')
    for number in range(planned):
        put(f"offsets/{number}", f'v1\n{{}}\n{{"orders":{{"0":{(number + 1) * step}}}}}')
        if number < done:
            put(f"commits/{number}", 'v1\n{"nextBatchWatermarkMs":0}')


def told(headgate: Headgate, table: Table, checkpoint: Path, *options: str) -> dict[str, Any]:
    result = headgate("recover", table.uri, "--spark-checkpoint", str(checkpoint), *options, "--output", "json")
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize(("planned", "done", "state"), [(2, 2, "aligned"), (2, 1, "log ahead"), (3, 2, "spark ahead")])
def test_what_a_start_mends_by_itself_is_told_with_its_numbers_and_left_alone(
    headgate: Headgate, streamed: Table, tmp_path: Path, planned: int, done: int, state: str
) -> None:
    spark_directory(tmp_path / "c", planned, done)
    before = files_of(streamed.home)
    found = told(headgate, streamed, tmp_path / "c", "--apply")
    assert (found["state"], found["needs_rebuild"], found["rebuilt"]) == (state, False, None)
    assert found["next"].startswith("start the query")
    assert found["spark"] == {"query": QUERY, "logged_batch": planned - 1, "done_batch": done - 1}
    log = found["log"]
    assert (log["record"], log["query"], log["batch"], log["batch_record"], log["rows"]) == (3, QUERY, 1, 3, 10)
    (offsets,) = found["offsets"]
    assert (offsets["topic"], offsets["table"], offsets["spark"]) == ("orders", 20, done * 10)
    assert offsets["logged"] == (None if planned == done else [done * 10, planned * 10])
    assert found["positions"] == [
        {
            "shard": "partition:orders:0",
            "last_batch": [2],
            "listed": 2,
            "tip": 3,
            "replay_after": 0,
            "epoch": 1,
        }
    ]
    assert files_of(streamed.home) == before, "nothing was written"


def test_a_lost_checkpoint_is_rebuilt_only_with_apply(headgate: Headgate, streamed: Table, tmp_path: Path) -> None:
    lost = told(headgate, streamed, tmp_path / "c")
    assert (lost["state"], lost["needs_rebuild"], lost["rebuilt"]) == ("lost", True, None)
    assert "--apply" in lost["next"]
    assert not (tmp_path / "c").exists()
    rebuilt = told(headgate, streamed, tmp_path / "c", "--apply")["rebuilt"]
    assert rebuilt["old_directory"] is None
    assert json.loads((tmp_path / "c/metadata").read_text()) == {"id": rebuilt["query"]}
    assert (tmp_path / "c/commits/1").exists()
    assert told(headgate, streamed, tmp_path / "c")["state"] == "aligned"
    opened = CommitLog(streamed.home.records, "orders", streamed.uri).read().head.opened
    assert opened is not None
    assert (opened.query_id, opened.sequence) == (rebuilt["query"], rebuilt["open_record"])


def test_a_damaged_checkpoint_is_kept_aside(headgate: Headgate, streamed: Table, tmp_path: Path) -> None:
    spark_directory(tmp_path / "c", 3, 2)
    (tmp_path / "c/offsets/2").write_text("")
    found = told(headgate, streamed, tmp_path / "c", "--apply")
    assert "Spark's offsets/2 does not start with a version." in found["means"]
    aside = Path(found["rebuilt"]["old_directory"])
    assert aside.parent == tmp_path
    assert (aside / "offsets/2").read_text() == ""
    assert not (tmp_path / "c/offsets/2").exists(), "the batch is planned again"


def test_an_application_of_one_s_own_is_told_by_its_sink_before_it_starts(
    headgate: Headgate, streamed: Table, tmp_path: Path
) -> None:
    sink = ShardSink(streamed.uri, stream="orders")
    spark_directory(tmp_path / "c", 3, 2)
    sink.check(str(tmp_path / "c"))
    (tmp_path / "c/metadata").write_text("")
    with pytest.raises(InvalidInput, match="has no query id") as refused:
        sink.check(str(tmp_path / "c"))
    command = str(refused.value.advice).removeprefix("rebuild it: headgate ")
    assert headgate(*shlex.split(command)).exit_code == 0
    sink.check(str(tmp_path / "c"))


def test_it_is_told_in_plain_words(headgate: Headgate, streamed: Table, tmp_path: Path) -> None:
    spark_directory(tmp_path / "c", 3, 2)
    shown = " ".join(headgate("recover", streamed.uri, "--spark-checkpoint", str(tmp_path / "c")).stdout.split())
    assert "Spark ahead: stream 'orders'" in shown
    assert "and the sink will write it" in shown.replace("│ │ ", "")


def test_a_damaged_shard_is_named_and_exits_6(headgate: Headgate, streamed: Table, tmp_path: Path) -> None:
    spark_directory(tmp_path / "c", 2, 2)
    (Path(streamed.uri) / streamed.shard("partition:orders:0").wal_key(1)).unlink()
    result = headgate("recover", streamed.uri, "--spark-checkpoint", str(tmp_path / "c"), "--output", "json")
    found = json.loads(result.stdout)
    assert result.exit_code == 6
    assert [one["code"] for one in found["findings"]] == ["commit-entry-missing"]
    assert "10 rows of batch 0" in found["findings"][0]["lost"]
    assert "headgate fsck" in found["next"]


def test_the_stream_must_be_named_where_nothing_tells_it(headgate: Headgate, streamed: Table, tmp_path: Path) -> None:
    Stream(streamed, "clicks", 1).commit([(0, 0, 1)], [Record(0, 0, GOOD % 1)])
    arguments = ("recover", streamed.uri, "--spark-checkpoint", str(tmp_path / "c"))
    refused = headgate(*arguments)
    assert refused.exit_code == 2
    assert "--stream: clicks, orders" in refused.stderr
    assert headgate(*arguments, "--stream", "orders").exit_code == 0
    missing = headgate(*arguments, "--stream", "nobody")
    assert missing.exit_code == 3
    assert "its streams are: clicks, orders" in missing.stderr


def test_sources_that_do_not_fit_are_refused_before_anything_is_fenced(
    headgate: Headgate, streamed: Table, tmp_path: Path
) -> None:
    before = files_of(streamed.home)
    result = headgate(
        "recover", streamed.uri, "--spark-checkpoint", str(tmp_path / "c"), "--source", "other", "--apply"
    )
    assert result.exit_code == 2
    assert "--source" in result.stderr
    assert files_of(streamed.home) == before
    assert not (tmp_path / "c").exists()
