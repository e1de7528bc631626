"""A stream that runs in this process tells every batch, and ends with the error that ended it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

import headgate
from headgate.checkpoints.log.records import BatchRecord
from headgate.checkpoints.spark.directory import SparkCheckpoint
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import Fenced, PermissionDenied, StoreFull
from headgate.streaming.running import Done, RunningStream, _Watched
from headgate.streaming.sink import ShardSink
from headgate.streaming.spark.session import SparkFailed
from tests.support.disk import filled, small_disk
from tests.support.runs import make_table


class Query:
    """Spark's query object, as far as it is asked here: what happens while one waits for its end."""

    def __init__(self, *waits: Callable[[], None]) -> None:
        self._waits = list(waits)
        self.stopped = False

    def awaitTermination(self, timeout: float) -> bool:
        self._waits.pop(0)()
        return not self._waits

    def stop(self) -> None:
        self.stopped = True


def done(number: int) -> Done:
    return Done(
        BatchRecord(
            record_id=f"r{number}", sequence=number + 2, stream="s", open_id="o", query_id="q", batch_id=number
        ),
        0.1,
        skipped=False,
    )


@pytest.fixture
def watched(tmp_path: Path) -> _Watched:
    return _Watched(ShardSink(make_table(tmp_path, headgate.single()), stream="s"))


@pytest.mark.parametrize("typed", [True, False], ids=["ours", "Spark's"])
def test_a_batch_that_is_done_just_before_the_query_fails_is_told(watched: _Watched, typed: bool) -> None:
    def last_moment() -> None:
        if typed:
            watched.error = Fenced("Another driver took over the stream.")
        watched._done.put(done(1))
        raise RuntimeError("[STREAM_FAILED] with credentials")

    query = Query(lambda: watched._done.put(done(0)), last_moment)
    told: list[int] = []
    with pytest.raises(Fenced if typed else SparkFailed) as error:
        told.extend(one.record.batch_id for one in running(query, watched).batches())
    assert told == [0, 1]
    assert query.stopped
    assert "credentials" not in str(error.value)


def test_a_query_that_fails_while_it_is_stopped_has_stopped(watched: _Watched) -> None:
    asked: list[bool] = []

    def stop_now() -> None:
        asked.append(True)
        raise RuntimeError("interrupted")

    query = Query(lambda: watched._done.put(done(0)), stop_now)
    assert [one.record.batch_id for one in running(query, watched).batches(lambda: bool(asked))] == [0]
    assert query.stopped


def contended() -> None:
    raise RuntimeError("[STREAM_FAILED] by [CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log.")


def test_a_newcomer_whose_query_another_one_got_in_the_way_of_starts_it_again(watched: _Watched) -> None:
    started: list[Query] = []

    def begin() -> Any:
        later = Query(lambda: watched._done.put(done(len(started))), *([] if started else [contended]))
        started.append(later)
        return later

    told = [one.record.batch_id for one in RunningStream(begin, watched).batches()]
    assert (told, len(started), started[0].stopped) == ([1, 2], 2, True)


def test_a_query_that_is_always_in_the_way_of_another_ends(watched: _Watched) -> None:
    started: list[Query] = []

    def begin() -> Any:
        started.append(Query(contended))
        return started[-1]

    with pytest.raises(SparkFailed, match="CONCURRENT_STREAM_LOG_UPDATE"):
        list(RunningStream(begin, watched).batches())
    assert len(started) == 6


def test_whoever_ran_the_stream_waits_for_the_newcomer_and_is_fenced(watched: _Watched) -> None:
    home = watched._sink.table.home
    first = StreamDriver.open(home, "s", "q", ())
    watched._sink._run = SimpleNamespace(driver=first, table=watched._sink.table)  # type: ignore[assignment]

    def successor_comes() -> None:
        watched.has_committed = True
        Thread(target=StreamDriver.open, args=(home, "s", "q", ())).start()
        contended()

    with pytest.raises(Fenced, match="took over") as fenced:
        list(running(Query(successor_comes), watched).batches())
    assert fenced.value.detail["successor_record_id"] != first.head.opened.record_id  # type: ignore[union-attr]


def test_a_checkpoint_that_spark_cannot_write_to_is_told_by_what_the_disk_says(
    watched: _Watched, tmp_path: Path
) -> None:
    (tmp_path / "c").mkdir()
    place = SparkCheckpoint(str(tmp_path / "c"))

    def fails() -> Any:
        raise RuntimeError("mkdir failed")

    with pytest.raises(SparkFailed):
        RunningStream(fails, watched, checkpoint=place)
    assert list((tmp_path / "c").iterdir()) == [], "what was tried is gone"
    with small_disk(tmp_path / "disk", 1) as mounted:
        if not mounted:
            pytest.skip("no file system may be mounted here")
        place = SparkCheckpoint(str(tmp_path / "disk/c"))
        with filled(tmp_path / "disk"), pytest.raises(StoreFull, match="failed to write its checkpoint"):
            RunningStream(fails, watched, checkpoint=place)
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "disk")], check=True)
        with pytest.raises(PermissionDenied, match="Read-only"):
            RunningStream(fails, watched, checkpoint=place)


def running(query: Any, watched: _Watched) -> RunningStream:
    return RunningStream(lambda: query, watched)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_program_that_waits_ends_its_query_and_its_sink_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    sink = ShardSink(make_table(tmp_path, headgate.single()), stream="s")
    before = signal.getsignal(number)
    query = Query(lambda: signal.raise_signal(number), lambda: pytest.fail("it waits on"))
    headgate.run(query, sink)  # type: ignore[arg-type]
    assert query.stopped
    assert signal.getsignal(number) is before


def test_a_program_that_waits_is_told_the_sinks_own_error(tmp_path: Path) -> None:
    sink = ShardSink(make_table(tmp_path, headgate.single()), stream="s")

    def fails() -> None:
        sink.error = Fenced("Another driver took over the stream.")
        raise RuntimeError("[STREAM_FAILED] secret=xyz")

    with pytest.raises(Fenced):
        headgate.run(Query(fails), sink)  # type: ignore[arg-type]
    with pytest.raises(SparkFailed, match="STREAM_FAILED") as told:
        headgate.run(Query(fails))  # type: ignore[arg-type]
    assert "xyz" not in str(told.value)
