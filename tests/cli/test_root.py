from __future__ import annotations

import inspect
import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pytest

from headgate import errors
from headgate.cli import COMMANDS, main
from headgate.cli.errors import EXITS, exit_code
from headgate.cli.output import JsonOutput, TextOutput
from headgate.errors import Corrupt, DataLoss, HeadgateError
from headgate.shards.shard import TableHome
from headgate.table.table import open_table
from tests.cli.calls import SHARD, Headgate, started


def all_commands(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from all_commands(found, *path, name)
    else:
        yield path, command


def examples(command: click.Command) -> list[list[str]]:
    """The calls that its help shows, without what a shell does with them."""
    told = f"{command.help}\n{command.epilog}".partition("Example:")[2].partition("\n\n")[0].replace("\\\n", " ")
    lines = (re.sub(r" {2,}--", " --", line.strip()) for line in told.splitlines())
    calls = (re.split(r" {3,}| > [a-z.]+$", line)[0] for line in lines)
    return [shlex.split(call)[1:] for call in calls if call.startswith("headgate ")]


ON_A_TABLE = [
    ("table", "create"),
    ("checkpoint", "create"),
    *(("table", name) for name in ("show", "scan", "get", "count")),
    ("shard", "show"),
    ("wal", "tail"),
    ("status",),
    ("search",),
    ("dead-letters", "show"),
    ("index", "show"),
    ("index", "build"),
    ("checkpoint", "list"),
    ("checkpoint", "show"),
    ("clone",),
    ("compact",),
    ("gc",),
    ("fsck",),
    ("cost",),
    ("checkpoint", "drop"),
]
NEED_MORE = ("--servers", "--follow", "--spark", "--stream")
"""A broker, patience, a JVM, or a stream that has written."""


def test_help_shows_an_example_the_exit_codes_and_the_commands_that_are_there(headgate: Headgate) -> None:
    shown = headgate("--help").output
    assert "headgate status s3://" in shown
    assert "  6  something durable is missing or damaged" in shown
    assert [name for name, command in COMMANDS.items() if f"\n  {name} " in shown] == [
        name for name, command in COMMANDS.items() if command.exists
    ]


def test_the_list_of_a_group_cuts_no_line() -> None:
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        if isinstance(command, click.Group):
            assert "..." not in command.get_help(click.Context(command)).partition("Commands:")[2], name


def test_help_imports_neither_spark_nor_lance_nor_arrow() -> None:
    code = (
        "import sys; from headgate.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('pyspark', 'lance', 'pyarrow', 'obstore') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_every_listed_command_loads_and_has_an_example_and_both_outputs() -> None:
    found = dict(all_commands(main))
    assert ("wal", "tail") in found
    for path, command in found.items():
        names = {parameter.name for parameter in command.params}
        assert "output" in names, f"{' '.join(path)} has no --output"
        assert examples(command), f"{' '.join(path)} --help shows no example"


def test_every_example_can_be_parsed() -> None:
    for path, command in all_commands(main):
        for example in examples(command):
            asked, rest = example, click.Context(main, info_name="headgate")
            group: click.Command = main
            while isinstance(group, click.Group):
                found = group.get_command(rest, asked[0])
                assert found is not None, example
                group, asked = found, asked[1:]
                rest = click.Context(group, rest, info_name=example[0])
            assert group is command, f"{' '.join(path)} --help shows another command: {example}"
            command.make_context(command.name, list(asked), parent=rest.parent)


def test_the_examples_work_on_the_table_that_the_examples_make(
    headgate: Headgate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = dict(all_commands(main))
    ran = []
    for path in ON_A_TABLE:
        for example in examples(commands[path]):
            if any(word.startswith("s3://") or word in NEED_MORE for word in example):
                continue
            result = headgate(*example)
            assert result.exit_code == 0, f"{example}: {result.output}"
            ran.append(path)
            if path == ("table", "create"):
                with open_table("orders") as orders:
                    orders.upsert(
                        pa.table({"id": [291, 292], "note": ["late delivery", "paid"], "amount": [250.0, 1.0]})
                    )
                np.save("question.npy", np.ones(384, np.float32))
    assert set(ran) == set(ON_A_TABLE)


def test_an_unknown_command_is_refused_with_the_way_to_help(headgate: Headgate) -> None:
    result = headgate("wall")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: No such command 'wall'.")
    assert "headgate --help" in result.stderr
    for group, typed, meant in (((), "tabel", "table"), (("table",), "scna", "scan")):
        assert f"Did you mean {meant!r}?" in headgate(*group, typed).stderr


@pytest.mark.parametrize("arguments", [["--output", "json"], ["--output=json"]])
def test_a_call_that_cannot_be_parsed_is_told_in_json_where_json_was_asked_for(
    headgate: Headgate, arguments: list[str]
) -> None:
    result = headgate("wal", "tail", "uri", "--from", "minus one", *arguments)
    told = json.loads(result.stderr)
    assert (result.exit_code, told["exit_code"], told["error"]) == (2, 2, "InvalidInput")
    assert result.stdout == ""


def test_every_class_of_errors_has_an_exit_code_by_its_nearest_ancestor() -> None:
    classes = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, HeadgateError)]
    assert {kind.__name__: exit_code(kind) for kind in classes}.items() >= {
        "InvalidInput": 2,
        "NotFound": 3,
        "Fenced": 4,
        "Transient": 5,
        "DataLoss": 6,
        "Corrupt": 6,
        "Closed": 1,
    }.items()
    assert len({row.code for row in EXITS}) == len(EXITS)


def test_an_error_is_one_sentence_and_a_next_step_without_a_traceback(headgate: Headgate, table: TableHome) -> None:
    result = headgate("wal", "tail", table.uri, str(SHARD))
    assert result.exit_code == 3
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        f"Error: No shards found at {table.uri}.",
        "Next: check the URI; a table has shards once a writer has opened one.",
    ]


def test_an_error_says_the_same_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    JsonOutput().error(Corrupt("The rows do not match.", table="t", position=4))
    assert json.loads(capsys.readouterr().err) == {
        "error": "Corrupt",
        "what": "The rows do not match.",
        "where": {"table": "t", "position": 4},
        "next": Corrupt.next_step,
        "exit_code": 6,
    }


def test_text_from_outside_cannot_move_the_cursor_or_use_markup(capsys: pytest.CaptureFixture[str]) -> None:
    TextOutput().record("t\x1b[2J", {"name": "[red]a[/red]\x1b[2J", "rows": [{"topic": "\r\x07x"}]})
    TextOutput().error(DataLoss("gone\x1b[2J", key="\x1b]0;x"))
    shown = "".join(capsys.readouterr())
    assert not any(char in shown for char in "\x1b\r\x07")
    assert "[red]a[/red]" in shown


def test_a_storage_option_is_never_repeated(headgate: Headgate) -> None:
    for arguments in (["hunter2"], ["no_such_option=hunter2"], ["aws_region=x", "--storage-option", "=hunter2"]):
        result = headgate("shard", "show", "s3://bucket/table", "--storage-option", *arguments)
        assert result.exit_code == 2
        assert "hunter2" not in result.output


def test_ctrl_c_ends_a_command_with_130_and_no_traceback(written: TableHome) -> None:
    with started("wal", "tail", written.uri, str(SHARD), "--follow", "--output", "json") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told.strip() == ""
