"""A stream that runs in this process tells every batch, and ends with the error that ended it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stream_runs import make_table

import headgate
from headgate.checkpoints.records import BatchRecord
from headgate.errors import Fenced
from headgate.streaming.running import Done, RunningStream, _Watched
from headgate.streaming.session import SparkFailed
from headgate.streaming.sink import ShardSink


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
    if typed:
        watched.error = Fenced("A successor has taken the stream over.")

    def last_moment() -> None:
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


def running(query: Any, watched: _Watched) -> RunningStream:
    return RunningStream(query, watched, None, None)
