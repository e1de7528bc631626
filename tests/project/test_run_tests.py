"""What failed is run once more, alone: flaky tests are named and cost no run, real failures stay failures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = "from tests.conftest import pytest_terminal_summary\n"


def run(folder: Path, test: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(test)
    command = [sys.executable, "-m", "tests.support.rerun", *options, "test_it.py"]
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_a_test_that_passes_alone_is_named_as_flaky_before_the_closing_line(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
import pytest
from pathlib import Path
@pytest.mark.xdist_group("jvm")
@pytest.mark.parametrize("name", ["a@b"])
def test_now_and_then(name):
    mark = Path("mark")
    seen = mark.exists()
    mark.touch()
    assert seen
def test_always(): pass
""",
        *("-n", "1", "--dist", "loadgroup"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *_, flaky, last = done.stdout.splitlines()
    assert "1 passed" in last
    assert flaky == "test_it.py::test_now_and_then[a@b]"


@pytest.mark.parametrize(
    ("test", "runs"),
    [
        ("def test_broken(): assert False", 2),
        ("import pytest\n@pytest.mark.parametrize('n', range(11))\ndef test_broken(n): assert False", 1),
    ],
)
def test_what_fails_twice_or_in_many_places_fails_the_run(tmp_path: Path, test: str, runs: int) -> None:
    done = run(tmp_path, test, "-p", "no:xdist", "-p", "no:cov")
    assert done.returncode == 1
    assert done.stdout.count("test session starts") == runs
