"""The checks that a person starts: fsck and doctor's read-only checks, one at a time. Keeps their last results."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from headgate import clock, parallel
from headgate.console.watch.now import first_error
from headgate.console.watch.watcher import WatchedTable, Watcher
from headgate.doctor.machine import Check, check_packages
from headgate.doctor.store import look_at_table
from headgate.errors import HeadgateError
from headgate.table.fsck import TableReport, fsck

CheckName = Literal["fsck", "doctor"]
FINDINGS_SHOWN = 100


@dataclass(frozen=True)
class Outcome:
    """The last run of a check."""

    began: datetime
    ended: datetime | None = None
    """None while it runs."""
    progress: str = ""
    report: TableReport | None = None
    checks: tuple[Check, ...] = ()
    error: str | None = None


class Checks:
    """The checks of all tables of a console. Thread-safe."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._lock = threading.Lock()
        self._last: dict[tuple[str, CheckName], Outcome] = {}

    def last(self, table: WatchedTable, name: CheckName) -> Outcome | None:
        """The result of the last run, or its progress."""
        with self._lock:
            return self._last.get((table.key, name))

    def start(self, table: WatchedTable, name: CheckName) -> bool:
        """Start a check, which writes nothing. False if a check of any table is running."""
        with self._lock:
            if any(one.ended is None for one in self._last.values()):
                return False
            self._last[table.key, name] = Outcome(clock.now())
        run = {"fsck": self._fsck, "doctor": self._doctor}[name]
        parallel.thread(f"console-{name}", self._run, table, name, run).start()
        return True

    def _run(self, table: WatchedTable, name: CheckName, run: Callable[[WatchedTable, Outcome], Outcome]) -> None:
        began = Outcome(clock.now())
        try:
            done = run(table, began)
        except HeadgateError as error:
            done = Outcome(began.began, clock.now(), error=first_error(error))
        except Exception as error:  # the check must end after any error
            done = Outcome(began.began, clock.now(), error=type(error).__name__)
        self._put(table, name, done)

    def _fsck(self, table: WatchedTable, began: Outcome) -> Outcome:
        def progress(stage: str, done: int, total: int) -> None:
            told = f"{stage}: {done:,}" + (f" of {total:,}" if total else "")
            self._put(table, "fsck", Outcome(began.began, progress=told))

        report = fsck(table.place.uri, storage_options=dict(table.place.options) or None, progress=progress)
        return Outcome(began.began, clock.now(), report=report)

    def _doctor(self, table: WatchedTable, began: Outcome) -> Outcome:
        with table.reading() as reader:
            checks = (*check_packages(), *look_at_table(reader))
        return Outcome(began.began, clock.now(), checks=checks)

    def _put(self, table: WatchedTable, name: CheckName, outcome: Outcome) -> None:
        with self._lock:
            self._last[table.key, name] = outcome
        self._watcher.changed()


def health_page(checks: Checks, table: WatchedTable) -> dict[str, Any]:
    """The values of the page; reads no store."""
    found, told = checks.last(table, "fsck"), checks.last(table, "doctor")
    report = None if found is None else found.report
    ran = () if told is None else told.checks
    return {
        "fsck": found,
        "report": None if report is None else report.to_dict(),
        "findings": () if report is None else report.findings[:FINDINGS_SHOWN],
        "doctor": told,
        "shown_checks": [one for one in ran if not _is_fine_package(one)],
        "fine_packages": [one for one in ran if _is_fine_package(one)],
        "problems": table.now.problems(),
    }


def _is_fine_package(check: Check) -> bool:
    return check.state == "ok" and check.area == "packages"
