from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from headgate.cli import main, output
from headgate.table.table import Table
from tests.search.vectors.histories import make_table
from tests.search.vectors.test_searcher import rows


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = make_table(tmp_path / "t", dimension=2)
    with table.writer("single") as writer:
        writer.put(rows(table, {1: [1, 0], 2: [2, 0], 3: [3, 0]}))
    return table


def _call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["search", *arguments], prog_name="headgate", catch_exceptions=False)


def _hits(*arguments: str) -> Any:
    done = _call(*arguments, "--output", "json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["hits"]


def test_a_vector_comes_from_a_file_or_from_the_line(table: Table, tmp_path: Path) -> None:
    np.save(tmp_path / "q.npy", np.zeros(2, np.float32))
    (tmp_path / "q.json").write_text("[0, 0]")
    expected = [
        {"distance": 1.0, "id": 1, "size": 1, "note": None},
        {"distance": 4.0, "id": 2, "size": 2, "note": None},
    ]
    for vector in (f"@{tmp_path}/q.npy", f"@{tmp_path}/q.json", "[0, 0]"):
        assert _hits(table.uri, "--vector", vector, "-k", "2") == expected
    found = _hits(table.uri, "--vector", "[0, 0]", "--filter", "id > 1", "--show", "id,embedding", "-k", "1")
    assert found == [{"distance": 4.0, "id": 2, "embedding": [2.0, 0.0]}]
    assert "3 nearest in" in _call(table.uri, "--vector", "[0, 0]", "--nprobes", "2", "--refine", "3").stdout


def test_words_and_a_vector_go_together_and_words_stand_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table(tmp_path / "t", dimension=2, full_text="note")
    every = rows(table, {1: [1, 0], 2: [2, 0], 3: [3, 0]})
    with table.writer("single") as writer:
        writer.put(every.set_column(3, "note", pa.array(["quick", "late delivery", "delivery"])))
    both = ("late deliveries", "--vector", "[0, 0]", "--vector-column", "embedding", "--show", "id, note")
    found = _hits(table.uri, *both)
    assert [list(hit) for hit in found] == [["relevance", "score", "distance", "id", "note"]] * 3
    assert [(hit["id"], hit["note"]) for hit in found] == [(2, "late delivery"), (3, "delivery"), (1, "quick")]
    assert found[2]["score"] is None
    assert [hit["id"] for hit in _hits(table.uri, *both, "--fuse", "weighted", "--weight", "0")] == [1, 2, 3]
    console = Console(force_terminal=True, record=True, markup=False, highlight=False, width=120)
    monkeypatch.setattr(output, "_console", lambda **_: console)
    assert _call(table.uri, *both).exit_code == 0
    assert "\x1b[1;33mdelivery\x1b[0m" in console.export_text(styles=True)


def test_failures_are_one_sentence_and_a_next_step(table: Table, tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    for arguments, said in (
        (["--vector", f"@{tmp_path}/nothing.npy"], "nothing.npy' failed"),
        (["--vector", f"@{tmp_path}/objects.npy"], "not a valid vector"),
        (["--vector", "near"], "not a valid vector"),
        (["--vector", "[1]"], "vectors of 2 numbers"),
        ([], "Give TEXT, --vector"),
        (["late", "--vector", "[0, 0]"], "no columns with a full-text index"),
    ):
        done = _call(table.uri, *arguments)
        assert (done.exit_code, said in done.stderr, "Next:" in done.stderr) == (2, True, True), done.stderr
