"""Checkpoints, and folds of the log, after a batch of a `format("headgate")` stream.

No process of such a stream lives as long as it runs, so the time of the last checkpoint and the sequence of the last
fold are the times of two files beside the one with the run's state. Promise: nothing here fails the stream, and losing
the files costs only one interval and one fold.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from headgate import clock
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.fold import FOLD_EVERY, put_fold, tidy
from headgate.checkpoints.stream.checkpoint import checkpoint_wal_only
from headgate.streaming.datasource.memory import Hold
from headgate.streaming.datasource.settings import Settings
from headgate.table.table import Table, open_table

_log = structlog.get_logger("headgate.streaming")


def maintain(settings: Settings, hold: Hold, sequence: int) -> None:
    """Maintain the table after the batch with this sequence. Errors are logged; a later batch tries again."""
    try:
        if _is_time(hold.path.with_suffix(".checkpoint"), settings.options.checkpoint_seconds):
            table = _opened(settings)
            checkpoint_wal_only(table.home, table.shard_ids(), settings.stream, keep=settings.options.keep_checkpoints)
        elif _is_long(hold.path.with_suffix(".fold"), sequence):
            home = _opened(settings).home
            log = CommitLog(home.records, settings.stream, home.uri)
            put_fold(log, log.read(), {})
            tidy(home.records, log)
    except Exception as error:
        _log.warning(
            "a checkpoint or fold failed; the next one is tried later", stream=settings.stream, error=str(error)
        )


def _is_time(stamp: Path, interval: float) -> bool:
    """True if the interval has passed; then it starts again. The first call starts it."""
    try:
        age = clock.wall() - stamp.stat().st_mtime
    except FileNotFoundError:
        age = -1.0 if interval else 0.0
    if 0 <= age < interval:
        return False
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.touch()
    return age >= 0


def _is_long(stamp: Path, sequence: int) -> bool:
    """True if the log has grown by this many records since the last fold; then counting starts again."""
    last = int(stamp.read_text()) if stamp.exists() else 0
    if sequence - last < FOLD_EVERY:
        return False
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(str(sequence))
    return True


def _opened(settings: Settings) -> Table:
    return open_table(settings.table, storage_options=dict(settings.options.storage_options or {}) or None)
