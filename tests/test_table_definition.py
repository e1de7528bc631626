"""What a table is made of, and whether the one that is there is the one that is described."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import headgate
from headgate.cli import main
from headgate.connectors.lance.datasets import open_dataset, text_indexes
from headgate.errors import InvalidInput
from headgate.steps import watching
from headgate.table.create import CREATE_STEPS

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())])
POSITIONS = {"note": {"with_position": True, "base_tokenizer": "ngram"}}


def notes(uri: Path, **changed: Any) -> headgate.Table:
    given: dict[str, Any] = {
        "schema": SCHEMA,
        "primary_key": "id",
        "sharding": headgate.bucket("id", 2),
        "full_text": "note",
        "exist_ok": True,
    }
    return headgate.create_table(uri, **(given | changed))


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def parameters(table: headgate.Table) -> dict[str, Any]:
    (index,) = text_indexes(open_dataset(table.home.store))
    return dict(index.parameters)


def struct_type() -> Any:
    types = pytest.importorskip("pyspark.sql.types")
    return types.StructType(
        [types.StructField("id", types.LongType(), False), types.StructField("note", types.StringType())]
    )


@pytest.mark.parametrize("schema", [lambda: "id bigint not null, note string", struct_type, lambda: SCHEMA])
def test_columns_are_given_as_ddl_as_a_struct_type_or_as_arrow(tmp_path: Path, schema: Callable[[], Any]) -> None:
    table = notes(tmp_path / "t", schema=schema())
    assert [(one.name, one.type, one.nullable) for one in table.schema] == [
        ("id", pa.int64(), False),
        ("note", pa.string(), True),
    ]


@pytest.mark.parametrize(("schema", "said"), [("id bigin", "did you mean 'bigint'"), (7, "got int"), ("", "DDL")])
def test_columns_that_cannot_be_read_are_refused(tmp_path: Path, schema: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        notes(tmp_path / "t", schema=schema)
    assert files(tmp_path) == set()


def test_the_same_call_returns_the_table_that_is_there(tmp_path: Path) -> None:
    made = notes(tmp_path / "t", full_text=POSITIONS)
    before = files(tmp_path)
    assert notes(tmp_path / "t", full_text=POSITIONS).table_id == made.table_id
    assert notes(tmp_path / "t", schema="id bigint, note string").table_id == made.table_id, "the index has what it has"
    assert files(tmp_path) == before
    with pytest.raises(InvalidInput, match="exists already at"):
        notes(tmp_path / "t", exist_ok=False)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"schema": "id bigint, note string, more int"}, "columns.*more int32"),
        ({"schema": "id int, note string"}, "columns.*id int32"),
        ({"schema": "id bigint, note string not null"}, "columns.*note string not null"),
        ({"primary_key": ["id", "note"]}, "primary key"),
        ({"sharding": headgate.bucket("id", 3)}, "sharding"),
        ({"full_text": ()}, "full text"),
        ({"full_text": {"note": {"stem": False}}}, "stem=True, but False was requested"),
    ],
)
def test_another_definition_is_refused_by_what_differs(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    notes(tmp_path / "t")
    before = files(tmp_path)
    with pytest.raises(InvalidInput, match=said):
        notes(tmp_path / "t", **changed)
    assert files(tmp_path) == before


def test_another_wal_store_is_another_definition(tmp_path: Path) -> None:
    made = notes(tmp_path / "t", wal_uri=tmp_path / "wal")
    assert notes(tmp_path / "t", wal_uri=tmp_path / "wal").table_id == made.table_id
    for other in (None, tmp_path / "other"):
        with pytest.raises(InvalidInput, match="WAL store"):
            notes(tmp_path / "t", wal_uri=other)


def test_of_two_calls_at_once_both_get_the_one_table(tmp_path: Path) -> None:
    """The rival makes the table while the first call stands at its last step."""
    rival: list[headgate.Table] = []

    def watch(step: str) -> None:
        if step == "mem_wal" and not rival:
            thread = threading.Thread(target=lambda: rival.append(notes(tmp_path / "t")))
            thread.start()
            thread.join()

    with watching(watch):
        first = notes(tmp_path / "t")
    assert first.table_id == rival[0].table_id


def test_a_path_goes_wherever_a_uri_does(tmp_path: Path) -> None:
    made = notes(tmp_path / "t", full_text=())
    assert headgate.ShardSink(tmp_path / "t", stream="s").table.table_id == made.table_id
    assert made.clone(tmp_path / "clone", wal_uri=tmp_path / "wal").uri == str(tmp_path / "clone")
    assert headgate.open_table(tmp_path / "clone", wal_uri=tmp_path / "wal").record.wal_uri == str(tmp_path / "wal")
    with pytest.raises(InvalidInput, match="path or a URI, got int"):
        headgate.open_table(7)  # type: ignore[arg-type]


# -- full text ---------------------------------------------------------------------


def test_positions_and_tokenizer_are_given_at_creation_and_serve_fresh_rows(tmp_path: Path) -> None:
    table = notes(tmp_path / "t", full_text=POSITIONS)
    assert (parameters(table)["with_position"], parameters(table)["base_tokenizer"]) == (True, "ngram")
    with table:
        table.upsert(pa.table({"id": [1, 2], "note": ["東京都庁舎", "late delivery"]}, schema=table.schema))
    assert table.search("京都庁")["id"].to_pylist() == [1], "no word of it stands between spaces"
    assert table.search("late deliv", match="phrase")["id"].to_pylist() == [2]


@pytest.mark.parametrize("step", CREATE_STEPS[:-1])
def test_after_a_crash_the_parameters_are_those_that_were_asked_for(tmp_path: Path, step: str) -> None:
    class Crash(Exception):
        pass

    def watch(reached: str) -> None:
        if reached == step:
            raise Crash

    with pytest.raises(Crash), watching(watch):
        notes(tmp_path / "t", full_text=POSITIONS)
    assert parameters(notes(tmp_path / "t", full_text=POSITIONS))["base_tokenizer"] == "ngram"


def test_a_creation_that_was_begun_with_other_parameters_is_refused(tmp_path: Path) -> None:
    class Crash(Exception):
        pass

    def watch(reached: str) -> None:
        if reached == "full_text":
            raise Crash

    with pytest.raises(Crash), watching(watch):
        notes(tmp_path / "t")
    with pytest.raises(InvalidInput, match="with_position=False, but True was requested"):
        notes(tmp_path / "t", full_text=POSITIONS)
    assert notes(tmp_path / "t").full_text == ("note",)


@pytest.mark.parametrize(
    ("full_text", "said"),
    [
        ({"note": {"base_tokenizer": "klingon"}}, "Lance rejects"),
        ({"note": {"no_such": 1}}, "Lance rejects"),
        ({"nota": {}}, "did you mean 'note'"),
        ({"note": "ngram"}, "must map each column to a dict of index parameters"),
    ],
)
def test_full_text_that_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path, full_text: Any, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        notes(tmp_path / "t", full_text=full_text)
    assert files(tmp_path) == set()


def test_an_index_built_on_an_empty_base_keeps_its_parameters(tmp_path: Path) -> None:
    table = notes(tmp_path / "t", full_text=())
    with pytest.raises(InvalidInput, match="headgate index build"):
        table.search("delivery")
    built = table.build_index("note", parameters={"with_position": True})
    assert (built.rows, built.fragments) == (0, 0)
    assert table.build_index("note").version == built.version, "a second build changes nothing"
    with table:
        table.upsert(pa.table({"id": [1], "note": ["late delivery"]}, schema=table.schema))
    assert table.search("late delivery", match="phrase")["id"].to_pylist() == [1]
    with pytest.raises(InvalidInput, match="with_position=True, but False was requested"):
        table.build_index("note", parameters={"with_position": False})
    table.build_index("note", parameters={"with_position": False}, rebuild=True)
    assert not parameters(table)["with_position"]


# -- as commands -------------------------------------------------------------------


def test_table_create_takes_positions_a_tokenizer_and_a_table_that_is_there(tmp_path: Path) -> None:
    command = ["table", "create", str(tmp_path / "t"), "--schema", "id bigint, note string", "--primary-key", "id"]
    text = ["--full-text", "note", "--parameter", "with_position=true", "--parameter", "base_tokenizer=ngram"]
    done = CliRunner().invoke(main, command + text)
    assert done.exit_code == 0, done.output
    found = parameters(headgate.open_table(tmp_path / "t"))
    assert (found["with_position"], found["base_tokenizer"]) == (True, "ngram")
    assert CliRunner().invoke(main, command + text).exit_code == 2
    assert CliRunner().invoke(main, [*command, *text, "--exist-ok"]).exit_code == 0
    refused = CliRunner().invoke(main, [*command, "--parameter", "with_position=true"])
    assert (refused.exit_code, "--full-text" in refused.output) == (2, True)
