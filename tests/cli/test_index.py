from __future__ import annotations

import json
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import headgate as package
from headgate.cli.options.text import parse_parameters
from headgate.errors import InvalidInput
from tests.cli.calls import Headgate
from tests.support import vectors

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("note", pa.string()), pa.field("title", pa.string())])


def rows(count: int) -> pa.Table:
    notes = [f"order {number} waits at gate {number % 7}" for number in range(count)]
    return pa.table({"id": range(count), "note": notes, "title": notes}, schema=SCHEMA)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table with 60 rows in three fragments, and full-text columns."""
    uri = str(tmp_path / "orders")
    package.create_table(uri, SCHEMA, full_text=["note", "title"])
    lance.write_dataset(rows(60), uri, mode="append", max_rows_per_file=20)
    return uri


def test_build_covers_one_column_and_a_second_run_does_nothing(headgate: Headgate, uri: str) -> None:
    result = headgate("index", "build", uri, "--column", "note", "--output", "json")
    built = json.loads(result.stdout)
    assert result.exit_code == 0
    assert built == {
        "name": "note_idx",
        "column": "note",
        "version": lance.dataset(uri).version,
        "rounds": 1,
        "added": 1,
        "segments": 1,
        "fragments": 3,
        "rows": 60,
        "note": "",
    }
    again = json.loads(headgate("index", "build", uri, "--column", "note", "--output", "json").stdout)
    assert again == {**built, "rounds": 0, "added": 0}
    found = lance.dataset(uri).to_table(full_text_query="gate", columns=["id"]).num_rows
    assert found == 60


def test_without_a_column_every_full_text_column_is_a_row(headgate: Headgate, uri: str) -> None:
    shown = [json.loads(line) for line in headgate("index", "show", uri, "--output", "json").stdout.splitlines()]
    assert [(one["column"], one["uncovered_fragments"], one["uncovered_rows"]) for one in shown] == [
        ("note", 3, 60),
        ("title", 3, 60),
    ]
    head, *lines = headgate("index", "build", uri).stdout.splitlines()
    assert head.split()[:3] == ["column", "name", "rows"]
    assert [line.split()[:3] for line in lines] == [["note", "note_idx", "60"], ["title", "title_idx", "60"]]
    shown = [json.loads(line) for line in headgate("index", "show", uri, "--output", "json").stdout.splitlines()]
    assert [one["uncovered_fragments"] for one in shown] == [0, 0]


def test_show_of_one_column_has_its_segments_and_writes_nothing(headgate: Headgate, uri: str) -> None:
    headgate("index", "build", uri, "--column", "note")
    before = lance.dataset(uri).version
    shown = json.loads(headgate("index", "show", uri, "--column", "note", "--output", "json").stdout)
    (segment,) = shown["segments"]
    assert (segment["fragments"], segment["rows"], segment["documents"], segment["parts"]) == (3, 60, 60, 1)
    assert shown["parameters"]["language"] == "English"
    assert "segments" in headgate("index", "show", uri, "--column", "note").stdout
    assert lance.dataset(uri).version == before


def test_other_parameters_are_refused_without_rebuild(headgate: Headgate, uri: str) -> None:
    changed = ("--parameter", "stem=false", "--parameter", "with_position=true")
    result = headgate("index", "build", uri, "--column", "note", *changed, "--output", "json")
    assert (result.exit_code, json.loads(result.stderr.splitlines()[-1])["error"]) == (2, "InvalidInput")
    assert headgate("index", "build", uri, "--column", "note", *changed, "--rebuild").exit_code == 0
    shown = json.loads(headgate("index", "show", uri, "--column", "note", "--output", "json").stdout)
    assert (shown["parameters"]["stem"], shown["parameters"]["with_position"]) == (False, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--column", "nobody"), "Column 'nobody' not found"),
        (("--column", "note", "--parameter", "stem"), "NAME=VALUE"),
        (("--cores", "2"), "--cores is for --spark"),
    ],
)
def test_a_call_that_cannot_be_is_one_sentence(
    headgate: Headgate, uri: str, arguments: tuple[str, ...], said: str
) -> None:
    result = headgate("index", "build", uri, *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_a_table_without_full_text_columns_says_so(headgate: Headgate, tmp_path: Path) -> None:
    uri = str(tmp_path / "plain")
    package.create_table(uri, SCHEMA)
    assert "has no full-text or vector columns" in headgate("index", "build", uri).stderr


@pytest.mark.parametrize("command", ["build", "show"])
def test_help_has_an_example(headgate: Headgate, command: str) -> None:
    assert "Example:\n    headgate index" in headgate("index", command, "--help").stdout


def test_parameters_are_flags_numbers_lists_or_text() -> None:
    given = ("stem=false", "max_token_length=30", "language=German", "base_tokenizer=12x", 'custom_stop_words=["a"]')
    assert parse_parameters(given) == {
        "stem": False,
        "max_token_length": 30,
        "language": "German",
        "base_tokenizer": "12x",
        "custom_stop_words": ["a"],
    }
    with pytest.raises(InvalidInput):
        parse_parameters(("=x",))


def test_a_vector_column_is_built_and_shown_and_says_what_it_waits_for(headgate: Headgate, tmp_path: Path) -> None:
    table = vectors.make(tmp_path / "t")
    vectors.append(table, 100, 0)
    said = "no index yet: it needs 512 rows with a vector, and the base has 100"
    for command in (("show",), ("build",), ("build", "--column", "embedding", "--rebuild")):
        assert json.loads(headgate("index", *command, table.uri, "--output", "json").stdout)["note"] == said
        assert said in headgate("index", *command, table.uri).stdout
    vectors.append(table, 500, 100)
    waiting = json.loads(headgate("index", "show", table.uri, "--output", "json").stdout)
    assert (waiting["note"], waiting["uncovered_rows"]) == ("not built yet: until then every row is measured", 600)
    built = json.loads(headgate("index", "build", table.uri, "--output", "json").stdout)
    assert (built["name"], built["segments"], built["rows"], built["note"]) == ("embedding_idx", 1, 600, "")
    shown = json.loads(headgate("index", "show", table.uri, "--column", "embedding", "--output", "json").stdout)
    assert (shown["parameters"], shown["note"]) == ({"index_type": "IVF_PQ", "metric": "cosine"}, "")
    (segment,) = shown["segments"]
    assert (segment["documents"], segment["parts"]) == (600, 24)
    refused = headgate("index", "build", table.uri, "--parameter", "stem=false")
    assert (refused.exit_code, "takes no parameters" in refused.stderr) == (2, True)
