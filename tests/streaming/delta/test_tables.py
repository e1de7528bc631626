"""Delta without Spark: how tables are named, what a session must have, when a mirror can be, and how one follows."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from structlog.contextvars import get_contextvars

import headgate
from headgate.errors import InvalidInput
from headgate.streaming.datasource.types import spark_schema
from headgate.streaming.delta.mirror import checked_mode
from headgate.streaming.delta.mirror_batches import merge_statement
from headgate.streaming.delta.tables import DeltaName, delta_settings, missing_settings, quoted, sql_type, text
from headgate.streaming.observe import follower
from headgate.streaming.observe.follower import Follower
from tests.support.life import SCHEMA


def test_a_delta_table_is_a_path_or_a_name_in_a_catalog(tmp_path: Path) -> None:
    assert DeltaName(str(tmp_path)).sql == f"delta.`{tmp_path}`"
    assert DeltaName("./ledger").path == str(Path("ledger").absolute())
    assert DeltaName("s3://u:p@bucket/ledger").shown == "s3://bucket/ledger"
    assert DeltaName("lake.ledger").sql == "`lake`.`ledger`"
    assert DeltaName("main.lake.ledger").path is None
    assert DeltaName("/a`b/c").sql == "delta.`/a``b/c`"
    for bad in ("ledger", "", "a.b.c.d", "a.b;drop"):
        with pytest.raises(InvalidInput, match="must be a path or a name"):
            DeltaName(bad, "ledger")
    assert text("it's \\ here") == "'it\\'s \\\\ here'"


def test_names_in_sql_are_quoted_at_every_depth() -> None:
    assert quoted("a`b") == "`a``b`"
    deep = pa.struct([("x`y", pa.int64()), ("many", pa.list_(pa.struct([("p>`q", pa.string())])))])
    named = spark_schema(pa.schema([("a", deep), ("b", pa.map_(pa.string(), pa.struct([("k`v", pa.float64())])))]))
    assert [sql_type(field.dataType) for field in named] == [
        "struct<`x``y`: bigint, `many`: array<struct<`p>``q`: string>>>",
        "map<string, struct<`k``v`: double>>",
    ]


def test_a_session_without_delta_is_told_what_is_missing() -> None:
    settings = delta_settings()
    assert missing_settings(settings) is None
    more = {**settings, "spark.sql.extensions": f"other.Extension, {settings['spark.sql.extensions']}"}
    assert missing_settings(more) is None
    assert "spark.sql.extensions" in (missing_settings({}) or "")
    del settings["spark.sql.catalog.spark_catalog"]
    assert "spark_catalog" in (missing_settings(settings) or "")


def test_a_mode_that_cannot_keep_the_mirror_equal_is_refused(tmp_path: Path) -> None:
    keyed = headgate.create_table(str(tmp_path / "k"), SCHEMA, primary_key="id", sharding=headgate.single())
    plain = headgate.create_table(str(tmp_path / "p"), SCHEMA, sharding=headgate.single())
    assert checked_mode(None, keyed) == checked_mode("merge", keyed) == "merge"
    assert checked_mode(None, plain) == checked_mode("append", plain) == "append"
    for mode, table in (("append", keyed), ("merge", plain), ("replace", plain)):
        with pytest.raises(InvalidInput):
            checked_mode(mode, table)
    with pytest.raises(InvalidInput, match="must be a path"):
        headgate.DeltaMirror(plain, "mirror")


def test_a_merge_names_every_column_and_deletes_before_it_updates() -> None:
    found = merge_statement("delta.`/m`", ["id", "a`b"], ["id"])
    assert found.index("DELETE") < found.index("UPDATE SET t.`id` = s.`id`, t.`a``b` = s.`a``b`")
    assert found.endswith("WHEN NOT MATCHED AND NOT s._deleted THEN INSERT (`id`, `a``b`) VALUES (s.`id`, s.`a``b`)")


def test_a_follower_never_holds_its_stream_up_and_tries_the_newest_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(follower, "LONGEST_PAUSE", 0.02)
    away, done, said, known = threading.Event(), [], [], []
    away.set()

    def work(wanted: int) -> None:
        if away.is_set():
            raise OSError("away")
        done.append(wanted)

    def say(failed: Exception | None, first: bool) -> None:
        said.append((type(failed).__name__, first))
        known.append(get_contextvars())

    one: Follower[int] = Follower("test-follower", work, say, {"query": "q", "stream": "s"})
    before = threading.active_count()
    assert (one.is_current, before) == (True, threading.active_count())
    for number in range(100):
        one.update(number)
    _until(lambda: one.failures > 3)
    assert not one.is_current

    def fail(_: int) -> None:
        raise OSError("away")

    failing: Follower[int] = Follower("failing", fail, lambda failed, first: None)
    failing.update(1)
    _until(lambda: failing.is_failing)
    began = time.monotonic()
    assert not failing.stop()
    assert time.monotonic() - began < failing.patience / 2, "one that fails is not waited for"
    away.clear()
    _until(lambda: not one.is_failing)
    assert one.stop()
    assert done == [99]
    assert said[0] == ("OSError", True)
    assert [first for _, first in said].count(True) == 1
    assert said[-1] == ("NoneType", False)
    assert all(facts == {"query": "q", "stream": "s"} for facts in known), "every log line of the thread has them"
    assert Follower("never", work, say).stop()

    # Stopped while it works: what fails then is said to nobody, since nobody tries again.
    begun, go, late = threading.Event(), threading.Event(), []

    def slow(_: int) -> None:
        begun.set()
        go.wait(60)
        raise OSError("its Spark is gone")

    two: Follower[int] = Follower("slow", slow, lambda failed, first: late.append(failed))
    two.update(1)
    assert begun.wait(60)
    assert not two.stop(wait=False)
    go.set()
    _until(lambda: two.failures == 1)
    assert two._thread is not None
    two._thread.join(60)
    assert late == []


def _until(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
