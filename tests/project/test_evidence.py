"""A run that is asked for result files writes what `make figures` renders as docs/evidence.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import figures
from tests.support.evidence import RESULTS, write
from tests.support.pages import ROOT


def test_a_long_test_writes_what_it_saw(tmp_path: Path) -> None:
    module = "tests/explorer/test_explored_power.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", module, "-k", "checkpoint and not cuts"]
    environment = {**os.environ, RESULTS: str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = figures.results(tmp_path).values()
    (ended,), (model,) = (table["rows"] for table in result["tables"])
    assert (ended["tests"], ended["passed"], ended["failed"]) == (module, 1, 0)
    assert (model["model"], model["ended"]) == ("power: a checkpoint", "every reachable state holds")
    page = figures.evidence_page({"explorer": result})
    assert f"| {model['model']} | {model['states']:,} | {model['transitions']:,} |" in page
    assert module in result["command"]


def test_a_later_run_replaces_only_what_it_has_made_anew(tmp_path: Path) -> None:
    write(tmp_path, "room", "first", {"Walks": [{"protocol": "put", "cuts": 1}, {"protocol": "gc", "cuts": 2}]})
    write(tmp_path, "room", "second", {"Walks": [{"protocol": "gc", "cuts": 3}]})
    (table,) = json.loads((tmp_path / "room.json").read_text())["tables"]
    assert {row["protocol"]: row["cuts"] for row in table["rows"]} == {"put": 1, "gc": 3}


def test_what_another_machine_showed_is_not_mixed_in(tmp_path: Path) -> None:
    write(tmp_path, "room", "first", {"Walks": [{"protocol": "put", "cuts": 1}]})
    path = tmp_path / "room.json"
    old = json.loads(path.read_text())
    path.write_text(json.dumps({**old, "machine": {**old["machine"], "cores": 9999}}))
    write(tmp_path, "room", "second", {"Walks": [{"protocol": "gc", "cuts": 3}]})
    (table,) = json.loads(path.read_text())["tables"]
    assert [row["protocol"] for row in table["rows"]] == ["gc"]
