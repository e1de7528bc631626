"""A store may be made before a fork and used after it; one that was used before says so at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.services import s3_options_for

PROGRAM = """
import os, sys
from headgate.connectors.objects import open_store
from headgate.errors import ForkedProcess

uri, used_before = sys.argv[1], sys.argv[2] == "used"
options = eval(sys.argv[3])
store = open_store(uri, options)
if used_before:
    store.put_if_absent("parent", b"body")
child = os.fork()
if child == 0:
    code = 1
    try:
        store.put_if_absent("child", b"body")
        code = 10 if bytes(store.get("child")) == b"body" else 11
    except ForkedProcess:
        try:
            open_store(uri, options).head("parent")
        except ForkedProcess:
            code = 20
    os._exit(code)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
store.head("child" if not used_before else "parent")
print("parent works", "obstore" in sys.modules)
"""


def forked(uri: str, before: str, options: dict[str, str]) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, uri, before, repr(options)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return ran.stdout.splitlines()


@pytest.mark.parametrize("before", ["unused", "used"])
def test_a_local_store_works_on_both_sides_of_a_fork(before: str, tmp_path: Path) -> None:
    assert forked(str(tmp_path / "root"), before, {}) == ["10", "parent works False"]


@pytest.mark.s3
def test_an_s3_store_made_before_a_fork_works_after_it(bucket: str, s3_endpoint: str) -> None:
    assert forked(f"s3://{bucket}/root", "unused", s3_options_for(s3_endpoint)) == ["10", "parent works True"]


@pytest.mark.s3
def test_a_child_of_a_process_that_used_s3_is_told_at_once(bucket: str, s3_endpoint: str) -> None:
    assert forked(f"s3://{bucket}/root", "used", s3_options_for(s3_endpoint)) == ["20", "parent works True"]
