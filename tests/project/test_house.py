"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import headgate
from headgate.connectors.objects.deletion import RULES, Kind

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


DELETES = {"delete", "delete_temporary", "cleanup_old_versions", "rmtree", "unlink", "rmdir", "removedirs"}
DELETERS = {
    "connectors/objects/": "the stores, and `deletion.py`, by which everybody else deletes from them",
    "shards/wal/moved.py": "a store as well",
    "connectors/lance/base/tags.py": "Lance's own calls, made through `deletion.delete_by`",
    "connectors/lance/base/tidy.py": "Lance's own calls, made through `deletion.delete_by`",
    "connectors/jars/fetch.py": "a cache of this machine",
    "streaming/datasource/memory.py": "files of the Spark application, on the driver's machine",
    "cli/spark.py": "the log of a run, in a temporary folder",
    "dev/": "what makes a laptop a lake",
}
"""Who deletes anything by itself, and why it may."""


MOST_LINES = 400
MAY_BE_LONGER = ("streaming/options.py",)
"""Tables."""
MOST_MODULES = 14
ONE_FILE_EACH = "cli/commands"
"""The folder that has a module per command, however many there are."""


def modules() -> Iterator[tuple[str, str]]:
    """Path and source of each."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), path.read_text()


def test_a_folder_has_few_modules() -> None:
    counted = Counter(path.rpartition("/")[0] for path, _ in modules() if not path.endswith("__init__.py"))
    assert {name: count for name, count in counted.items() if count > MOST_MODULES and name != ONE_FILE_EACH} == {}


def test_a_module_is_short() -> None:
    lines = {path: len(source.splitlines()) for path, source in modules()}
    assert {path: count for path, count in lines.items() if count > MOST_LINES and path not in MAY_BE_LONGER} == {}


def test_a_module_s_name_is_one_word_and_its_folder_says_the_rest() -> None:
    names = [path.rpartition("/")[2].removeprefix("__") for path, _ in modules()]
    longer = [name for name in names if "_" in name.removesuffix("__.py")]
    assert len(longer) <= 0.15 * len(names), longer


@pytest.mark.parametrize("what", ONE_PLACE)
def test_time_and_threads_come_from_one_module_each(what: str) -> None:
    users = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if what in used(path.read_text())]
    assert users in ([], [Path(ONE_PLACE[what])])


def deletes(source: str) -> set[str]:
    """What a module calls, or hands on, that deletes."""
    return {
        f"{ast.unparse(node.value)}.{node.attr}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr in DELETES
    }


def kinds(source: str) -> Iterator[str]:
    """The kinds of what a module deletes, or lets be deleted: of every call the last argument but the retry."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name, arguments = node.func.id, node.args
            place = {"delete": 2, "delete_all": 2, "delete_by": 3, "Garbage": 0}.get(name)
            if place is not None and isinstance(kind := arguments[place], ast.Constant):
                yield str(kind.value)


def test_one_place_deletes() -> None:
    deleters = {path: found for path, source in modules() if (found := deletes(source))}
    others = {path: found for path, found in deleters.items() if not path.startswith(tuple(DELETERS))}
    assert not others, "delete by headgate.connectors.objects.deletion, and name the kind and its rule there"
    assert [one for one in DELETERS if not any(path.startswith(one) for path in deleters)] == []


def test_every_kind_that_is_deleted_has_a_rule_and_names_who_deletes_it() -> None:
    callers: dict[str, set[str]] = {kind: set() for kind in get_args(Kind)}
    for path, source in modules():
        for kind in kinds(source):
            callers[kind].add(path.removesuffix(".py").replace("/", "."))
    assert {kind: set(rule.callers) for kind, rule in RULES.items()} == callers


@pytest.mark.parametrize("source", ["store.delete(key)", "partial(self._store.delete, key)", "os.unlink(path)"])
def test_the_rule_sees_who_deletes(source: str) -> None:
    assert deletes(source)


@pytest.mark.parametrize(
    "source",
    ["import time", "from time import sleep", "import threading\nthreading.Thread(target=print)", "datetime.now(UTC)"],
)
def test_the_rule_sees_what_it_forbids(source: str) -> None:
    assert set(ONE_PLACE).intersection(used(source))
