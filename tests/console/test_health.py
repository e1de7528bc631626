"""Jobs, checkpoints and checks: what a driver said, what is pinned, and checks that write nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headgate.checkpoints.jobs.state import (
    Collected,
    Delayed,
    JobFailure,
    JobProgress,
    MaintenanceState,
    put_state,
    timestamp,
)
from headgate.console.server import Console
from headgate.errors import Fenced
from headgate.table.table import open_table
from tests.console.test_pages import words
from tests.support.consoles import HOSTILE, Answer, ask, console_of, orders


def start(console: Console, name: str, path: str = "/t/orders/health", **headers: str) -> Answer:
    own = {"Origin": f"http://127.0.0.1:{console.port}", "Content_Type": "application/x-www-form-urlencoded"}
    return ask(console, path, "POST", f"check={name}", **{**own, **headers})


def ended(console: Console, sign: str) -> str:
    """The page once a check has ended."""
    for _ in range(600):
        page = ask(console, "/t/orders/health").text
        if ">running<" not in page and sign in words(page):
            return words(page)
        ask(console, "/events", "HEAD")
    raise AssertionError(f"never showed {sign!r}: {words(page)}")


def test_jobs_show_what_runs_what_failed_and_what_waits(tmp_path: Path) -> None:
    table = orders(tmp_path / "orders", batches=2, rows=4, partitions=1)
    state = MaintenanceState(
        "orders",
        flushes=7,
        running=("compaction", "indexing"),
        progress=(JobProgress("compaction", timestamp(40), 3, 12), JobProgress("indexing", timestamp(5), 0, 1)),
        failures=(JobFailure("flush", 3, f"The store is away. {HOSTILE}", timestamp(90), "in 8 s"),),
        delayed=Delayed("unflushed bytes", "2.0 GiB are unflushed, and 1 GiB may be", timestamp(30)),
        collected=Collected(timestamp(3600), 12, 34_567),
        notes=("Restart the query.",),
        at=timestamp(4),
    )
    put_state(table.home.records, state)
    with console_of(table.uri) as console:
        page = ask(console, "/t/orders/jobs")
        said = words(page.text)
        assert re.search(r"running compaction 25 % 3 of 12 shards, for \d+ s", said)
        assert re.search(r"running indexing for \d+ s", said), "one piece has no share"
        assert "failing flush" in said
        assert "3 tries in a row" in said
        assert "Batches wait" in said
        assert "12 objects, 33.8 KiB" in said
        assert "Restart the query." in said
        assert "<script>alert" not in page.text
        assert "needs attention" in words(ask(console, "/").text)
        assert ask(console, "/runbook/Batches%20that%20wait").status == 200


def test_checkpoints_say_what_they_pin_and_until_when(tmp_path: Path) -> None:
    table = orders(tmp_path / "orders", batches=2, rows=4, partitions=2)
    opened = open_table(table.uri)
    opened.checkpoint(name="kept", note=HOSTILE)
    opened.checkpoint(name="a day", expires="1d")
    opened.clone(str(tmp_path / "clone"))
    with console_of(table.uri) as console:
        page = ask(console, "/t/orders/jobs").text
        said = words(page)
    assert "kept named" in said
    assert "it is dropped" in said, "one without an end stays until it is dropped"
    assert "in 24 h" in said
    assert "clone" in said
    assert "<img" not in page


def test_fsck_and_doctor_run_when_they_are_started_and_write_nothing(tmp_path: Path) -> None:
    table = orders(tmp_path / "orders", batches=2, rows=4, partitions=2)
    root = Path(table.uri)
    with console_of(table.uri) as console:
        before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
        assert "It has not run" in words(ask(console, "/t/orders/health").text)
        assert start(console, "fsck").status == 303
        assert "no problems" in ended(console, "no problems")
        assert start(console, "doctor").status == 303
        assert "fit" in ended(console, "orders, streams: orders")
        assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
        (root / table.shard("partition:orders:1").wal_key(1)).unlink()
        start(console, "fsck")
        assert "wal-hole" in ended(console, "error") or "missing" in ended(console, "error")


@pytest.mark.parametrize(
    ("name", "headers", "status"),
    [
        ("fsck", {"Origin": "http://evil.example"}, 403),
        ("fsck", {"Origin": "null"}, 403),
        ("fsck", {"Origin": "null", "Sec_Fetch_Site": "same-origin"}, 303),
        ("gc", {}, 400),
        ("x" * 2_000, {}, 413),
    ],
)
def test_only_the_own_pages_start_a_check(tmp_path: Path, name: str, headers: dict[str, str], status: int) -> None:
    orders(tmp_path / "orders", batches=1, rows=4, partitions=1)
    with console_of(tmp_path / "orders") as console:
        assert start(console, name, **headers).status == status
        assert ask(console, "/t/orders/health?check=fsck").status == 200
        assert ask(console, "/", "POST", Origin=f"http://127.0.0.1:{console.port}").status == 405


def test_the_runbook_has_a_page_for_every_error(tmp_path: Path) -> None:
    with console_of(tmp_path) as console:
        fenced = words(ask(console, "/runbook/Fenced").text)
        assert " ".join((Fenced.__doc__ or "-").split()) in fenced
        assert ask(console, "/runbook/..%2f..%2fetc").status == 404
        assert ask(console, "/runbook/__builtins__").status == 404
