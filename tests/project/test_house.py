"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
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


@cache
def used(source: str) -> frozenset[str]:
    """What a module imports or calls of the above, by the names above."""
    return frozenset(_used(source))


def _used(source: str) -> Iterator[str]:
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


@cache
def modules() -> list[tuple[str, str]]:
    """Path and source of each."""
    return [(path.relative_to(PACKAGE).as_posix(), path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))]


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
    users = [path for path, source in modules() if what in used(source)]
    assert users in ([], [ONE_PLACE[what]])


IMPORTERS = {
    "__init__.py": "the lazy face of the package: it stands above everything",
    "cli/__init__.py": "commands are imported when they run; nothing imports the CLI",
}
"""Who imports by a name that `lint-imports` cannot follow, and why it may."""
BY_NAME = {"import_module", "__import__", "resolve_name", "run_module", "exec_module"}


def imports_by_name(source: str) -> set[str]:
    """How a module imports what its import statements do not name."""
    tree = ast.parse(source)
    named = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    named |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    named |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    return named & BY_NAME


def layers() -> list[set[str]]:
    """The rooms of the contract, the highest first."""
    contracts = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return [set(layer.replace("headgate.", "").split(" | ")) for layer in contracts[0]["layers"]]


def test_nothing_is_imported_by_a_name_that_no_contract_sees() -> None:
    assert {path for path, source in modules() if imports_by_name(source)} == set(IMPORTERS)


def test_the_contract_on_imports_has_every_room() -> None:
    rooms = {path.partition("/")[0].removesuffix(".py") for path, _ in modules()} - {"__init__"}
    assert set().union(*layers()) == rooms


@pytest.mark.parametrize(
    "source",
    [
        "from importlib import import_module as load",
        "import importlib\nimportlib.import_module('headgate.table')",
        "__import__('headgate.table')",
        "getattr(importlib, name)\nimport pkgutil\npkgutil.resolve_name(name)",
    ],
)
def test_the_rule_sees_an_import_by_name(source: str) -> None:
    assert imports_by_name(source)


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


ASKS_VERSION = re.compile(
    r"spark_version|pyspark\.__version__|\b(?:spark|context|session|sc)\.version\b"
    r"|version\([\"']pyspark[\"']\)|hasattr\((?:spark|session|frame|df|reader|writer|query)\b"
    r"|line\(\)\.(?:name|tested)|except \(?(?:ImportError|AttributeError).*pyspark"
)
KNOW_VERSIONS = {
    "spark/versions.py": "what the lines differ in",
    "doctor/machine.py": "shows the version",
    "connectors/jars/lists.py": "jars come by line",
    "connectors/jars/fetch.py": "jars come by line",
}


def test_one_module_knows_versions_of_spark() -> None:
    asking = {path for path, source in modules() if ASKS_VERSION.search(source) or "spark_line" in source}
    assert asking - set(KNOW_VERSIONS) == set(), "say in headgate/spark/versions.py what differs, and ask that"
    assert set(KNOW_VERSIONS) - asking == set()


@pytest.mark.parametrize(
    "source",
    [
        "if pyspark.__version__ < '4':",
        "if spark.version.startswith('3'):",
        "importlib.metadata.version('pyspark')",
        "hasattr(frame, 'repartitionById')",
    ],
)
def test_the_rule_sees_who_asks_for_a_version(source: str) -> None:
    assert ASKS_VERSION.search(source)


@pytest.mark.parametrize("source", ["store.delete(key)", "partial(self._store.delete, key)", "os.unlink(path)"])
def test_the_rule_sees_who_deletes(source: str) -> None:
    assert deletes(source)


@pytest.mark.parametrize(
    "source",
    ["import time", "from time import sleep", "import threading\nthreading.Thread(target=print)", "datetime.now(UTC)"],
)
def test_the_rule_sees_what_it_forbids(source: str) -> None:
    assert set(ONE_PLACE).intersection(used(source))
