"""`headgate ledger rebuild`: what is refused before Spark starts, and the page's commands in processes of their own."""

from __future__ import annotations

import json
import shlex
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

import headgate as hg
from headgate.checkpoints.log.archive.archive import LogArchive
from headgate.checkpoints.log.fold import put_fold
from headgate.cli.spark import SNAPSHOT_TASKS, ledger_settings
from headgate.spark.versions import spark_line
from headgate.streaming.delta.tables import delta_settings
from headgate.table.table import Table
from tests.cli.calls import Headgate, started
from tests.support.pages import blocks_run_by, commands_of
from tests.support.streams import COLUMNS, Record, Stream


@pytest.fixture
def orders(tmp_path: Path) -> Table:
    table = hg.create_table(str(tmp_path / "orders"), COLUMNS, sharding=hg.by_partition())
    stream = Stream(table, "orders", 2)
    for number in range(3):
        records = [Record(p, number, b'{"id": %d, "note": "n"}' % (10 * number + p)) for p in range(2)]
        stream.commit([(0, number, number + 1), (1, number, number + 1)], records)
    return table


def test_a_stream_or_ledger_that_cannot_be_is_told_before_spark_starts(headgate: Headgate, orders: Table) -> None:
    told = headgate("ledger", "rebuild", orders.uri, "--stream", "nobody", "--ledger", "./ledger")
    assert told.exit_code == 3
    assert "its streams are: orders" in told.stderr
    told = headgate("ledger", "rebuild", orders.uri, "--stream", "orders", "--ledger", "ledger")
    assert told.exit_code == 2
    assert "must be a path or a name" in told.stderr
    told = headgate("ledger", "rebuild", orders.uri, "--stream", "orders", "--ledger", "lake.ledger")
    assert "headgate.rebuild_ledger" in told.stderr


def test_a_ledger_on_s3a_is_reached_as_the_checkpoint_is_or_told_before_anything_is_made(
    headgate: Headgate, orders: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delta = delta_settings()
    keys = {"access_key_id": "k", "secret_access_key": "s", "endpoint": "http://there:9000"}
    local = ledger_settings(str(tmp_path / "ledger"), keys)
    assert local == {**delta, SNAPSHOT_TASKS: "2"}
    monkeypatch.setenv("HEADGATE_CACHE", str(tmp_path))
    rebuild = ("ledger", "rebuild", orders.uri, "--stream", "orders", "--ledger", "s3a://lake/ledger")
    uri = tmp_path / "new"
    ingest = ("ingest", "--servers", "127.0.0.1:1", "--topic", "t", "--table", str(uri), "--create", "id bigint")
    for command in (rebuild, (*ingest, "--ledger", "s3a://lake/ledger")):
        assert "jars fetch s3a" in headgate(*command).stderr
    assert not uri.exists()
    jar = tmp_path / "jars" / f"s3a-{spark_line()}" / "hadoop-aws-1.jar"
    jar.parent.mkdir(parents=True)
    jar.touch()
    found = ledger_settings("s3a://lake/ledger", keys)
    assert local.items() <= found.items()
    assert (found["spark.jars"], found["spark.hadoop.fs.s3a.access.key"]) == (str(jar), "k")


@pytest.mark.spark
@pytest.mark.deep
def test_the_commands_of_the_page_make_a_ledger_of_the_commit_log_alone(orders: Table, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    (block,) = blocks_run_by(__file__)
    dry, real = (shlex.split(one.replace("/lake/", f"{tmp_path}/"))[1:] for one in commands_of(block))
    assert (dry, real[-1]) == (real[:-1], "--apply")
    for command in (dry, real):
        process = started(*command, "--output", "json")
        out, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
        done = json.loads(out)
        assert (done["records"], done["rows"], done["replaced"], done["kept"], done["lost_upto"]) == (3, 6, 0, 0, 0)
        assert done["applied"] is (command is real)
        assert bool(list(ledger.glob("_delta_log/*.json"))) is (command is real)

    # A ledger that is dropped after its records were folded and collected comes back as well.
    archive = LogArchive(orders.home.records, "orders", orders.uri)
    put_fold(archive.log, archive.log.read(), {})
    assert orders.collect_garbage(min_age=timedelta(0), apply=True).kept == ()
    assert [name.span for name in archive.names()] == [(2, 3)]
    shutil.rmtree(ledger)
    process = started(*dry, "--output", "json")
    out, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert json.loads(out) == {**done, "applied": False}
    assert not ledger.exists()
