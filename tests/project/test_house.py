"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import headgate

PACKAGE = Path(headgate.__file__).parent
ONE_PLACE = {
    "time": "clock.py",
    "datetime.now": "clock.py",
    "datetime.utcnow": "clock.py",
    "Thread": "parallel.py",
    "Timer": "parallel.py",
    "ThreadPoolExecutor": "parallel.py",
    "ProcessPoolExecutor": "parallel.py",
}
"""What only one module may use: a simulation replaces that module."""


def used(source: str) -> Iterator[str]:
    """What a module imports or calls of the above, by the names above."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.func.attr
            yield f"{ast.unparse(node.func.value)}.{node.func.attr}"


@pytest.mark.parametrize("what", ONE_PLACE)
def test_time_and_threads_come_from_one_module_each(what: str) -> None:
    users = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if what in used(path.read_text())]
    assert users in ([], [Path(ONE_PLACE[what])])


@pytest.mark.parametrize(
    "source",
    ["import time", "from time import sleep", "import threading\nthreading.Thread(target=print)", "datetime.now(UTC)"],
)
def test_the_rule_sees_what_it_forbids(source: str) -> None:
    assert set(ONE_PLACE).intersection(used(source))
