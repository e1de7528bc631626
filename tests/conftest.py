from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from headgate.caches import cache_bytes, set_cache_bytes
from headgate.spark import versions
from tests.support.classes import java_options
from tests.support.rerun import RERUN

TESTS = Path(__file__).parent

# Processes that tests start, and the workers of every Spark, find the modules of the tests.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS.parent), os.environ.get("PYTHONPATH")]))

if (options := java_options()) not in (given := os.environ.get("JAVA_TOOL_OPTIONS", "")):
    os.environ["JAVA_TOOL_OPTIONS"] = f"{given} {options}".strip()

# A machine that is busy takes its time: how long one example took says nothing.
hypothesis.settings.register_profile("headgate", deadline=None)
hypothesis.settings.load_profile("headgate")

pytest_plugins = [
    "tests.support.services",
    "tests.support.spark",
    "tests.support.network",
    "tests.support.evidence",
]


@pytest.fixture
def cache_budget() -> Iterator[Callable[[int], None]]:
    """Sets the budget of this process's caches until the test is over."""
    before = cache_bytes()
    yield set_cache_bytes
    set_cache_bytes(before)


UNMEASURED = (
    "explorer",
    "faults/test_state_machine",
    "faults/test_memtable_machine",
    "checkpoints/log/test_machine",
    "shards/wal/test_fuzz",
    "faults/test_hostile",
    "connectors/objects/test_s3",
    "search/query/test_property",
    "streaming/decode/test_property",
    "streaming/write/test_histories",
    "checkpoints/jobs/test_model",
)
"""Where tests repeat by the thousand what others do once: measuring coverage there costs minutes and finds no line."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Under xdist, what needs the Spark of this process runs on two workers, so that two JVMs serve all; what starts
    processes of its own, and mostly waits for them, runs beside it on two others.
    """
    where = item.path.relative_to(TESTS)
    for needed in item.iter_markers("line_has"):
        if not getattr(versions.line(), needed.args[0]):
            item.add_marker(pytest.mark.skip(reason=f"Spark {versions.line().name} has no {needed.args[0]}"))
    if item.get_closest_marker("spark") or item.get_closest_marker("kafka"):
        inside = "spark" in getattr(item, "fixturenames", ())
        folder, name = where.parent.as_posix(), "jvm" if inside else "processes"
        apart = folder == ("streaming" if inside else "cli")
        item.add_marker(pytest.mark.xdist_group(f"{folder}{name}" if apart else name))
        item.add_marker(pytest.mark.no_cover)
    if {where.parts[0], where.with_suffix("").as_posix()}.intersection(UNMEASURED):
        item.add_marker(pytest.mark.no_cover)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests have told by `record_property("told", …)`, under xdist as well."""
    reports = [one for each in terminalreporter.stats.values() for one in each if isinstance(one, pytest.TestReport)]
    told = [text for one in reports if one.when == "call" for name, text in one.user_properties if name == "told"]
    if told:
        terminalreporter.section("told")
        terminalreporter.write_line("\n".join(map(str, told)))
    if os.environ.get(RERUN) and (passed := terminalreporter.getreports("passed")):
        terminalreporter.section("flaky: failed before, passed alone; to be mended")
        terminalreporter.write_line("\n".join(report.nodeid for report in passed))
