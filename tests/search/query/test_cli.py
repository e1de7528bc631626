from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from headgate.cli import main, output
from headgate.table.table import Table
from tests.search.query.histories import make_table, rows


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = make_table(tmp_path / "t", parameters={"with_position": True})
    lance.write_dataset(rows([(1, "the red gates of Zürich")]).cast(table.schema), table.uri, mode="append")
    with table.writer("single") as writer:
        writer.put(rows([(2, "a gate"), (3, "red\x1b[31m apple")]))
    return table


def _call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["search", *arguments], prog_name="headgate", catch_exceptions=False)


def _hits(*arguments: str) -> list[dict[str, Any]]:
    done = _call(*arguments, "--output", "json")
    assert done.exit_code == 0, done.output
    hits: list[dict[str, Any]] = json.loads(done.stdout)["hits"]
    return hits


def test_json_has_every_hit_as_it_is_best_first(table: Table) -> None:
    hits = _hits(table.uri, "red gate")
    assert [hit["id"] for hit in hits] == [hit.as_py() for hit in table.search("red gate").column("id")]
    assert {hit["note"] for hit in hits} == {"the red gates of Zürich", "a gate", "red\x1b[31m apple"}
    assert hits[0]["score"] == round(table.search("red gate").column("_score")[0].as_py(), 4)


def test_options_are_those_of_the_search(table: Table) -> None:
    assert [hit["id"] for hit in _hits(table.uri, "gate red", "--match", "all")] == [1]
    assert _hits(table.uri, "gate red", "--match", "phrase") == []
    assert [hit["id"] for hit in _hits(table.uri, "red gate", "--match", "phrase", "--column", "note")] == [1]
    assert [hit["id"] for hit in _hits(table.uri, "red gate", "--filter", "id > 2")] == [3]
    assert [sorted(hit) for hit in _hits(table.uri, "red gate", "-k", "1", "--show", "id, size")] == [
        ["id", "score", "size"]
    ]


def test_matched_words_stand_out_on_a_terminal_and_nothing_moves_the_cursor(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    consoles: list[Console] = []

    def terminal(*, stderr: bool = False) -> Console:
        consoles.append(Console(force_terminal=True, record=True, markup=False, highlight=False, width=120))
        return consoles[-1]

    monkeypatch.setattr(output, "_console", terminal)
    assert _call(table.uri, "gate").exit_code == 0
    assert _call(table.uri, "red").exit_code == 0
    styled = "".join(console.export_text(styles=True, clear=False) for console in consoles)
    assert "the red \x1b[1;33mgates\x1b[0m of Zürich" in styled
    assert "\x1b[1;33mred\x1b[0m\\x1b" in styled
    assert "\x1b[31m" not in styled


def test_text_says_how_many_and_shows_a_table(table: Table) -> None:
    shown = _call(table.uri, "red").stdout
    assert "2 hits for 'red'" in shown
    assert "score" in shown
    assert _call(table.uri, "nowhere").exit_code == 0


def test_failures_are_one_sentence_and_a_next_step(table: Table, tmp_path: Path) -> None:
    for arguments, code, said in (
        ([str(tmp_path / "nothing"), "red"], 3, "No table found"),
        ([table.uri, "red", "--column", "size"], 2, "has no full-text search"),
        ([table.uri, "red", "--filter", "nowhere = 1"], 2, "rejects the filter"),
        ([table.uri, "red", "-k", "0"], 2, "k"),
        ([table.uri], 2, "TEXT"),
    ):
        done = _call(*arguments)
        assert (done.exit_code, said in done.stderr, "Next:" in done.stderr) == (code, True, True), done.stderr


def test_help_has_an_example() -> None:
    assert "headgate search ./orders" in _call("--help").stdout


def test_nothing_but_hits_is_printed_by_a_process_of_its_own(tmp_path: Path) -> None:
    """Native's search logs an error for every table with MemWAL; a terminal does not show it."""
    table = make_table(tmp_path / "t")
    lance.write_dataset(rows([(1, "red")]).cast(table.schema), table.uri, mode="append")
    table.build_index("note")
    command = "from headgate.cli import main; main(prog_name='headgate')"
    program = "import headgate, json, sys; hits = headgate.open_table(sys.argv[2]).search(sys.argv[3]).to_pylist()"
    for code in (command, f"{program}; print(json.dumps({{'hits': hits}}))"):
        done = subprocess.run(
            [sys.executable, "-c", code, "search", table.uri, "red", "--output", "json"],
            capture_output=True,
            text=True,
            env={name: value for name, value in os.environ.items() if name != "LANCE_LOG"},
            check=True,
        )
        assert [hit["id"] for hit in json.loads(done.stdout)["hits"]] == [1]
        assert done.stderr == ""


def test_a_value_that_json_does_not_know_is_told_as_text(tmp_path: Path) -> None:
    from headgate.table.create import create_table

    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("note", pa.string()), pa.field("d", pa.date32())])
    table = create_table(str(tmp_path / "t"), schema, primary_key="id", full_text="note")
    with table.writer("single") as writer:
        writer.put(pa.table({"id": [1], "note": ["red"], "d": [0]}, schema=schema))
    assert _hits(table.uri, "red")[0]["d"] == "1970-01-01"
