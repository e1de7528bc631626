"""Result files of long tests, from which `make figures` renders docs/evidence.md.

HEADGATE_RESULTS names their folder; without it nothing is written. A run writes one file per folder of tests: how its
modules ended, and the rows that tests gave by `record_property("found", [title, row])`. A later run on the same machine
replaces the rows it has made anew, and keeps the others with their dates.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import keep, machine
from headgate.spark import versions

RESULTS = "HEADGATE_RESULTS"
LINE = "HEADGATE_LINE"
"""A line of Spark: all that ran on it is one file."""
TESTS = Path(__file__).resolve().parents[1]

_load = os.getloadavg()[0]

Tables = dict[str, list[dict[str, Any]]]


def pytest_configure() -> None:
    """Results of a line are of that line."""
    line = os.environ.get(LINE)
    if line and line != versions.spark_line():
        raise pytest.UsageError(f"{LINE} is {line}, and this Python has Spark {versions.spark_version()}.")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Runs in the process that sees every report, under xdist as well."""
    if not (folder := os.environ.get(RESULTS)):
        return
    reports = [one for each in terminalreporter.stats.values() for one in each if isinstance(one, pytest.TestReport)]
    rooms: dict[str, list[pytest.TestReport]] = {}
    for report in reports:
        if report.when == "call" or not report.passed:
            rooms.setdefault(report.nodeid.split("/")[1], []).append(report)
    if line := os.environ.get(LINE):
        rooms = {f"spark-{line}": [report for ended in rooms.values() for report in ended]}
    for room, ended in rooms.items():
        write(Path(folder), room, shlex.join(["pytest", *_arguments()]), _tables(ended))


def write(folder: Path, name: str, command: str, tables: Tables) -> None:
    """Rows are known by their first column, and dated."""
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    merged: Tables = {title: [{**row, "date": today} for row in rows] for title, rows in tables.items()}
    for title, row in _before(folder / f"{name}.json"):
        rows = merged.setdefault(title, [])
        if all(_key(one) != _key(row) for one in rows):
            rows.append(row)
    shown = [{"title": title, "rows": rows} for title, rows in sorted(merged.items())]
    keep(folder, name, command, shown, load=_load)


def _before(path: Path) -> list[tuple[str, dict[str, Any]]]:
    if not path.exists() or (old := json.loads(path.read_text()))["machine"] != machine():
        return []
    return [(str(table["title"]), row) for table in old["tables"] for row in table["rows"]]


def _key(row: Mapping[str, Any]) -> str:
    return str(next(iter(row.values())))


def _tables(reports: Sequence[pytest.TestReport]) -> Tables:
    modules: dict[str, dict[str, Any]] = {}
    tables: Tables = {"How they ended": []}
    for report in reports:
        path = report.nodeid.partition("::")[0]
        row = modules.setdefault(path, {"tests": path, "passed": 0, "failed": 0, "skipped": 0, "seconds": 0.0})
        row[report.outcome] += 1
        row["seconds"] += report.duration
        found: list[Any] = [value for name, value in report.user_properties if name == "found"]
        for title, cells in found:
            tables.setdefault(title, []).append(dict(cells))
    tables["How they ended"] = [{**row, "seconds": round(row["seconds"], 1)} for row in modules.values()]
    return tables


def _arguments() -> list[str]:
    """Paths of this machine say nothing to others."""
    return [word.replace(f"{TESTS.parent}/", "") for word in sys.argv[1:]]
